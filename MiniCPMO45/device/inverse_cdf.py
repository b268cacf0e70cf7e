"""Draws from weights by one uniform number per row, on tensors that stay where they are."""

from __future__ import annotations

import torch
from torch import Tensor


def pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index whose cumulative weight exceeds the uniform share of the total.

    An index of weight 0 is never returned unless all are 0.

    Args:
        weights: float32 [rows, n], not negative, of any sum.
        uniform: float32 [rows, 1] in [0, 1).

    Returns:
        int64 [rows, 1].
    """
    mass = weights.cumsum(-1)
    is_beyond = (mass > uniform * mass[:, -1:]) & (weights > 0)  # sums of a GPU may fall a little
    likeliest = weights.argmax(-1, keepdim=True)
    first = is_beyond.int().argmax(-1, keepdim=True)
    return torch.where(is_beyond.any(-1, keepdim=True), first, likeliest)
