"""The cache of one conversation: growth, holes, limits, and giving memory back.

A growing pool, as on a CPU, a fixed one, as on a card, and one of 8-bit codes are held to the same
rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.engine.kv_cache import CacheFullError, KvHandle, KvRows, KvStore, cached_bytes
from MiniCPMO45.kernels.cached_rows import decode_rows, encode_rows
from MiniCPMO45.kernels.products import rotate
from tests.fakes.decoders import decoder_shape, held_tokens

shape_for = partial(decoder_shape, 8, layers=2, heads=4, kv_heads=2, head_dim=4)
SHAPE = shape_for(positions=200)
CPU = torch.device("cpu")
PAGE_TOKENS = 2
GROWING, FIXED, CODED = "growing", "fixed", "coded"
all_pools = pytest.mark.parametrize("kind", [GROWING, FIXED, CODED])
MOST_ERROR = {GROWING: 1e-4, FIXED: 1e-4, CODED: 0.1}  # of a key after many moves


def _store(kind: str, *, limit: int = SHAPE.max_position_embeddings) -> KvStore:
    is_growing = kind != FIXED
    pages = 1 if is_growing else 200
    return _pool(
        shape_for(positions=limit), pages=pages, can_grow=is_growing, has_codes=kind == CODED
    )


def _pool(
    shape: DecoderConfig = SHAPE,
    *,
    pages: int,
    can_grow: bool = False,
    has_codes: bool = False,
    slots: int = 8,
) -> KvStore:
    return KvStore(
        shape,
        device=CPU,
        dtype=torch.float32,
        pages=pages,
        can_grow=can_grow,
        has_codes=has_codes,
        page_tokens=PAGE_TOKENS,
        slots=slots,
    )


def _bare(label: int, layer: int) -> tuple[Tensor, Tensor]:
    """Key before rotation and value of a token, each [1, kv heads, d]."""
    generator = torch.Generator().manual_seed(1000 * layer + label)
    key, value = torch.randn(2, 1, 2, SHAPE.head_dim, generator=generator)
    return key, value


def _rows(kv: KvHandle, labels: list[int], first: int) -> KvRows:
    """Keys and values of tokens, rotated for positions from `first` on."""
    positions = torch.arange(first, first + len(labels))
    cos, sin = kv.store.rope.tables(positions, torch.float32)
    keys, values = [], []
    for layer in range(SHAPE.num_hidden_layers):
        bare = [_bare(label, layer) for label in labels]
        keys.append(rotate(torch.cat([key for key, _ in bare]), cos, sin).transpose(0, 1))
        values.append(torch.cat([value for _, value in bare]).transpose(0, 1))
    rows = torch.stack((torch.stack(keys), torch.stack(values)))
    if kv.store.scales is None:
        return KvRows(rows[0], rows[1], first)
    codes, scales = encode_rows(rows)
    return KvRows(codes[0], codes[1], first, scales)


def _read(rows: KvRows) -> tuple[Tensor, Tensor]:
    if rows.scales is None:
        return rows.keys, rows.values
    keys, values = decode_rows(torch.stack((rows.keys, rows.values)), rows.scales, torch.float32)
    return keys, values


def _append(kv: KvHandle, labels: list[int]) -> None:
    kv.put(_rows(kv, labels, kv.length))


def _filled(store: KvStore, count: int) -> KvHandle:
    """Open a cache with the tokens 0, 1, 2, ..."""
    kv = store.open()
    if count:
        _append(kv, list(range(count)))
    return kv


def _assert_holds(kv: KvHandle, labels: list[int], most_error: float = 1e-4) -> None:
    """Exactly these tokens, rotated for positions 0, 1, 2, ..."""
    assert kv.length == len(labels)
    if not labels:
        return
    (keys, values), wanted = _read(kv.rows(0, kv.length)), _read(_rows(kv, labels, 0))
    torch.testing.assert_close(keys, wanted[0], atol=most_error, rtol=0)
    assert torch.equal(values, wanted[1])


steps = st.lists(
    st.tuples(st.sampled_from(["append", "drop", "truncate", "lift"]), st.integers(0, 10**6)),
    max_size=14,
)


@all_pools
@given(steps)
def test_whatever_happens_positions_are_dense_and_the_right_tokens_stay(
    kind: str, steps: list[tuple[str, int]]
) -> None:
    kv, next_label = _store(kind).open(), 0
    labels: list[int] = []
    for action, number in steps:
        start = number % (len(labels) + 1)
        if action == "append":
            new = list(range(next_label, next_label + number % 9 + 1))
            next_label += len(new)
            _append(kv, new)
            labels += new
        elif action == "drop" and start < len(labels):
            stop = start + 1 + number // 7 % (len(labels) - start)
            kv.drop(start, stop)
            del labels[start:stop]
        elif action == "truncate":
            kv.truncate(start)
            del labels[start:]
        elif action == "lift":  # take a tail out, write something else, put the tail behind it
            tail = kv.rows(start, kv.length)
            kv.truncate(start)
            _append(kv, [next_label])
            kv.put(tail)
            labels.insert(start, next_label)
            next_label += 1
        assert kv.length == len(labels)
    _assert_holds(kv, labels, MOST_ERROR[kind])


def test_growth_keeps_the_contents_and_is_amortised() -> None:
    store = _store(GROWING)
    kv, labels, sizes = store.open(), list(range(60)), set()
    for label in labels:
        _append(kv, [label])
        sizes.add(store.pool.shape[1])
    _assert_holds(kv, labels)
    assert len(sizes) <= math.ceil(math.log2(60 / PAGE_TOKENS)) + 1


@pytest.mark.parametrize("kind", [GROWING, FIXED])
def test_a_lone_conversation_holds_pages_in_order(kind: str) -> None:
    """So that a growing pool can be read without a copy, also after tokens were dropped."""
    kv = _store(kind).open()
    for count in (9, 14, 3):
        _append(kv, list(range(count)))
        kv.drop(2, kv.length - 3)
        assert _pages_of(kv) == list(range(len(_pages_of(kv))))
        assert kv.capacity - kv.length < PAGE_TOKENS


@all_pools
def test_growth_stops_at_the_limit(kind: str) -> None:
    kv = _filled(_store(kind, limit=10), 9)
    assert kv.capacity <= 10
    _append(kv, [9])
    _assert_holds(kv, list(range(10)))


@all_pools
@given(held=st.integers(0, 10), wanted=st.integers(11, 500))
def test_a_full_context_leaves_the_cache_as_it_was(kind: str, held: int, wanted: int) -> None:
    kv = _filled(_store(kind, limit=10), held)
    capacity = kv.capacity
    with pytest.raises(CacheFullError, match="10"):
        kv.reserve(wanted)
    assert kv.capacity == capacity
    _assert_holds(kv, list(range(held)))


@all_pools
def test_an_empty_handle_costs_nothing_and_a_full_one_its_buffer(kind: str) -> None:
    store = _store(kind)
    kv = store.open()
    assert held_tokens(store) == kv.capacity == 0
    _append(kv, [1, 2, 3])
    assert held_tokens(store) == kv.capacity == 4


@all_pools
def test_one_token_costs_keys_and_values_of_every_layer(kind: str) -> None:
    row_bytes = {GROWING: 4 * 4, FIXED: 4 * 4, CODED: 4 + 4}  # codes and one scale
    assert cached_bytes(SHAPE, _store(kind).pool.dtype) == 2 * 2 * 2 * row_bytes[kind]


@all_pools
def test_lifted_rows_are_a_copy(kind: str) -> None:
    kv = _filled(_store(kind), 3)
    lifted = kv.rows(1, 3)
    before = lifted.keys.clone()
    kv.truncate(0)
    _append(kv, [7, 8, 9])
    assert torch.equal(lifted.keys, before)


@all_pools
def test_what_was_cut_off_and_put_back_is_the_same_to_the_bit(kind: str) -> None:
    kv = _filled(_store(kind), 4)
    before = kv.rows(0, 4)
    tail = kv.rows(2, 4)
    kv.truncate(2)
    _append(kv, [7, 8, 9])
    kv.truncate(2)
    kv.put(tail)
    after = kv.rows(0, 4)
    assert torch.equal(after.keys, before.keys) and torch.equal(after.values, before.values)
    assert before.scales is None or torch.equal(after.scales, before.scales)  # type: ignore[arg-type]


@all_pools
@pytest.mark.parametrize(
    ("refused", "arguments"),
    [
        *((KvHandle.drop, span) for span in [(2, 2), (3, 1), (-1, 2), (0, 6), (5, 6)]),
        *((KvHandle.truncate, (length,)) for length in (-1, 6)),
        *((KvHandle.rows, span) for span in [(2, 1), (-1, 2), (0, 6)]),
    ],
)
def test_what_is_not_there_is_neither_dropped_nor_lifted(
    kind: str, refused: Callable[..., object], arguments: tuple[int, ...]
) -> None:
    """Nor is nothing dropped."""
    kv = _filled(_store(kind), 5)
    with pytest.raises(ValueError, match="cannot|outside"):
        refused(kv, *arguments)
    _assert_holds(kv, list(range(5)))


@all_pools
def test_handles_do_not_share_rows(kind: str) -> None:
    store = _store(kind)
    one, other = store.open(), store.open()
    _append(one, [1, 2])
    _append(other, [3])
    _append(one, [4])
    _assert_holds(one, [1, 2, 4])
    _assert_holds(other, [3])


def test_forgetting_gives_whole_pages_back() -> None:
    store = _pool(pages=10)
    kv = _filled(store, 9)
    assert (store.free_pages, kv.capacity) == (5, 10)
    kv.truncate(5)
    assert (store.free_pages, kv.capacity) == (7, 6)
    kv.drop(0, 4)
    assert (store.free_pages, kv.capacity) == (9, 2)
    _assert_holds(kv, [4])
    kv.close()
    assert (store.free_pages, held_tokens(store), set(store.handles)) == (10, 0, set())
    kv.close()  # once more does no harm
    assert store.free_pages == 10


def test_a_forgotten_handle_gives_its_pages_and_its_place_back() -> None:
    store = _pool(pages=4, slots=1)
    for _ in range(3):
        kv = _filled(store, 8)
        del kv
    assert store.free_pages == 4


def test_a_used_up_pool_refuses_and_leaves_every_cache_as_it_was() -> None:
    store = _pool(pages=3)
    one, other = store.open(), store.open()
    _append(one, [1, 2, 3])
    _append(other, [4, 5])
    with pytest.raises(CacheFullError, match="6 tokens, is used up"):
        _append(other, [6])
    _assert_holds(one, [1, 2, 3])
    _assert_holds(other, [4, 5])
    one.close()
    _append(other, [6])
    _assert_holds(other, [4, 5, 6])


def test_more_caches_than_places_are_refused() -> None:
    store = _pool(pages=8, slots=2)
    held = [store.open() for _ in range(3)]
    _append(held[0], [1])
    _append(held[1], [2])
    with pytest.raises(CacheFullError, match="all 2 caches"):
        _append(held[2], [3])
    held[0].close()
    _append(held[2], [3])
    _assert_holds(held[2], [3])


def test_a_cache_that_was_refused_pages_keeps_no_place() -> None:
    store = _pool(pages=2, slots=1)
    refused, other = store.open(), store.open()
    with pytest.raises(CacheFullError, match="used up"):
        refused.reserve(5)
    _append(other, [1])
    _assert_holds(other, [1])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_page_table_names_each_page_once(lengths: list[int]) -> None:
    store = _pool(pages=2, can_grow=True)
    held = [_filled(store, length) for length in lengths]
    named = [page for kv in held for page in _pages_of(kv)]
    assert len(set(named)) == len(named) == store.pool.shape[1] - store.free_pages


def _pages_of(kv: KvHandle) -> list[int]:
    used = kv.capacity // PAGE_TOKENS
    return kv.store.page_table[kv.slot, :used].tolist()


def test_a_warm_up_leaves_nothing_behind() -> None:
    store = _pool(pages=12)
    store.warm_up()
    assert (store.free_pages, len(store.handles)) == (12, 0)
