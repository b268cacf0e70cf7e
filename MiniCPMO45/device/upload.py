"""Small integers from the host to the device, without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Sequence[int], into: Tensor) -> None:
    """Copy integers into a tensor of the same length, in the order of the current stream.

    Args:
        values: n integers.
        into: [n], any integer dtype; on a GPU the copy passes through pinned memory, which
            torch keeps until the copy is done.
    """
    staged = torch.tensor(values, dtype=into.dtype, pin_memory=into.is_cuda)
    into.copy_(staged, non_blocking=True)
