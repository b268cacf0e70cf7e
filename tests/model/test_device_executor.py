"""The engine without graphs gives the plain executor's answers, and fails as softly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from core.processors.device import cache_room
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.device import ops
from MiniCPMO45.device.decoder_runner import fuse
from MiniCPMO45.device.engine import CardMemory, DeviceExecutor, make_executor, most_tokens
from MiniCPMO45.device.row_map import PAGE_TOKENS
from MiniCPMO45.executor import Executor
from MiniCPMO45.kv_cache import CacheFullError, KvHandle
from MiniCPMO45.modeling_minicpmo_unified import UnifiedModel
from MiniCPMO45.steps import (
    ChooseToken,
    DrawCodes,
    DrawnCodes,
    Embeddings,
    LlmForward,
    SpeechCodes,
    TokenIds,
    run_alone,
)
from MiniCPMO45.transformer import DecoderLayer
from tests.model.device_requests import (
    GREEDY_CODES,
    assert_same_cache,
    assert_same_output,
    assert_same_text,
    code_rounds,
    greedy_decisions,
    text_rounds,
    vectors,
)
from tests.model.talks import Talk
from tests.model.toy import Toy


@pytest.fixture(scope="module")
def both(toy: Toy) -> tuple[Executor, DeviceExecutor]:
    return toy.executor(), toy.device_executor()


def test_text_is_that_of_the_plain_executor(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    assert_same_text(toy, *both)


def test_batched_text_is_that_of_each_alone(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    _, device = both
    together, alone = ([device.llm_store.open() for _ in range(6)] for _ in range(2))
    for requests in text_rounds(toy):
        found = device.answer(requests(together))
        expected = [device.answer([request])[0] for request in requests(alone)]
        for one, other in zip(found, expected, strict=True):
            assert_same_output(one, other)
    for kv, other in zip(together, alone, strict=True):
        assert_same_cache(kv, other)


def test_an_answer_stays_as_it_is_while_others_are_given(
    both: tuple[Executor, DeviceExecutor],
) -> None:
    """Static tensors never leave the engine."""
    _, device = both
    kv, other = device.llm_store.open(), device.llm_store.open()
    [first] = device.answer([LlmForward(kv, (TokenIds((1,)),))])
    before = first.logits.clone(), first.hidden.clone()
    device.answer([LlmForward(other, (TokenIds((2,)),))])
    device.answer([LlmForward(other, (TokenIds((3, 4)),))])
    assert torch.equal(first.logits, before[0])
    assert torch.equal(first.hidden, before[1])


def test_greedy_tokens_are_those_of_the_plain_executor(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    talks = []
    for executor in both:
        decisions = greedy_decisions(toy, 6)
        kvs = [executor.llm_store.open() for _ in decisions]
        pieces = [(TokenIds((n + 1, n + 2)[: 1 + n % 2]),) for n in range(6)]
        opening = [LlmForward(kv, each) for kv, each in zip(kvs, pieces, strict=True)]
        logits = [output.logits for output in executor.answer(opening)]
        choices = [ChooseToken(row, each) for row, each in zip(logits, decisions, strict=True)]
        tokens = [executor.answer(choices)]
        for _ in range(12):
            fed = [
                LlmForward(kv, (TokenIds((token,)),), wants_logits=False, decision=decision)
                for kv, token, decision in zip(kvs, tokens[-1], decisions, strict=True)
            ]
            outputs = executor.answer(fed)
            assert all(output.logits is None for output in outputs)
            tokens.append([output.token for output in outputs])
        talks.append((tokens, [decision.history for decision in decisions]))
    assert talks[0] == talks[1]
    assert len({token for round_ in talks[0][0] for token in round_}) > 5, "nothing to compare"


def test_codes_are_those_of_the_plain_executor(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    plain, device = both
    answers: list[DrawnCodes] = []
    for mine, theirs in zip(code_rounds(toy, device), code_rounds(toy, plain), strict=True):
        found = device.answer(mine)
        assert found == plain.answer(theirs)
        answers += found
        for one, other in zip(mine, theirs, strict=True):
            assert_same_cache(one.kv, other.kv)
    assert {each.has_ended for each in answers} == {True, False}, "nothing to compare"


def test_batched_codes_are_those_of_each_alone(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    _, device = both
    for together, alone in zip(code_rounds(toy, device), code_rounds(toy, device), strict=True):
        assert device.answer(together) == [device.answer([each])[0] for each in alone]
        for one, other in zip(together, alone, strict=True):
            assert_same_cache(one.kv, other.kv)


def test_a_cache_after_holes_goes_on_like_the_plain_one(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    rows = vectors(toy, 150)
    outputs, caches = [], []
    for executor in both:
        kv = executor.llm_store.open()
        with torch.inference_mode():
            executor.answer([LlmForward(kv, (Embeddings(rows),))])
            kv.drop(20, 90)  # across pages
            kept = kv.rows(30, kv.length)
            kv.truncate(25)
            executor.answer([LlmForward(kv, (TokenIds((1, 2, 3)),))])
            kv.put(kept)
        outputs += executor.answer([LlmForward(kv, (TokenIds((4,)),))])
        caches.append(kv)
    assert_same_output(outputs[1], outputs[0])
    assert_same_cache(caches[1], caches[0])


def test_a_full_context_is_an_error_and_costs_nobody_a_token(
    toy: Toy, both: tuple[Executor, DeviceExecutor]
) -> None:
    _, device = both
    full, other = device.llm_store.open(), device.llm_store.open()
    long = torch.zeros(1, toy.config.hidden_size).expand(toy.config.max_position_embeddings + 1, -1)
    with pytest.raises(CacheFullError):
        device.answer([LlmForward(other, (TokenIds((1,)),)), LlmForward(full, (Embeddings(long),))])
    assert (full.length, other.length) == (0, 0)


@contextmanager
def _broken(monkeypatch: pytest.MonkeyPatch, calls_before: int) -> Iterator[None]:
    """Attention that fails after some calls."""
    left = [calls_before]
    attend = ops.attend

    def fail(*arguments: Any) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("the card is gone")
        return attend(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(ops, "attend", fail)
        yield


@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_a_pass_that_breaks_leaves_every_cache_as_it_was(
    toy: Toy,
    both: tuple[Executor, DeviceExecutor],
    monkeypatch: pytest.MonkeyPatch,
    calls_before: int,
) -> None:
    plain, device = both
    first, second = text_rounds(toy)[:2]
    mine, theirs = ([each.llm_store.open() for _ in range(6)] for each in (device, plain))
    device.answer(first(mine)), plain.answer(first(theirs))
    lengths = [kv.length for kv in mine]
    for requests in (first, second):
        with _broken(monkeypatch, calls_before), pytest.raises(RuntimeError, match="gone"):
            device.answer(requests(mine))
        assert [kv.length for kv in mine] == lengths
    for found, expected in zip(
        device.answer(second(mine)), plain.answer(second(theirs)), strict=True
    ):
        assert_same_output(found, expected)


@pytest.mark.parametrize("calls_before", [0, 5])
def test_codes_that_break_leave_every_cache_as_it_was(
    toy: Toy,
    both: tuple[Executor, DeviceExecutor],
    monkeypatch: pytest.MonkeyPatch,
    calls_before: int,
) -> None:
    plain, device = both
    mine, theirs = next(code_rounds(toy, device)), next(code_rounds(toy, plain))
    with _broken(monkeypatch, calls_before), pytest.raises(RuntimeError, match="gone"):
        device.answer(mine)
    assert [each.kv.length for each in mine] == [0] * 6
    assert device.answer(mine) == plain.answer(theirs)


def test_one_conversation_may_occur_only_once_in_a_pass(
    both: tuple[Executor, DeviceExecutor],
) -> None:
    _, device = both
    kv = device.llm_store.open()
    with pytest.raises(ValueError, match="only once"):
        device.answer([LlmForward(kv, (TokenIds((1,)),)), LlmForward(kv, (TokenIds((2,)),))])
    assert kv.length == 0


def test_fused_weights_are_the_modules_own(toy: Toy) -> None:
    """Nothing is held twice, and what is loaded into the module reaches the engine."""
    layer = toy.model.llm.model.layers[0]
    assert isinstance(layer, DecoderLayer)
    attention = layer.self_attn
    linears = (attention.q_proj, attention.k_proj, attention.v_proj)
    before = [linear.weight.clone() for linear in linears]
    fused = fuse(linears)
    assert torch.equal(fused, torch.cat(before))
    assert fuse(linears).data_ptr() == fused.data_ptr(), "fused twice"
    for linear, weight in zip(linears, before, strict=True):
        assert torch.equal(linear.weight, weight)
        assert linear.weight.untyped_storage().data_ptr() == fused.untyped_storage().data_ptr()
    with torch.no_grad():
        linears[1].weight[2, 3] += 1.0
        changed = fused[len(before[0]) + 2, 3].item()
        linears[1].weight.copy_(before[1])
    assert changed == pytest.approx(float(before[1][2, 3]) + 1.0)


def test_without_a_card_the_plain_executor_is_chosen(toy: Toy) -> None:
    assert type(make_executor(toy.model)) is Executor


def test_closing_a_conversation_gives_every_page_back(toy: Toy) -> None:
    engine = toy.device_executor()
    stores = (engine.llm_store, engine.tts_store)
    talk = Talk(toy, engine, 1)
    run_alone(talk.whole(), engine)
    talk.session.take_snapshot()
    assert engine.llm_store.nbytes > 0
    talk.session.close()
    assert [store.nbytes for store in stores] == [0, 0]
    assert [store.free_pages for store in stores] == [store.pool.shape[1] for store in stores]


def test_a_short_run_beside_a_long_one_writes_behind_nobodys_page(toy: Toy) -> None:
    """Its next position would lie in a page that was its own once and is another's now."""
    engine = toy.device_executor()
    short, other, long = (engine.tts_store.open() for _ in range(3))
    eos = toy.config.tts_config.speech_eos_id

    def run(kv: KvHandle, n_rows: int, count: int) -> DrawCodes:
        codes = SpeechCodes(tuple(range(n_rows)))
        generator = torch.Generator()
        return DrawCodes(kv, (codes,), GREEDY_CODES, (), eos, generator, count, count)

    engine.answer([run(short, PAGE_TOKENS + 1, 1)])
    short.truncate(PAGE_TOKENS - 1)
    engine.answer([run(other, 5, 1)])
    before = other.rows(0, 5)
    engine.answer([run(short, 1, 1), run(long, 1, 4)])
    assert torch.equal(other.rows(0, 5).keys, before.keys)
    assert torch.equal(other.rows(0, 5).values, before.values)


GB = 10**9


@pytest.mark.parametrize(
    ("now", "share"),
    [
        (CardMemory(20 * GB, 3 * GB), 1.0),
        (CardMemory(10 * GB, 3 * GB), 0.5),
        (CardMemory(1 * GB, 7 * GB), 0.25),  # voices that left: torch has what they held
        (CardMemory(0, 3 * GB), 0.0),  # what the graphs hold is of no use to others
        (CardMemory(0, 2 * GB), 0.0),
        (CardMemory(30 * GB, 3 * GB), 1.0),  # another program ended
    ],
)
def test_room_on_a_card_is_what_graphs_and_weights_left(now: CardMemory, share: float) -> None:
    assert CardMemory(20 * GB, 3 * GB).share_left(now) == share


def test_conversations_fill_the_caches_and_the_card(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Voices and streams of speech lie beside the caches; the scarcer of both counts."""
    engine = toy.device_executor()
    model = cast(UnifiedModel, SimpleNamespace(executor=engine))
    assert cache_room(model) == 1.0
    engine.memory_at_start, free = CardMemory(20 * GB, 0), CardMemory(4 * GB, 0)
    monkeypatch.setattr(CardMemory, "of", lambda _device: free)
    assert cache_room(model) == 0.2
    engine.llm_store.can_grow = False
    pages = engine.llm_store.pool.shape[1]
    engine.llm_store.take_pages(pages - 1)
    assert cache_room(model) == 1 / pages < 0.2

    def fail(_device: torch.device) -> CardMemory:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(CardMemory, "of", fail)
    assert cache_room(model) == 0.0


@pytest.mark.parametrize(
    ("conversations", "text", "speech"), [(4, 40_960, 16_384), (28, 229_376, 114_688)]
)
def test_caches_leave_another_worker_its_part(conversations: int, text: int, speech: int) -> None:
    config = MiniCPMOConfig()
    assert most_tokens(config.decoder, conversations) == text
    assert most_tokens(config.tts_config.decoder, conversations) == speech
