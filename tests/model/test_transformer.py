"""The decoder with its cache: feeding piecewise, packed, moved and dropped gives what it should.

Both decoders are tried: the language model (grouped heads, norms on queries and keys) and the
speech decoder (neither).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from MiniCPMO45.configuration_minicpmo import DecoderConfig
from MiniCPMO45.engine.kv_cache import (
    CacheFullError,
    FedRows,
    KvHandle,
    KvStore,
    PackedRows,
    Rows,
    reserve_all,
)
from MiniCPMO45.kernels.products import JoinedWeight, Linear
from MiniCPMO45.model.transformer import Decoder, SelfAttention
from tests.model.stock import stock_decoder
from tests.model.toy import Toy, assert_close
from training.nano.model import PaddedBatch

CPU = torch.device("cpu")
LENGTH = 24


class Bench:
    """A decoder, a store of its own and random input rows."""

    def __init__(self, decoder: Decoder, shape: DecoderConfig) -> None:
        self.decoder = decoder
        self.store = KvStore(shape, device=CPU, dtype=torch.float32, pages=1, can_grow=True)
        generator = torch.Generator().manual_seed(1)
        self.rows = torch.randn(64, shape.hidden_size, generator=generator)

    def feed(self, kv: KvHandle, rows: Tensor) -> Tensor:
        return self.feed_packed([(kv, rows)])[0]

    @torch.inference_mode()
    def feed_packed(self, parts: list[tuple[KvHandle, Tensor]]) -> tuple[Tensor, ...]:
        counts = [len(rows) for _, rows in parts]
        reserve_all([(kv, len(rows)) for kv, rows in parts])
        packed = PackedRows(self.store, sum(counts), rows_per_tile=sum(counts))
        packed.load([FedRows(kv, Rows((0,) * len(rows))) for kv, rows in parts])
        states = self.decoder(torch.cat([rows for _, rows in parts]), packed)
        for kv, rows in parts:
            kv.advance(len(rows))
        return states.split(counts)

    def prefilled(self, rows: Tensor) -> KvHandle:
        kv = self.store.open()
        self.feed(kv, rows)
        return kv

    @torch.inference_mode()
    def drop(self, kv: KvHandle, start: int, stop: int) -> None:
        kv.drop(start, stop)


@pytest.fixture(params=["language model", "speech decoder"])
def bench(request: pytest.FixtureRequest, toy: Toy) -> Bench:
    return _bench(toy, request.param)


def _bench(toy: Toy, which: str) -> Bench:
    if which == "language model":
        decoder, shape = toy.model.llm.model, toy.config
    else:
        decoder, shape = toy.model.tts.model, toy.config.tts_config
    return Bench(decoder, shape)


def _assert_same_cache(one: KvHandle, other: KvHandle) -> None:
    assert one.length == other.length
    mine, theirs = one.rows(0, one.length), other.rows(0, other.length)
    assert_close(mine.keys, theirs.keys)
    assert_close(mine.values, theirs.values)


cuts = st.lists(st.integers(1, LENGTH - 1), max_size=LENGTH, unique=True).map(sorted)


@pytest.mark.parametrize("which", ["language model", "speech decoder"])
@settings(max_examples=max(1, settings().max_examples * 2 // 5))  # each feeds a model many times
@given(cuts=cuts)
def test_piecewise_feeding_equals_one_concatenated_feed(
    which: str, toy: Toy, cuts: list[int]
) -> None:
    bench = _bench(toy, which)
    whole, pieces = bench.store.open(), bench.store.open()
    rows = bench.rows[:LENGTH]
    expected = bench.feed(whole, rows)
    found = [bench.feed(pieces, piece) for piece in torch.tensor_split(rows, cuts)]
    assert_close(torch.cat(found), expected)
    _assert_same_cache(pieces, whole)


ragged = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=5)


@pytest.mark.parametrize("which", ["language model", "speech decoder"])
@settings(max_examples=max(1, settings().max_examples * 2 // 5))  # each feeds a model many times
@given(lengths=ragged)
def test_packed_equals_alone_at_ragged_lengths(
    which: str, toy: Toy, lengths: list[tuple[int, int]]
) -> None:
    """(tokens held, tokens new) per conversation; one new token takes the path without a mask."""
    bench = _bench(toy, which)
    alone: list[KvHandle] = []
    packed: list[KvHandle] = []
    parts = []
    for index, (held, new) in enumerate(lengths):
        rows = bench.rows.roll(7 * index, 0)
        for group in (alone, packed):
            group.append(bench.prefilled(rows[:held]) if held else bench.store.open())
        parts.append(rows[held : held + new])
    expected = [bench.feed(kv, rows) for kv, rows in zip(alone, parts, strict=True)]
    found = bench.feed_packed(list(zip(packed, parts, strict=True)))
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs)
    for one, other in zip(packed, alone, strict=True):
        _assert_same_cache(one, other)


def test_a_later_row_changes_nothing_before_it(bench: Bench) -> None:
    rows = bench.rows[:8]
    changed = rows.clone()
    changed[5] += 1.0
    one, other = (bench.feed(bench.store.open(), each) for each in (rows, changed))
    assert_close(one[:5], other[:5])
    assert (one[5:] - other[5:]).abs().amax(-1).min() > 1e-3


def test_one_conversation_may_occur_only_once_in_a_batch(bench: Bench) -> None:
    kv = bench.store.open()
    with pytest.raises(ValueError, match="only once"):
        bench.feed_packed([(kv, bench.rows[:2]), (kv, bench.rows[:2])])
    assert kv.length == 0


def test_a_full_context_in_a_batch_leaves_every_cache_as_it_was(toy: Toy) -> None:
    decoder = toy.model.llm.model
    short = deepcopy(toy.config)
    short.max_position_embeddings = 10
    bench = Bench(decoder, short)
    room, full = bench.prefilled(bench.rows[:2]), bench.prefilled(bench.rows[:9])
    before = [kv.rows(0, kv.length) for kv in (room, full)]
    with pytest.raises(CacheFullError):
        bench.feed_packed([(room, bench.rows[:2]), (full, bench.rows[:2])])
    for kv, rows in zip((room, full), before, strict=True):
        now = kv.rows(0, kv.length)
        assert torch.equal(now.keys, rows.keys)
        assert torch.equal(now.values, rows.values)
    bench.feed(full, bench.rows[9:10])  # what fits still goes in


ranges = st.tuples(st.integers(0, LENGTH - 1), st.integers(1, LENGTH)).filter(lambda r: r[0] < r[1])


@pytest.mark.parametrize("which", ["language model", "speech decoder"])
@settings(max_examples=max(1, settings().max_examples * 2 // 5))  # each feeds a model many times
@given(dropped=ranges)
def test_a_dropped_range_leaves_the_first_layer_as_a_fresh_prefill(
    which: str, toy: Toy, dropped: tuple[int, int]
) -> None:
    """The first layer's keys and values see no other token, so nothing of the range is left there.

    Deeper ones were computed while the range could still be attended to. There the values stay
    bit for bit, and keys behind the range are the old ones rotated to their new place.
    """
    bench = _bench(toy, which)
    start, stop = dropped
    rows = bench.rows[:LENGTH]
    kv = bench.prefilled(rows)
    before = kv.rows(0, LENGTH)
    bench.drop(kv, start, stop)
    remaining = torch.cat((rows[:start], rows[stop:]))
    assert kv.length == len(remaining)
    after = kv.rows(0, kv.length)
    if len(remaining):
        fresh = bench.prefilled(remaining).rows(0, len(remaining))
        assert_close(after.keys[0], fresh.keys[0])
        assert_close(after.values[0], fresh.values[0])
    kept = torch.cat((before.values[:, :, :start], before.values[:, :, stop:]), dim=2)
    assert torch.equal(after.values, kept)
    moved = bench.store.rope.move(before.keys[:, :, stop:], stop, start)
    assert torch.equal(after.keys[:, :, :start], before.keys[:, :, :start])
    assert_close(after.keys[:, :, start:], moved)


def test_a_dropped_tail_leaves_every_layer_as_a_fresh_prefill(bench: Bench) -> None:
    """Nothing that stays has seen it."""
    kv = bench.prefilled(bench.rows[:LENGTH])
    bench.drop(kv, 10, LENGTH)
    _assert_same_cache(kv, bench.prefilled(bench.rows[:10]))


def test_the_next_token_after_a_drop_sits_at_the_length(bench: Bench) -> None:
    kv = bench.prefilled(bench.rows[:LENGTH])
    bench.drop(kv, 3, 11)
    bench.feed(kv, bench.rows[LENGTH : LENGTH + 1])
    remaining = torch.cat((bench.rows[:3], bench.rows[11 : LENGTH + 1]))
    fresh = bench.prefilled(remaining)
    mine, theirs = (each.rows(each.length - 1, each.length) for each in (kv, fresh))
    assert_close(mine.keys[0], theirs.keys[0])


def test_attention_after_a_move_is_as_if_tokens_had_always_been_there(bench: Bench) -> None:
    """Moving everything together changes no answer: rotary attention sees distances only."""
    rows = bench.rows[:LENGTH]
    near, far = bench.prefilled(rows), bench.store.open()
    taken = near.rows(0, LENGTH)
    with torch.inference_mode():
        far.put(replace(taken, keys=bench.store.rope.move(taken.keys, 0, 100), start=100))
    query = bench.rows[LENGTH : LENGTH + 2]
    assert_close(bench.feed(far, query), bench.feed(near, query))


def test_growth_in_the_middle_of_a_conversation_changes_nothing(bench: Bench) -> None:
    small, roomy = bench.store.open(), bench.store.open()
    roomy.reserve(200)
    for row in bench.rows.repeat(2, 1)[:100]:
        one, other = (bench.feed(kv, row[None]) for kv in (small, roomy))
        assert torch.equal(one, other)
    _assert_same_cache(small, roomy)


def test_the_layers_are_those_of_the_library_with_gradients(bench: Bench) -> None:
    """Hidden states and gradients of padded whole sequences, as in training."""
    decoder, shape = deepcopy(bench.decoder).requires_grad_(True), bench.store.shape
    stock = stock_decoder(decoder, shape)
    rows = bench.rows[:24].reshape(2, 12, -1)
    batch = PaddedBatch.build(2, 12, shape, CPU)
    states = decoder(rows.flatten(0, 1), batch).unflatten(0, (2, 12))
    expected = stock(inputs_embeds=rows, use_cache=False).last_hidden_state
    assert_close(states, expected)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(3))
    (states * weights).sum().backward()
    (expected * weights).sum().backward()
    theirs = dict(stock.named_parameters())
    for name, parameter in decoder.named_parameters():
        if not name.startswith("embed_tokens"):
            assert parameter.grad is not None
            assert_close(parameter.grad, theirs[name].grad)


def test_joined_weights_are_the_layers_own() -> None:
    """Nothing is held twice, and what is loaded into a layer reaches the joined matrix."""
    linears = [Linear(6, size) for size in (4, 2, 2)]
    before = [linear.weight.clone() for linear in linears]
    layers: dict[str, nn.Module] = {str(index): each for index, each in enumerate(linears)}
    joined = JoinedWeight(layers, *layers)
    joined.fuse()
    with torch.inference_mode():
        [fused] = joined.tensors()
        joined.fuse()
        assert joined.tensors()[0].data_ptr() == fused.data_ptr(), "fused twice"
    assert torch.equal(fused, torch.cat(before))
    storage = fused.untyped_storage().data_ptr()
    assert {each.weight.untyped_storage().data_ptr() for each in linears} == {storage}
    linears[1].load_state_dict({"weight": torch.full((2, 6), 7.0)})
    assert fused[4:6].eq(7.0).all()
    linears[0].load_state_dict({"weight": torch.full((4, 6), 5.0)}, assign=True)
    with torch.inference_mode():
        assert torch.equal(joined.tensors()[0], torch.cat([each.weight for each in linears]))


@pytest.mark.parametrize("name", ["q_proj", "k_proj"])
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_replaced_layer_takes_part_in_the_product(name: str, is_fused: bool) -> None:
    attention = SelfAttention(8, 2, key_bias=True)
    if is_fused:
        attention.qkv.fuse()
    attention.set_submodule(name, nn.Linear(8, 8))
    with torch.inference_mode():
        weight, bias = attention.qkv.tensors()
    layers = attention.q_proj, attention.k_proj, attention.v_proj
    assert torch.equal(weight, torch.cat([each.weight for each in layers]))
    assert torch.equal(bias, torch.cat([each.bias for each in layers]))
