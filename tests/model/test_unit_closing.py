"""Terminators of a unit are fed with the next prefill, with the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from core.engine.passes import run_alone
from MiniCPMO45.engine.kv_cache import CacheFullError
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import Emit, LlmForward, Steps
from MiniCPMO45.modes.duplex import DuplexCapability
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings
from tests.fakes.scripted import cached_labels
from tests.model.scripted_duplex import SECOND, SETTINGS, Bench
from tests.model.toy import Toy, UnitInput, assert_close, prepare, run_unit, speech

BASIC = WindowSettings(mode=WindowMode.BASIC, basic_high_tokens=80, basic_low_tokens=50)
CONTEXT = WindowSettings(mode=WindowMode.CONTEXT, context_max_units=3)
UNITS = 8


class ClosingAtOnce(DuplexCapability):
    """A unit loop that feeds terminators in a pass of their own."""

    def close_unit(self, session: Session) -> Steps[None]:
        yield from super().close_unit(session)
        if session.turn.closing:
            yield from self._write_closing(session)


def closing_at_once(duplex: DuplexCapability) -> ClosingAtOnce:
    return ClosingAtOnce(duplex.config, duplex.tokenizer, duplex.policy, defaults=duplex.defaults)


def test_closing_a_unit_runs_no_pass(bench: Bench, tokens: SpecialTokens) -> None:
    bench.prefill(tokens.speak, bench.a, tokens.chunk_eos)
    bench.generate()
    passes = len(bench.executor.requests)
    before = bench.session.cached_tokens
    bench.finalize()
    assert len(bench.executor.requests) == passes
    assert bench.session.cached_tokens == before + 2
    assert bench.session.window.tokens == bench.session.cached_tokens
    assert bench.session.turn.closing == (tokens.chunk_eos, tokens.unit_end)


@pytest.mark.parametrize("window", [WindowSettings(), BASIC, CONTEXT])
def test_cache_equals_that_of_immediate_closing(toy: Toy, window: WindowSettings) -> None:
    """After every prefill, with and without a window that drops units."""
    settings = replace(SETTINGS, window=window)
    deferred, at_once = Bench(toy, settings), Bench(toy, settings)
    at_once.duplex = closing_at_once(at_once.duplex)
    tokens = deferred.tokens
    plans = [(tokens.listen,), (tokens.speak, deferred.a, tokens.chunk_eos)]
    plans.append((tokens.speak, deferred.b, tokens.turn_eos, tokens.listen))
    for number in range(UNITS):
        decisions = plans[number % len(plans)]
        for bench in (deferred, at_once):
            bench.prefill(*decisions)
        caches = [cached_labels(bench.session.kv) for bench in (deferred, at_once)]
        assert caches[0] == caches[1]
        for bench in (deferred, at_once):
            bench.generate()
            bench.finalize()
            assert bench.session.window.tokens == bench.session.cached_tokens
        assert deferred.session.window == at_once.session.window
        assert deferred.session.cached_tokens == at_once.session.kv.length
    if window.mode is not WindowMode.OFF:
        assert deferred.session.window.evictions > 1


def test_eviction_closes_the_unit_immediately(toy: Toy) -> None:
    bench = Bench(toy, replace(SETTINGS, window=replace(CONTEXT, context_max_units=1)))
    tokens, session = bench.tokens, bench.session
    bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    assert session.turn.closing
    bench.unit(tokens.listen, bench.b, tokens.chunk_eos)
    assert session.turn.closing == ()
    assert session.window.evictions == 1
    assert session.window.tokens == session.kv.length
    assert cached_labels(session.kv)[-1] == tokens.unit_end


def test_failed_prefill_leaves_the_pending_end(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.listen)
    session = bench.session
    closing, length = session.turn.closing, session.kv.length
    steps, answer = bench.duplex.streaming_prefill(session, SECOND), None
    with torch.inference_mode():
        request = next(steps)
        while not isinstance(request, LlmForward):
            assert not isinstance(request, Emit)
            [answer] = bench.executor.submit([request])()
            request = steps.send(answer)
        with pytest.raises(CacheFullError):
            steps.throw(CacheFullError("full"))
    assert (session.turn.closing, session.kv.length) == (closing, length)


def test_interruption_follows_the_pending_end(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    result = bench.unit(bench.b, force_listen=True)
    assert result.barge_in
    bench.prefill(tokens.listen)
    labels = cached_labels(bench.session.kv)
    unit = [label for label in labels[len(bench.head) :] if label >= 0]
    assert unit == [
        *(tokens.unit_start, tokens.speak, bench.a, tokens.chunk_eos, tokens.unit_end),
        *(tokens.unit_start, tokens.turn_eos, tokens.listen, tokens.unit_end),
        tokens.unit_start,
    ]


def test_rollback_restores_the_pending_end(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.speak, bench.a, tokens.chunk_eos)
    session, before = bench.session, bench.cached
    session.take_snapshot()
    bench.unit(tokens.speak, bench.b, bench.c, tokens.chunk_eos)
    session.rollback()
    assert bench.cached == before
    assert session.window.tokens == session.cached_tokens
    bench.unit(tokens.listen, bench.c, tokens.chunk_eos)
    assert bench.cached[: len(before)] == before
    assert bench.cached.count(tokens.unit_end) == 2


def test_no_end_is_pending_after_close(bench: Bench, tokens: SpecialTokens) -> None:
    bench.unit(tokens.listen)
    bench.session.close()
    assert bench.session.cached_tokens == 0
    assert bench.session.turn.closing == ()


def test_toy_model_generates_the_same_text(toy: Toy) -> None:
    """Its cache, too, is the same up to the order of float32 sums."""
    settings = DuplexSettings(decode_mode="greedy", force_listen_count=1)

    def talk(duplex: DuplexCapability) -> tuple[Session, list[str]]:
        executor = toy.executor()
        session = executor.open_session("toy", seed=0)
        run_alone(prepare(duplex, session, settings), executor)
        texts = []
        for number in range(5):
            unit = run_unit(duplex, session, UnitInput(speech(1.0, number)))
            texts.append(run_alone(unit, executor).text)
        run_alone(duplex.streaming_prefill(session, speech(1.0, 9)), executor)
        return session, texts

    deferred, said = talk(toy.duplex())
    at_once, expected = talk(closing_at_once(toy.duplex()))
    assert said == expected
    assert deferred.kv.length == at_once.kv.length
    rows = [each.kv.rows(0, each.kv.length) for each in (deferred, at_once)]
    assert_close(rows[0].keys, rows[1].keys)
    assert_close(rows[0].values, rows[1].values)
