"""Where the rows of one packed step belong: the device-side tensors that attention reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

PAGE_TOKENS = 64
NO_POSITION = -1


@dataclass(frozen=True, eq=False)
class RowMap:
    """Rows, the pages of their sequences, and the tiles attention works on.

    All tensors are int32 on the device of the rows and keep their shape and address for the life
    of a captured graph; their contents may change between replays. A row may attend to the keys
    at positions 0 up to its own. Padding rows belong to no tile.

    Attributes:
        positions: [M] position of each row in its sequence; NO_POSITION marks padding.
        sequences: [M] row of `page_table` that holds the row's sequence; any valid one for padding.
        page_table: [S, max_pages] page of each PAGE_TOKENS positions of a sequence.
        tile_first_row: [T] first row of each tile.
        tile_rows: [T] consecutive rows of one sequence in the tile, at consecutive positions,
            at most `rows_per_tile`; 0 marks padding.
        rows_per_tile: 1 where every sequence brings one row, else a power of two.
    """

    positions: Tensor
    sequences: Tensor
    page_table: Tensor
    tile_first_row: Tensor
    tile_rows: Tensor
    rows_per_tile: int
