"""Moves the runs of a decode pass on by one position."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _advance(
    positions, tile_rows, last_positions, has_ended, n_rows, NONE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.arange(0, BLOCK)
    is_row = row < n_rows
    at = tl.load(positions + row, mask=is_row, other=NONE)
    last = tl.load(last_positions + row, mask=is_row, other=NONE)
    ended = tl.load(has_ended + row, mask=is_row, other=1)
    goes_on = (at != NONE) & (at < last) & (ended == 0)
    tl.store(positions + row, tl.where(goes_on, at + 1, NONE), mask=is_row)
    tl.store(tile_rows + row, goes_on.to(tl.int32), mask=is_row)


def advance_positions(
    positions: Tensor, tile_rows: Tensor, last_positions: Tensor, has_ended: Tensor, none: int
) -> None:
    """Move runs on or take them out of the pass; see `ops.advance_runs`."""
    n_rows = positions.shape[0]
    _advance[(1,)](
        positions,
        tile_rows,
        last_positions,
        has_ended,
        n_rows,
        NONE=none,
        BLOCK=triton.next_power_of_2(n_rows),
    )
