"""The rows of one packed pass, described on the host and uploaded as one small tensor.

A pass that is captured in a graph has a fixed size and is padded; others are made in the exact
size. This module knows nothing of the model but how many rows there are of which conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import torch
from torch import Tensor

from MiniCPMO45.engine.kv_cache import KvHandle, KvStore
from MiniCPMO45.kernels.attention import NO_POSITION, RowMap, attend
from MiniCPMO45.kernels.device import upload
from MiniCPMO45.model.transformer import Norms

NO_VECTOR = -1
DECODE_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
PREFILL_BUCKETS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024)
DECODE_TILE_ROWS = 1
PREFILL_TILE_ROWS = 16
EXACT_PASSES_KEPT = 16  # the usual sizes of a few conversations
MOST_SEQUENCES = DECODE_BUCKETS[-1]


@dataclass(frozen=True, eq=False)
class FedRows:
    """Consecutive new rows of one conversation.

    Attributes:
        ids: id of each row; 0 where only a vector is fed.
        vectors: (index of its first row, [n, width]) of each run of rows that bring vectors.
        offset: rows of the conversation that precede these and are not counted as held yet.
    """

    kv: KvHandle
    ids: Sequence[int]
    vectors: Sequence[tuple[int, Tensor]] = ()
    offset: int = 0
    has_last: bool = True

    def split(self, count: int) -> tuple[FedRows, FedRows]:
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


P = TypeVar("P")


class PassSizes(Generic[P]):
    """Passes by size: in buckets where graphs are captured beforehand, else made as needed."""

    def __init__(self, make: Callable[[int], P], buckets: Sequence[int], *, is_exact: bool) -> None:
        """Make the passes of all buckets, the largest last, unless sizes are exact."""
        self.most = buckets[-1]
        self._kept = lru_cache(maxsize=EXACT_PASSES_KEPT)(make)
        self._passes = {} if is_exact else {size: make(size) for size in buckets}

    def of(self, count: int) -> P:
        """Return a pass that holds `count`, which is at most `most`."""
        if not self._passes:
            return self._kept(count)
        return self._passes[bucket_of(count, list(self._passes))]

    @property
    def captured(self) -> list[P]:
        """All passes to capture, largest first; none where sizes are exact."""
        return list(reversed(self._passes.values()))


@dataclass(frozen=True)
class PassLimits:
    """How much goes into one pass, which has the size of a bucket unless it is exact."""

    conversations: int
    rows: int
    is_exact: bool

    @property
    def prefill_tile_rows(self) -> int:
        """Rows attention works on at once; a plain pass takes all rows of a conversation."""
        return self.rows if self.is_exact else PREFILL_TILE_ROWS

    def decodes(self, make: Callable[[int], P]) -> PassSizes[P]:
        """Return passes of one row per conversation."""
        buckets = buckets_up_to(self.conversations, DECODE_BUCKETS)
        return PassSizes(make, buckets, is_exact=self.is_exact)

    def prefills(self, make: Callable[[int], P]) -> PassSizes[P]:
        """Return passes of any mix of rows."""
        buckets = buckets_up_to(self.rows, PREFILL_BUCKETS)
        return PassSizes(make, buckets, is_exact=self.is_exact)


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

    def __init__(self, store: KvStore, rows: int, *, rows_per_tile: int) -> None:
        """Allocate; `rows_per_tile` is 1 where every conversation brings exactly one row."""
        self.n_rows = rows
        self.n_sequences = min(rows, MOST_SEQUENCES)
        self.n_tiles = min(rows, rows // rows_per_tile + MOST_SEQUENCES)
        self._rows_per_tile = rows_per_tile
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

        `parts` are of different conversations; none leaves nothing but padding.
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


@dataclass(frozen=True, eq=False)
class PagedBatch:
    """Rows whose past is in the pages of a store, which also take the new keys and values."""

    store: KvStore
    rows: RowMap

    def attend(self, layer: int, qkv: Tensor, norms: Norms) -> Tensor:
        store = self.store
        eps, pages = store.shape.rms_norm_eps, store.layer(layer)
        return attend(qkv, norms, eps, store.tables, self.rows, *pages)
