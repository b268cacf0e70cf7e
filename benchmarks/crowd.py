"""Capacity of a device: real sessions over the passes of a worker.

Each session has a unit of input per second, at evenly distributed times; idle time is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from itertools import cycle

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.machine import settle_memory, unsettle_memory, waiter
from benchmarks.paced_passes import Held, PacedPasses, SkippingClock
from benchmarks.rig import Rig
from benchmarks.scripted import ScriptedAnswers, parse_pattern
from benchmarks.summary import Spread, format_table
from benchmarks.talker import Script, Talker
from core.engine.passes import run_pass
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.processing.pictures import Slice
from MiniCPMO45.settings import WindowMode, WindowSettings

MS_PER_S = 1_000.0
POOL = 16  # different inputs; sessions take them in turn
REQUIRED_P99_S = 0.8


class Speaking(StrEnum):
    """Share of time in which the conversations speak."""

    ALL = "all"
    HALF = "half"

    @property
    def pattern(self) -> str:
        """Repeated decisions; conversations start at different positions."""
        return "sssssssssse" if self is Speaking.ALL else "lllsse"


@dataclass(frozen=True)
class CrowdPlan:
    """A measurement of concurrent sessions.

    Attributes:
        sessions: numbers of sessions, one measurement each.
        seconds: duration of each measurement.
        text_tokens: of a speaking unit.
        picture_size: width and height of each unit's picture; None for audio only.
    """

    sessions: tuple[int, ...]
    seconds: int
    speaking: Speaking
    text_tokens: int
    picture_size: tuple[int, int] | None
    seed: int = 0


@dataclass(frozen=True)
class CrowdResult:
    """Result of one measurement.

    Attributes:
        late: units answered after the next unit's input was complete, or dropped.
        latency_ms: from complete input to the answer.
        first_audio_ms: from complete input to the first audio, if measured.
        busy: share of busy time.
        company: mean number of conversations in a pass.
        is_hopeless: stopped early because too many units were late.
    """

    sessions: int
    units: int
    late: int
    latency_ms: Spread
    first_audio_ms: Spread | None
    busy: float
    company: float
    is_hopeless: bool

    @property
    def is_in_time(self) -> bool:
        """No unit was late, with a margin."""
        return not self.late and self.latency_ms.p99 < MS_PER_S * REQUIRED_P99_S

    @classmethod
    def of(cls, sessions: int, held: Held) -> CrowdResult:
        sounds_s = [
            unit.first_sound_s - unit.heard_s
            for unit in held.units
            if unit.first_sound_s is not None
        ]
        return cls(
            sessions=sessions,
            units=len(held.units),
            late=held.late,
            latency_ms=Spread.of([MS_PER_S * unit.latency_s for unit in held.units]),
            first_audio_ms=Spread.of([MS_PER_S * s for s in sounds_s]) if sounds_s else None,
            busy=held.spent_s / held.lasted_s,
            company=held.tasks / held.passes,
            is_hopeless=held.is_hopeless,
        )

    def as_record(self) -> dict[str, object]:
        return {**asdict(self), "is_in_time": self.is_in_time}


@dataclass(frozen=True, eq=False)
class _Input:
    """Preprocessed input of one unit."""

    audio: np.ndarray
    pictures: Sequence[tuple[Slice, ...]]


class _Guest:
    """A talker as `Speaker`."""

    def __init__(self, talker: Talker, inputs: list[_Input], first: int) -> None:
        self.talker = talker
        self._inputs = cycle(inputs[first % len(inputs) :] + inputs[: first % len(inputs)])

    def next_unit(self) -> Steps[UnitResult]:
        act, cuts = self.talker.begin_unit()
        unit = next(self._inputs)
        return self.talker.unit(unit.audio, unit.pictures, act, cuts=cuts)

    def finalize(self) -> Steps[None]:
        return self.talker.finalize()


class Crowd:
    """Conversations that are opened once for several measurements."""

    def __init__(self, rig: Rig, plan: CrowdPlan) -> None:
        self._rig = rig
        self._plan = plan
        self._wait = waiter(rig.executor.device)
        self._answers = ScriptedAnswers(rig.executor, None)
        self._inputs = Inputs(plan.picture_size, plan.seed)
        self._prepared, self._input_s = self._prepare_inputs()
        self._guests: list[_Guest] = []

    def measure(self) -> Iterator[CrowdResult]:
        """Yield a result for each number of sessions, up to the first hopeless one."""
        for sessions in self._plan.sessions:
            self._open(sessions)
            settle_memory()
            clock = SkippingClock(self._wait)
            passes = partial(
                run_pass,
                self._answers,
                now_s=lambda clock=clock: clock.now_s,  # type: ignore[misc]
            )
            guests = self._guests[:sessions]
            held = PacedPasses(guests, passes, clock, self._input_s).hold(self._plan.seconds)
            result = CrowdResult.of(sessions, held)
            yield result
            if result.is_hopeless:
                return

    def close(self) -> None:
        unsettle_memory()
        for guest in self._guests:
            guest.talker.close()

    def _prepare_inputs(self) -> tuple[list[_Input], float]:
        """Preprocess inputs; also return the time to slice one unit's pictures."""
        raw = [self._inputs.unit() for _ in range(POOL)]
        began_s = time.perf_counter()
        prepared = [_Input(audio, self._rig.cut(frames)) for audio, frames in raw]
        return prepared, (time.perf_counter() - began_s) / POOL

    def _open(self, sessions: int) -> None:
        plan = self._plan
        script = Script(
            parse_pattern(plan.speaking.pattern),
            plan.text_tokens,
            window=WindowSettings(mode=WindowMode.BASIC),
        )
        for index in range(len(self._guests), sessions):
            talker = Talker(self._rig, script, seed=plan.seed + index, first=index)
            talker.prepare(self._answers, self._inputs)
            self._guests.append(_Guest(talker, self._prepared, index))


def crowd_table(results: Sequence[CrowdResult]) -> str:
    """Return one line per measurement."""
    header = ["sessions", "units", "late", "p50 ms", "p95", "p99", "max", "sound p50", "busy"]
    rows = []
    for each in results:
        spread, sound = each.latency_ms, each.first_audio_ms
        times = [f"{value:.0f}" for value in (spread.p50, spread.p95, spread.p99, spread.max)]
        first = "" if sound is None else f"{sound.p50:.0f}"
        late = f"{each.late}{' …' if each.is_hopeless else ''}"
        counts = [str(each.sessions), str(each.units), late]
        rows.append([*counts, *times, first, f"{each.busy:.2f}", f"{each.company:.1f}"])
    return format_table([*header, "company"], rows)
