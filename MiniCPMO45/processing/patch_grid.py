"""Where the patches of a batch of slices lie: coordinates, positions and the padding mask.

Shared by the vision tower and the resampler. Results depend on the arguments alone and are cached
by value, so they must never be written to.

Source: docs/specification/model.md#1.4 and #1.5.
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

COORDINATE_END = 1 - 1e-6  # keeps rounding from adding a coordinate; section 1.4
MAX_PERIOD = 10_000.0  # of the sin-cos table; section 1.5
TABLE_STEP = 70  # patches; the table grows in whole steps so that few lengths exist
CACHED_SIDES = 4096
CACHED_LAYOUTS = 64  # batches; live video repeats a few shapes all the time
CACHED_TABLES = 32


@dataclass(frozen=True, eq=False)
class PatchGrid:
    """Coordinates of every patch of a batch of B slices, padded to L patches.

    Attributes:
        ids: int64 [B, L], row of the vision tower's position table, 0 in the padding.
        rows: int64 [B, L], row of each patch, 0 in the padding.
        cols: int64 [B, L], column of each patch, 0 in the padding.
        mask: bool [B, 1, 1, L], True at patches; None when nothing is padded.
        codes: [longest side or more, H / 2], `sincos_table` for the resampler of width H.
    """

    ids: Tensor
    rows: Tensor
    cols: Tensor
    mask: Tensor | None
    codes: Tensor


def patch_grid(
    sizes: Sequence[PatchSize], length: int, *, buckets: int, width: int, like: Tensor
) -> PatchGrid:
    """Return the coordinates of a batch.

    `length` is the padded length L; `buckets` the side of the position table, `width` the
    resampler's, H.

    Raises:
        ValueError: a size is empty or does not fit into `length`.
    """
    key = tuple((int(rows), int(cols)) for rows, cols in sizes)
    ids, rows, cols, mask = _layout(key, length, buckets, like.device)
    longest = max(max(size) for size in key)
    return PatchGrid(ids, rows, cols, mask, side_codes(longest, width, like))


def side_codes(longest: int, width: int, like: Tensor) -> Tensor:
    """Return codes of the positions along a side: [longest or more, width / 2]."""
    length = -(-longest // TABLE_STEP) * TABLE_STEP
    return _codes(length, width // 2, like.device, like.dtype)


@lru_cache(maxsize=CACHED_SIDES)
def position_buckets(count: int, buckets: int) -> tuple[int, ...]:
    """Bucket of each of `count` patches along a side that the position table splits in `buckets`.

    Not `i * buckets // count`: the coordinates are float32 numbers `i * float32(1 / count)` and
    rounding moves some of them down by one bucket (for 70 buckets: counts 25, 49, 50, 55, 58, …).
    The checkpoint was trained with that rounding.
    """
    if count < 1:
        raise ValueError(f"a side needs at least one patch, got {count}")
    # the step is rounded to float32 first, the borders are not: that is what was trained with
    step = float(np.float32(1) / np.float32(count))
    coordinates = torch.arange(0, COORDINATE_END, step, dtype=torch.float32, device="cpu")
    borders = torch.arange(1 / buckets, 1, 1 / buckets, dtype=torch.float32, device="cpu")
    return tuple(torch.bucketize(coordinates, borders, right=True).tolist())


def sincos_table(length: int, width: int) -> np.ndarray:
    """Sine codes, then cosine codes, of the positions 0 … length - 1: float32 [length, width].

    Raises:
        ValueError: `width` is odd.
    """
    if width % 2:
        raise ValueError(f"a sin-cos code needs an even width, got {width}")
    half = width // 2
    exponent = np.arange(half, dtype=np.float32) / np.float32(half)
    frequency = (np.float32(1) / np.float32(MAX_PERIOD) ** exponent).astype(np.float32)
    angle = np.arange(length, dtype=np.float32)[:, None] * frequency[None, :]  # [length, half]
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=1)  # [length, width]


def cached_tensor(
    values: np.ndarray, device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """A tensor fit to outlive the call that asked for it.

    Made outside inference mode: a tensor born in it could not serve a later call that records
    gradients.
    """
    with torch.inference_mode(False):
        return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=dtype)


@lru_cache(maxsize=CACHED_TABLES)
def _codes(length: int, width: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return cached_tensor(sincos_table(length, width), device, dtype)


@lru_cache(maxsize=CACHED_LAYOUTS)
def _layout(
    sizes: tuple[PatchSize, ...], length: int, buckets: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Position ids, rows, columns and mask."""
    rows = np.zeros((len(sizes), length), dtype=np.int64)
    ids, cols = np.zeros_like(rows), np.zeros_like(rows)
    mask = np.zeros(rows.shape, dtype=bool)
    for index, (n_rows, n_cols) in enumerate(sizes):
        count = n_rows * n_cols
        if n_rows < 1 or n_cols < 1 or count > length:
            raise ValueError(f"{n_rows}x{n_cols} patches do not fit into a length of {length}")
        rows[index, :count] = np.repeat(np.arange(n_rows), n_cols)
        cols[index, :count] = np.tile(np.arange(n_cols), n_rows)
        by_row = np.array(position_buckets(n_rows, buckets))[rows[index, :count]]
        by_col = np.array(position_buckets(n_cols, buckets))[cols[index, :count]]
        ids[index, :count] = by_row * buckets + by_col
        mask[index, :count] = True
    padded = None if mask.all() else cached_tensor(mask[:, None, None, :], device)
    ids_there, rows_there, cols_there = (cached_tensor(each, device) for each in (ids, rows, cols))
    return ids_there, rows_there, cols_there, padded
