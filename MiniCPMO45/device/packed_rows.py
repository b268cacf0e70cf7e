"""The rows of one packed pass, described on the host and uploaded as one small tensor.

A pass has a fixed size, so that it can be a captured graph: what is missing is padding. Knows
nothing of the model but how many rows there are of which conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.device.paged_kv import PagedKvHandle, PagedKvStore
from MiniCPMO45.device.row_map import NO_POSITION, RowMap
from MiniCPMO45.device.upload import upload

NO_VECTOR = -1
DECODE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PREFILL_BUCKETS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
PREFILL_TILE_ROWS = 16
MOST_SEQUENCES = DECODE_BUCKETS[-1]


@dataclass(frozen=True, eq=False)
class FedRows:
    """Consecutive new rows of one conversation.

    Attributes:
        kv: the conversation's cache; it has room for them.
        ids: id of each row; 0 where a vector alone is fed.
        vectors: (index of its first row, [n, width]) of each run of rows that bring vectors.
        offset: rows of the conversation that precede these and are not counted as held yet.
        has_last: the conversation brings no more rows.
    """

    kv: PagedKvHandle
    ids: Sequence[int]
    vectors: Sequence[tuple[int, Tensor]] = ()
    offset: int = 0
    has_last: bool = True

    def split(self, count: int) -> tuple[FedRows, FedRows]:
        """Cut into the first `count` rows and the rest."""
        first, rest = [], []
        for start, rows in self.vectors:
            inside = min(max(count - start, 0), len(rows))
            if inside:
                first.append((start, rows[:inside]))
            if inside < len(rows):
                rest.append((max(start - count, 0), rows[inside:]))
        return (
            FedRows(self.kv, self.ids[:count], first, self.offset, has_last=False),
            FedRows(self.kv, self.ids[count:], rest, self.offset + count, self.has_last),
        )


def passes(
    parts: Sequence[FedRows], most_rows: int, most_sequences: int
) -> Iterator[list[FedRows]]:
    """Divide conversations into passes of at most `most_rows` rows of `most_sequences`.

    What does not fit is cut; the rows of one conversation stay in order.
    """
    group: list[FedRows] = []
    room = most_rows
    for part in parts:
        rest = part
        while len(rest.ids) > room:
            if room:
                first, rest = rest.split(room)
                group.append(first)
            yield group
            group, room = [], most_rows
        group.append(rest)
        room -= len(rest.ids)
        if len(group) == most_sequences:
            yield group
            group, room = [], most_rows
    if group:
        yield group


def bucket_of(count: int, buckets: Sequence[int]) -> int:
    """Return the smallest bucket that holds `count`; `count` is at most the largest."""
    return next(bucket for bucket in buckets if bucket >= count)


def buckets_up_to(most: int, buckets: Sequence[int]) -> list[int]:
    """Return the buckets up to the first that holds `most`."""
    return [bucket for bucket in buckets if bucket <= bucket_of(most, buckets)]


class PackedRows:
    """Device tensors that say what each row of a pass is; their addresses never change.

    Attributes:
        ids: int32 [rows] id of each row, 0 for padding.
        vector_of_row: int32 [rows], which of the pass's vectors a row brings; NO_VECTOR for none.
        last_rows: int32 [sequences] last row of each conversation, 0 for padding.
        map: where rows belong, as attention reads it.
    """

    def __init__(self, store: PagedKvStore, rows: int, *, is_decode: bool) -> None:
        """Allocate.

        Args:
            store: whose page table is read.
            rows: rows of a pass.
            is_decode: every conversation brings exactly one row.
        """
        self.n_rows = rows
        self.n_sequences = min(rows, MOST_SEQUENCES)
        self.n_tiles = rows if is_decode else min(rows, rows // PREFILL_TILE_ROWS + MOST_SEQUENCES)
        self._rows_per_tile = 1 if is_decode else PREFILL_TILE_ROWS
        sizes = (rows, rows, rows, rows, self.n_tiles, self.n_tiles, self.n_sequences)
        self._words = torch.zeros(sum(sizes), dtype=torch.int32, device=store.device)
        self.ids, self.vector_of_row, *places, self.last_rows = self._words.split(sizes)
        positions, sequences, first_rows, tile_rows = places
        self.map = RowMap(
            positions, sequences, store.page_table, first_rows, tile_rows, self._rows_per_tile
        )
        self.load(())

    def load(self, parts: Sequence[FedRows]) -> None:
        """Describe a pass: one upload, in the order of the current stream.

        Args:
            parts: of different conversations, at most as many rows and parts as there is room for;
                none leaves nothing but padding.
        """
        ids: list[int] = []
        vector_of_row = [NO_VECTOR] * self.n_rows
        n_vectors = 0
        positions: list[int] = []
        sequences: list[int] = []
        tiles: list[tuple[int, int]] = []
        last_rows: list[int] = []
        for part in parts:
            start, count = len(ids), len(part.ids)
            first = part.kv.length + part.offset
            ids += part.ids
            positions += range(first, first + count)
            sequences += [part.kv.slot] * count
            step = self._rows_per_tile
            tiles += [(start + at, min(step, count - at)) for at in range(0, count, step)]
            last_rows.append(start + count - 1)
            for at, rows in part.vectors:
                first_row, after = start + at, n_vectors + len(rows)
                vector_of_row[first_row : first_row + len(rows)] = range(n_vectors, after)
                n_vectors = after
        upload(
            [
                *_padded(ids, self.n_rows, 0),
                *vector_of_row,
                *_padded(positions, self.n_rows, NO_POSITION),
                *_padded(sequences, self.n_rows, 0),
                *_padded([first for first, _ in tiles], self.n_tiles, 0),
                *_padded([count for _, count in tiles], self.n_tiles, 0),
                *_padded(last_rows, self.n_sequences, 0),
            ],
            self._words,
        )


def gather_vectors(parts: Sequence[FedRows], into: Tensor) -> None:
    """Copy the vectors of a pass one after the other to the front of `into` [rows, width]."""
    vectors = [rows.to(into.dtype) for part in parts for _, rows in part.vectors]
    if vectors:
        torch.cat(vectors, out=into[: sum(len(rows) for rows in vectors)])


def _padded(values: list[int], size: int, padding: int) -> list[int]:
    assert len(values) <= size
    return values + [padding] * (size - len(values))
