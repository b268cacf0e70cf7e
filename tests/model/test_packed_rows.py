"""Packed passes contain every row once and in order."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from MiniCPMO45.engine.kv_cache import (
    DECODE_BUCKETS,
    NO_VECTOR,
    PREFILL_TILE_ROWS,
    FedRows,
    KvStore,
    PackedRows,
    Rows,
    bucket_of,
    buckets_up_to,
    passes,
)
from MiniCPMO45.kernels.attention import NO_POSITION
from tests.fakes.decoders import decoder_shape

WIDTH = 3
SHAPE = decoder_shape(WIDTH, positions=400)

pieces = st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=1, max_size=4)


def _store() -> KvStore:
    cpu = torch.device("cpu")
    return KvStore(SHAPE, device=cpu, dtype=torch.float32, pages=4, can_grow=True)


def _fed_rows(store: KvStore, layout: list[tuple[bool, int]], first: int, held: int = 0) -> FedRows:
    """Rows numbered from `first`; a vector holds its row's number."""
    pieces: list[list[int] | Tensor] = []
    for is_vector, count in layout:
        numbers = list(range(first, first + count))
        vectors = torch.tensor(numbers, dtype=torch.float32)[:, None].expand(count, WIDTH)
        pieces.append(vectors if is_vector else numbers)
        first += count
    kv, rows = store.open(), Rows.of(*pieces)
    kv.reserve(held + len(rows))
    kv.advance(held)
    return FedRows(kv, rows)


def _numbers(part: FedRows) -> list[int]:
    numbers = list(part.rows.ids)
    for at, vectors in part.rows.vectors:
        numbers[at : at + len(vectors)] = [int(vector[0]) for vector in vectors]
    return numbers


@given(
    layouts=st.lists(pieces, min_size=1, max_size=6),
    most_rows=st.integers(1, 20),
    most_sequences=st.integers(1, 4),
)
def test_passes_hold_every_row_once_and_in_order(
    layouts: list[list[tuple[bool, int]]], most_rows: int, most_sequences: int
) -> None:
    store = _store()
    parts = [_fed_rows(store, layout, 100 * n + 1) for n, layout in enumerate(layouts)]
    seen: dict[int, list[int]] = {id(part.kv): [] for part in parts}
    lasts: list[int] = []
    for group in passes(parts, most_rows, most_sequences):
        assert 0 < sum(len(part) for part in group) <= most_rows
        assert len({id(part.kv) for part in group}) == len(group) <= most_sequences
        for part in group:
            assert part.offset == len(seen[id(part.kv)]), "a row would get another's position"
            seen[id(part.kv)] += _numbers(part)
            lasts += [id(part.kv)] * part.has_last
    assert list(seen.values()) == [_numbers(part) for part in parts]
    assert sorted(lasts) == sorted(seen)


@given(layouts=st.lists(pieces, min_size=1, max_size=5), held=st.integers(0, 70))
def test_every_row_knows_its_place(layouts: list[list[tuple[bool, int]]], held: int) -> None:
    store = _store()
    parts = [_fed_rows(store, layout, 1000 * n + 1, held) for n, layout in enumerate(layouts)]
    n_rows = sum(map(len, parts))
    size = bucket_of(n_rows, (16, 64, 256))
    vectors = torch.zeros(size, WIDTH)
    packed = PackedRows(store, size, rows_per_tile=PREFILL_TILE_ROWS, vectors=vectors)
    packed.load(parts)
    place = packed.map
    row = 0
    for number, part in enumerate(parts):
        for index, expected in enumerate(_numbers(part)):
            vector = int(packed.vector_of_row[row])
            found = packed.ids[row] if vector == NO_VECTOR else vectors[vector, 0]
            assert int(found) == expected
            assert int(place.positions[row]) == held + index
            assert int(place.sequences[row]) == part.kv.slot
            row += 1
        assert int(packed.last_rows[number]) == row - 1
    assert (place.positions[row:] == NO_POSITION).all()
    assert (packed.vector_of_row[row:] == NO_VECTOR).all()


@given(layouts=st.lists(pieces, min_size=1, max_size=5))
def test_tiles_cover_every_row_once_and_never_two_conversations(
    layouts: list[list[tuple[bool, int]]],
) -> None:
    store = _store()
    parts = [_fed_rows(store, layout, 1000 * n + 1) for n, layout in enumerate(layouts)]
    n_rows = sum(map(len, parts))
    size = bucket_of(n_rows, (16, 64, 256))
    vectors = torch.zeros(size, WIDTH)
    packed = PackedRows(store, size, rows_per_tile=PREFILL_TILE_ROWS, vectors=vectors)
    packed.load(parts)
    covered: list[int] = []
    tiles = zip(packed.map.tile_first_row.tolist(), packed.map.tile_rows.tolist(), strict=True)
    for first, count in tiles:
        assert count <= packed.map.rows_per_tile
        covered += range(first, first + count)
        assert len(set(packed.map.sequences[first : first + count].tolist())) <= 1
    assert covered == list(range(n_rows))


def test_a_decode_pass_has_a_tile_per_row() -> None:
    store = _store()
    parts = [_fed_rows(store, [(False, 1)], n, held=n) for n in range(3)]
    packed = PackedRows(store, bucket_of(3, DECODE_BUCKETS), rows_per_tile=1)
    packed.load(parts)
    assert packed.map.rows_per_tile == 1
    assert packed.map.tile_rows.tolist() == [1, 1, 1, 0]
    assert packed.map.tile_first_row.tolist()[:3] == [0, 1, 2]
    assert packed.map.positions.tolist() == [0, 1, 2, NO_POSITION]


def test_buckets_end_with_the_first_that_is_large_enough() -> None:
    assert buckets_up_to(5, DECODE_BUCKETS) == [1, 2, 4, 8]
    assert buckets_up_to(8, DECODE_BUCKETS) == [1, 2, 4, 8]
    assert buckets_up_to(1, DECODE_BUCKETS) == [1]
