"""Where the patches of a padded batch of slices lie: coordinates and the padding mask.

Shared by the vision tower and the resampler. Results depend on the arguments alone and are cached
by value, so they must never be written to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

PatchSize = tuple[int, int]
"""Rows and columns of patches of one slice."""

CACHED_LAYOUTS = 64  # batches; live video repeats a few shapes all the time


@dataclass(frozen=True, eq=False)
class PatchLayout:
    """Coordinates of every position of a padded batch.

    Attributes:
        rows: int64 [B, L], row of each patch, 0 in the padding.
        cols: int64 [B, L], column of each patch, 0 in the padding.
        mask: bool [B, 1, 1, L], True at patches; None when nothing is padded.
    """

    rows: Tensor
    cols: Tensor
    mask: Tensor | None


def patch_layout(sizes: Sequence[PatchSize], length: int, device: torch.device) -> PatchLayout:
    """Coordinates and padding mask of a batch.

    Args:
        sizes: rows and columns of each slice; patches run row by row.
        length: padded length L, at least every rows * cols.
        device: where the tensors shall live.

    Raises:
        ValueError: a size is empty or does not fit into `length`.
    """
    return _layout(tuple((int(rows), int(cols)) for rows, cols in sizes), length, device)


@lru_cache(maxsize=CACHED_LAYOUTS)
def _layout(sizes: tuple[PatchSize, ...], length: int, device: torch.device) -> PatchLayout:
    rows = np.zeros((len(sizes), length), dtype=np.int64)
    cols = np.zeros_like(rows)
    mask = np.zeros(rows.shape, dtype=bool)
    for index, (n_rows, n_cols) in enumerate(sizes):
        count = n_rows * n_cols
        if n_rows < 1 or n_cols < 1 or count > length:
            raise ValueError(f"{n_rows}x{n_cols} patches do not fit into a length of {length}")
        rows[index, :count] = np.repeat(np.arange(n_rows), n_cols)
        cols[index, :count] = np.tile(np.arange(n_cols), n_rows)
        mask[index, :count] = True
    padded = None if mask.all() else cached_tensor(mask[:, None, None, :], device)
    return PatchLayout(cached_tensor(rows, device), cached_tensor(cols, device), padded)


def cached_tensor(
    values: np.ndarray, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor fit to outlive the call that asked for it.

    Made outside inference mode: a tensor born in it could not serve a later call that records
    gradients.
    """
    with torch.inference_mode(False):
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)
