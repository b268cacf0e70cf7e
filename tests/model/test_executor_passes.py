"""Passes of the executor: equal to stock layers, alone and in a batch, and safe after failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from core.engine.passes import free_share, run_alone
from MiniCPMO45.configuration_minicpmo import MiniCPMOConfig
from MiniCPMO45.engine import kv_cache
from MiniCPMO45.engine.executor import Executor, most_tokens
from MiniCPMO45.engine.kv_cache import KvHandle, Rows
from MiniCPMO45.engine.steps import (
    ChooseToken,
    DrawCodes,
    DrawnCodes,
    LlmForward,
)
from MiniCPMO45.kernels.attention import PAGE_TOKENS
from MiniCPMO45.kernels.device import CardMemory
from tests.fakes.decoders import held_tokens
from tests.model.decoder_requests import (
    GREEDY_CODES,
    assert_same_cache,
    assert_same_output,
    code_rounds,
    greedy_decisions,
    scatter_pages,
    text_rounds,
    vectors,
)
from tests.model.stock import stock_decoder, stock_states
from tests.model.talks import Talk
from tests.model.toy import Toy, assert_close


@pytest.fixture(scope="module")
def executor(toy: Toy) -> Executor:
    return toy.small_executor()


def _input_rows(toy: Toy, request: LlmForward) -> Tensor:
    rows = toy.model.llm.model.embed_tokens(torch.tensor(request.rows.ids))
    for start, given in request.rows.vectors:
        rows[start : start + len(given)] = given
    return rows


def test_text_is_that_of_the_stock_layers(toy: Toy, executor: Executor) -> None:
    """In a batch of six conversations."""
    llm = toy.model.llm
    stock = stock_decoder(llm.model, toy.config)
    kvs = [executor.llm_store.open() for _ in range(6)]
    fed: dict[int, list[Tensor]] = {id(kv): [] for kv in kvs}
    for requests in text_rounds(toy):
        asked = requests(kvs)
        for request, output in zip(asked, executor.submit(asked)(), strict=True):
            fed[id(request.kv)].append(_input_rows(toy, request))
            states = stock_states(stock, torch.cat(fed[id(request.kv)]))
            assert_close(output.hidden, states[-len(output.hidden) :])
            if output.logits is not None:
                assert_close(output.logits, llm.lm_head(states[-1]))


def test_batched_text_is_that_of_each_alone(toy: Toy, executor: Executor) -> None:
    together, alone = ([executor.llm_store.open() for _ in range(6)] for _ in range(2))
    for requests in text_rounds(toy):
        found = executor.submit(requests(together))()
        expected = [executor.submit([request])()[0] for request in requests(alone)]
        for one, other in zip(found, expected, strict=True):
            assert_same_output(one, other)
    for kv, other in zip(together, alone, strict=True):
        assert_same_cache(kv, other)


def test_an_answer_stays_as_it_is_while_others_are_given(executor: Executor) -> None:
    """Static tensors are not returned."""
    kv, other = executor.llm_store.open(), executor.llm_store.open()
    [first] = executor.submit([LlmForward(kv, Rows((1,)))])()
    before = first.logits.clone(), first.hidden.clone()
    executor.submit([LlmForward(other, Rows((2,)))])()
    executor.submit([LlmForward(other, Rows((3, 4)))])()
    assert torch.equal(first.logits, before[0])
    assert torch.equal(first.hidden, before[1])


def test_greedy_tokens_are_those_the_policy_takes_from_the_logits(
    toy: Toy, executor: Executor
) -> None:
    decisions, again = greedy_decisions(toy, 6), greedy_decisions(toy, 6)
    kvs = [executor.llm_store.open() for _ in decisions]
    rows = [Rows((n + 1, n + 2)[: 1 + n % 2]) for n in range(6)]
    opening = [LlmForward(kv, each) for kv, each in zip(kvs, rows, strict=True)]
    logits = [output.logits for output in executor.submit(opening)()]
    choices = [ChooseToken(row, each) for row, each in zip(logits, decisions, strict=True)]
    tokens = executor.submit(choices)()
    seen = set(tokens)
    for _ in range(12):
        fed = [
            LlmForward(kv, Rows((token,)), decision=decision)
            for kv, token, decision in zip(kvs, tokens, decisions, strict=True)
        ]
        expected = [
            each.policy.decide(row, each.history, each.settings, each.generator)
            for row, each in zip(logits, again, strict=True)
        ]
        assert tokens == expected
        outputs = executor.submit(fed)()
        logits, tokens = [each.logits for each in outputs], [each.token for each in outputs]
        seen |= set(tokens)
    assert len(seen) > 5, "nothing to compare"


def _speech_rows(toy: Toy, request: DrawCodes) -> Tensor:
    tts = toy.model.tts
    table = torch.cat((tts.emb_text.weight, tts.emb_code[0].get_parameter("weight")))
    rows = table[torch.tensor(request.rows.ids)]
    for start, hidden in request.rows.vectors:
        states = F.normalize(tts.projector_semantic(hidden), dim=-1)
        rows[start : start + len(states)] += states
    return rows


def _stock_codes(toy: Toy, stock: Any, rows: Tensor, asked: DrawCodes) -> tuple[DrawnCodes, Tensor]:
    """Draw codes one by one from the library's states; returns also all rows fed."""
    codes: list[int] = []
    while True:
        logits = toy.model.tts.head_code[0](stock_states(stock, rows)[-1])
        history, may_end = [*asked.recent, *codes], len(codes) >= asked.least
        code = asked.rule.choose(logits, history, asked.eos, asked.generator, may_end=may_end)
        if code == asked.eos:
            return DrawnCodes(tuple(codes), True), rows
        codes.append(code)
        if len(codes) == asked.count:
            return DrawnCodes(tuple(codes), False), rows
        rows = torch.cat((rows, toy.model.tts.emb_code[0](torch.tensor([code]))))


@torch.no_grad()
def test_codes_are_those_of_the_stock_layers(toy: Toy, executor: Executor) -> None:
    stock = stock_decoder(toy.model.tts.model, toy.config.tts_config)
    fed: dict[int, Tensor] = {}
    answers: list[DrawnCodes] = []
    for requests in code_rounds(toy, executor):
        found = executor.submit(requests)()
        for request, drawn in zip(requests, found, strict=True):
            rows = _speech_rows(toy, request)
            before = fed.get(id(request.kv))
            rows = rows if before is None else torch.cat((before, rows))
            expected, fed[id(request.kv)] = _stock_codes(toy, stock, rows, request)
            assert drawn == expected
            assert request.kv.length == len(fed[id(request.kv)])
        answers += found
    assert {each.has_ended for each in answers} == {True, False}, "nothing to compare"


def test_batched_codes_are_those_of_each_alone(toy: Toy, executor: Executor) -> None:
    for together, alone in zip(code_rounds(toy, executor), code_rounds(toy, executor), strict=True):
        assert executor.submit(together)() == [executor.submit([each])()[0] for each in alone]
        for one, other in zip(together, alone, strict=True):
            assert_same_cache(one.kv, other.kv)


def test_a_cache_with_holes_goes_on_the_same_wherever_its_pages_lie(toy: Toy) -> None:
    rows = vectors(toy, 150)
    outputs, caches = [], []
    for is_scattered in (False, True):
        executor = toy.small_executor()
        if is_scattered:
            scatter_pages(executor.llm_store)
        kv = executor.llm_store.open()
        with torch.inference_mode():
            executor.submit([LlmForward(kv, Rows.of(rows))])()
            kv.drop(20, 90)  # across pages
            kept = kv.rows(30, kv.length)
            kv.truncate(25)
            executor.submit([LlmForward(kv, Rows((1, 2, 3)))])()
            kv.put(kept)
        outputs += executor.submit([LlmForward(kv, Rows((4,)))])()
        caches.append(kv)
    assert_same_output(outputs[1], outputs[0])
    assert_same_cache(caches[1], caches[0])


@contextmanager
def _broken(monkeypatch: pytest.MonkeyPatch, calls_before: int) -> Iterator[None]:
    left = [calls_before]
    attend = kv_cache.attend

    def fail(*arguments: Any) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("the card is gone")
        return attend(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kv_cache, "attend", fail)
        yield


@pytest.mark.parametrize("calls_before", [0, 1, 3])
def test_a_pass_that_breaks_leaves_every_cache_as_it_was(
    toy: Toy, executor: Executor, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    first, second = text_rounds(toy)[:2]
    mine, theirs = ([executor.llm_store.open() for _ in range(6)] for _ in range(2))
    executor.submit(first(mine))(), executor.submit(first(theirs))()
    lengths = [kv.length for kv in mine]
    for requests in (first, second):
        with _broken(monkeypatch, calls_before), pytest.raises(RuntimeError, match="gone"):
            executor.submit(requests(mine))()
        assert [kv.length for kv in mine] == lengths
    for found, expected in zip(
        executor.submit(second(mine))(), executor.submit(second(theirs))(), strict=True
    ):
        assert_same_output(found, expected)


@pytest.mark.parametrize("calls_before", [0, 5])
def test_codes_that_break_leave_every_cache_as_it_was(
    toy: Toy, executor: Executor, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    mine, theirs = (next(code_rounds(toy, executor)) for _ in range(2))
    with _broken(monkeypatch, calls_before), pytest.raises(RuntimeError, match="gone"):
        executor.submit(mine)()
    assert [each.kv.length for each in mine] == [0] * 6
    assert executor.submit(mine)() == executor.submit(theirs)()


def test_one_conversation_may_occur_only_once_in_a_pass(executor: Executor) -> None:
    kv = executor.llm_store.open()
    with pytest.raises(ValueError, match="only once"):
        executor.submit([LlmForward(kv, Rows((1,))), LlmForward(kv, Rows((2,)))])()
    assert kv.length == 0


def test_closing_a_conversation_gives_every_page_back(toy: Toy) -> None:
    engine = toy.small_executor()
    stores = (engine.llm_store, engine.tts_store)
    talk = Talk(toy, engine, 1)
    run_alone(talk.whole(), engine)
    talk.session.take_snapshot()
    assert held_tokens(engine.llm_store) > 0
    talk.session.close()
    assert [held_tokens(store) for store in stores] == [0, 0]
    assert [store.free_pages for store in stores] == [store.pool.shape[1] for store in stores]


def test_a_short_run_beside_a_long_one_writes_behind_nobodys_page(toy: Toy) -> None:
    """Its next position would lie in a page that was its own once and is another's now."""
    engine = toy.small_executor()
    short, other, long = (engine.tts_store.open() for _ in range(3))
    eos = toy.config.tts_config.speech_eos_id

    def run(kv: KvHandle, n_rows: int, count: int) -> DrawCodes:
        first, generator = toy.config.tts_config.num_text_tokens, torch.Generator()
        codes = Rows(tuple(range(first, first + n_rows)))
        return DrawCodes(kv, codes, GREEDY_CODES, (), eos, generator, count, count)

    engine.submit([run(short, PAGE_TOKENS + 1, 1)])()
    short.truncate(PAGE_TOKENS - 1)
    engine.submit([run(other, 5, 1)])()
    before = other.rows(0, 5)
    engine.submit([run(short, 1, 1), run(long, 1, 4)])()
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
    engine = toy.small_executor()
    assert free_share(engine) == 1.0
    engine.memory_at_start, free = CardMemory(20 * GB, 0), CardMemory(4 * GB, 0)
    monkeypatch.setattr(CardMemory, "of", lambda _device: free)
    assert free_share(engine) == 0.2
    engine.llm_store.can_grow = False
    pages = engine.llm_store.pool.shape[1]
    engine.llm_store.take_pages(pages - 1)
    assert free_share(engine) == 1 / pages < 0.2

    def fail(_device: torch.device) -> CardMemory:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(CardMemory, "of", fail)
    assert free_share(engine) == 0.0


@pytest.mark.parametrize(
    ("conversations", "text", "speech"), [(4, 40_960, 4_096), (28, 114_688, 28_672)]
)
def test_caches_leave_another_worker_its_part(conversations: int, text: int, speech: int) -> None:
    config = MiniCPMOConfig()
    assert most_tokens(config, conversations, 4_096) == text
    assert most_tokens(config.tts_config, conversations, 1_024) == speech
