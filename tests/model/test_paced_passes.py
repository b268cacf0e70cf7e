"""Conversations over one card whose passes take a known time: who is late, and what delays gain.

Costs are in the order of a large GPU's; only what follows from them is asserted, never a speed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch

from benchmarks.capacity import BACKLOG_MAX, PacedClock, PacedPasses, PacedRun
from core.engine import scheduler
from core.engine.passes import Task, run_pass
from MiniCPMO45.engine.kv_cache import Rows
from MiniCPMO45.engine.steps import (
    Collect,
    DrawCodes,
    DrawnCodes,
    Emit,
    EncodeImages,
    LlmForward,
    LlmOutput,
    Request,
    Steps,
    Vocode,
)
from MiniCPMO45.model.audio_encoder import EncodeStream
from tests.fakes.batching import at_once

# Measured on an H200 with `fp8` weights.
FIRST_MS = {EncodeStream: 1.3, LlmForward: 3.6, DrawCodes: 14.3, Vocode: 5.8}
MORE_MS = {EncodeStream: 0.2, LlmForward: 0.1, DrawCodes: 0.2, Vocode: 0.5}
TOKENS = 10
UNIT_MS = 1.5 + (TOKENS + 1) * 3.7 + 14.5 + 6.3  # of a conversation alone


class Cache:
    """As much of a cache as a pass looks at."""

    length = 0
    chunks = 0


class ModelClock(PacedClock):
    """Time that only the card lets pass."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def run(self, work: Callable[[], None]) -> None:
        work()

    def skip_to(self, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)


class Card:
    """Takes its time for each pass, and little more for company."""

    def __init__(self, clock: ModelClock) -> None:
        self.passes: Counter[type] = Counter()
        self._clock = clock

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        kind = type(requests[0])
        assert all(type(request) is kind for request in requests)
        self.passes[kind] += 1
        self._clock.now_s += (FIRST_MS[kind] + MORE_MS[kind] * len(requests)) / 1e3
        return [ANSWERS.get(kind) for _ in requests]


ANSWERS = {LlmForward: LlmOutput(None, torch.zeros(1, 1)), DrawCodes: DrawnCodes((), False)}


class Speaker:
    """Speaks in every unit."""

    def __init__(self, stalls_in: int | None = None) -> None:
        self._units = 0
        self._stalls_in = stalls_in

    def next_unit(self) -> Steps[None]:
        self._units += 1
        if self._units == self._stalls_in:
            raise_in_unit()
        kv: Any = Cache()
        request: Any = EncodeStream(torch.zeros(0), kv, True)
        yield request
        for _ in range(TOKENS + 1):
            yield LlmForward(kv, Rows((0,)))
        draw: Any = DrawCodes(kv, (), None, (), 0, None, 25, 0)  # type: ignore[arg-type]
        yield draw
        yield Emit("the beginning")
        yield Vocode(kv, (), False)

    def finalize(self) -> Steps[None]:
        yield from ()


def raise_in_unit() -> None:
    raise RuntimeError("this conversation is broken")


def hold(sessions: int, seconds: int = 6) -> tuple[PacedRun, Card]:
    clock = ModelClock()
    card = Card(clock)
    passes = partial(run_pass, card, now_s=lambda: clock.now_s)
    return PacedPasses([Speaker() for _ in range(sessions)], passes, clock).run(seconds), card


def test_a_conversation_alone_takes_its_passes_time_and_nothing_more() -> None:
    held, _ = hold(1)
    assert [round(unit.latency_s * 1e3, 6) for unit in held.units] == [round(UNIT_MS, 6)] * 6
    assert held.late == 0 and held.dropped == 0
    assert held.spent_s == pytest.approx(6 * UNIT_MS / 1e3), "time between units is skipped"
    assert held.lasted_s == pytest.approx(5 + UNIT_MS / 1e3)
    first = held.units[0]
    assert first.first_sound_s is not None and first.first_sound_s < first.done_s


def test_few_conversations_are_as_quick_as_one() -> None:
    held, _ = hold(4)
    assert max(unit.latency_s for unit in held.units) < 1.05 * UNIT_MS / 1e3


def slowest_s(held: PacedRun) -> float:
    """The 99th percentile."""
    return sorted(unit.latency_s for unit in held.units)[-1 - len(held.units) // 100]


def test_under_load_batches_are_larger_because_speech_codes_are_delayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delayed, larger = hold(128)
    assert delayed.late == 0 and len(delayed.units) == 128 * 6
    monkeypatch.setattr(scheduler, "BATCH_RULES", {})
    undelayed, smaller = hold(128)
    assert larger.passes[DrawCodes] < smaller.passes[DrawCodes]
    assert slowest_s(delayed) < slowest_s(undelayed), "the delay is less than what it saves"


def test_too_many_are_late_and_the_measurement_ends_early() -> None:
    held, _ = hold(400, seconds=30)
    assert held.is_overloaded and held.late > 0
    assert len(held.units) + held.dropped < 400 * 30


def test_input_that_waits_too_long_is_dropped() -> None:
    clock = ModelClock()
    passes = partial(run_pass, SlowCard(clock), now_s=lambda: clock.now_s)
    held = PacedPasses([Speaker()], passes, clock).run(12)
    assert held.dropped > 0
    assert len(held.units) + held.dropped == 12
    assert max(unit.latency_s for unit in held.units) < (BACKLOG_MAX + 2) * 3.0


class SlowCard(Card):
    """Takes three seconds for a unit."""

    @at_once
    def submit(self, requests: Sequence[Request]) -> list[Any]:
        self._clock.now_s += 3.0 / (TOKENS + 4)
        return super().submit(requests)()


def test_what_a_conversation_fails_with_is_raised() -> None:
    clock = ModelClock()
    passes = partial(run_pass, Card(clock), now_s=lambda: clock.now_s)
    speakers = [Speaker(), Speaker(stalls_in=2)]
    with pytest.raises(RuntimeError, match="broken"):
        PacedPasses(speakers, passes, clock).run(4)


class Host(Card):
    """A host and a card that work concurrently, until the host reads an answer.

    Host and card each take (fixed, per request) milliseconds, and prefills some per row. Measured
    on an H200 with `fp8` weights under 96 video calls.
    """

    COSTS = {
        EncodeStream: (0.4, 0.06, 0.9, 0.16),
        EncodeImages: (0.5, 0.75, 0.8, 2.3),
        LlmForward: (0.3, 0.05, 3.1, 0.09),
        DrawCodes: (0.6, 0.0, 13.7, 0.18),
        Vocode: (0.4, 0.04, 5.4, 0.6),
    }
    PREFILL_ROW_MS = 0.0145
    ADVANCE_MS = (0.8, 0.1)  # of the host, per pass and per request

    def __init__(self, clock: ModelClock) -> None:
        super().__init__(clock)
        self._done_s = 0.0  # when the card is idle

    def run_pass(self, tasks: Sequence[Task[Any]]) -> None:
        fixed_ms, each_ms = self.ADVANCE_MS
        self._clock.now_s += (fixed_ms + each_ms * len(tasks)) / 1e3
        run_pass(self, tasks, now_s=lambda: self._clock.now_s)

    def submit(self, requests: Sequence[Request]) -> Collect:
        kind, count = type(requests[0]), len(requests)
        rows = sum(scheduler.size_of(request) for request in requests)
        host_ms, host_each_ms, card_ms, card_each_ms = self.COSTS[kind]
        is_prefill = kind is LlmForward and rows > count
        card_ms += rows * self.PREFILL_ROW_MS if is_prefill else count * card_each_ms
        self._clock.now_s += (host_ms + host_each_ms * count) / 1e3
        self._done_s = done_s = max(self._done_s, self._clock.now_s) + card_ms / 1e3

        def collect() -> list[Any]:
            if not is_prefill and kind not in (EncodeStream, EncodeImages):
                self._clock.now_s = max(self._clock.now_s, done_s)
            return [ANSWERS.get(kind) for _ in requests]

        return collect


class VideoCall(Speaker):
    """Listens in two units of five, and speaks three to seven tokens in each of the others."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self._index = index

    def next_unit(self) -> Steps[None]:
        self._units += 1
        place = (self._units + self._index) % 5
        kv: Any = Cache()
        yield EncodeImages((cast(Any, None),))
        request: Any = EncodeStream(torch.zeros(0), kv, True)
        yield request
        yield LlmForward(kv, Rows((0,) * 80))
        if place < 2:
            return
        for _ in range(4 + (self._units * 7 + self._index * 3) % 5):
            yield LlmForward(kv, Rows((0,)))
        draw: Any = DrawCodes(kv, (), None, (), 0, None, 25, 0)  # type: ignore[arg-type]
        yield draw
        for _ in range(1 + (place == 4)):  # a turn's end has a second call
            yield Vocode(kv, (), False)


def hold_calls(sessions: int, seconds: int = 8) -> PacedRun:
    clock = ModelClock()
    host = Host(clock)
    return PacedPasses([VideoCall(i) for i in range(sessions)], host.run_pass, clock).run(seconds)


@pytest.mark.parametrize("sessions", [1, 32, 64, 96])
def test_no_unit_of_many_video_calls_is_late(sessions: int) -> None:
    held = hold_calls(sessions)
    assert held.late == 0 and not held.is_overloaded
    assert slowest_s(held) < 0.5
