"""Where the rows of one packed step belong: the device-side tensors that attention reads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

PAGE_TOKENS = 64
NO_POSITION = -1


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive rows of one sequence, and what they may attend to.

    Attributes:
        rows: in the pass.
        length: tokens of the sequence up to the last of the rows.
        pages: of these tokens, in order; a slice where they can be read and written as one.
        mask: bool [rows, length], True where a row may attend; None when one row sees all.
    """

    rows: slice
    length: int
    pages: slice | Tensor
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class PlainRows:
    """A step as plain PyTorch reads it; the same for every layer.

    Attributes:
        cos: float32 [M, D] rotary table of each row.
        sin: float32 [M, D].
        spans: of the sequences; padding belongs to none.
    """

    cos: Tensor
    sin: Tensor
    spans: list[Span]


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
    _plain: list[PlainRows] = field(default_factory=list, repr=False)

    def fresh(self) -> RowMap:
        """Return the same tensors for another pass over what they hold then."""
        return replace(self, _plain=[])

    def plain(self, tables: tuple[Tensor, Tensor], *, is_in_order: bool) -> PlainRows:
        """Return the step for plain PyTorch; it waits for the device once for all layers.

        Args:
            tables: cos and sin, float32 [P, D] each, by position.
            is_in_order: pages that follow each other can be viewed as one.
        """
        if not self._plain:
            positions = self.positions.clamp(min=0)
            cos, sin = (table.index_select(0, positions) for table in tables)
            tiles = zip(self.tile_first_row.tolist(), self.tile_rows.tolist(), strict=True)
            spans = [self._span(first, count, is_in_order) for first, count in tiles if count]
            self._plain.append(PlainRows(cos, sin, spans))
        return self._plain[0]

    def _span(self, first: int, count: int, is_in_order: bool) -> Span:
        length = int(self.positions[first + count - 1]) + 1
        used = self.page_table[int(self.sequences[first]), : -(-length // PAGE_TOKENS)]
        named = used.tolist()
        together = slice(named[0], named[0] + len(named))
        is_run = is_in_order and named == list(range(together.start, together.stop))
        mask = None
        if count > 1:
            everything = torch.ones(count, length, dtype=torch.bool, device=used.device)
            mask = everything.tril(diagonal=length - count)
        return Span(slice(first, first + count), length, together if is_run else used.long(), mask)
