"""Capacity of a device: concurrent conversations over the passes of a worker."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import cycle
from typing import Any, Protocol

import numpy as np

from benchmarks.inputs import Inputs
from benchmarks.machine import settle_memory, unsettle_memory
from benchmarks.rig import Rig
from benchmarks.scripted import Script, ScriptedAnswers, ScriptedConversation, parse_pattern
from benchmarks.summary import MS_PER_S, Spread, format_table
from core.engine.engine import RunPass
from core.engine.passes import Task, TaskState, run_pass
from MiniCPMO45.engine.steps import Steps
from MiniCPMO45.modes.duplex import UnitResult
from MiniCPMO45.processing.pictures import Slice
from MiniCPMO45.settings import WindowMode, WindowSettings

UNIT_S = 1.0
BACKLOG_MAX = 3  # units a session may wait for; a worker drops the oldest beyond that, too
OVERLOAD_SHARE = 0.1  # of the units so far; more late ones end the run
OVERLOAD_MIN = 64  # units measured before that
INPUTS = 16  # different ones; sessions take them in turn
REQUIRED_P99_S = 0.8


class PacedClock:
    """Real time without idle time, from 0."""

    def __init__(self, wait: Callable[[], None]) -> None:
        """`wait` synchronises with the device before time is skipped."""
        self.now_s = 0.0
        self._wait = wait

    def run(self, work: Callable[[], None]) -> None:
        began_s = time.perf_counter()
        work()
        self.now_s += time.perf_counter() - began_s

    def skip_to(self, now_s: float) -> None:
        self.run(self._wait)
        self.now_s = max(self.now_s, now_s)


class PacedConversation(Protocol):
    def next_unit(self) -> Steps[Any]:
        """Begin the next unit; its steps end with the answer."""
        ...

    def finalize(self) -> Steps[Any]: ...


@dataclass(frozen=True)
class PacedUnit:
    """Times of one unit, in seconds since the beginning."""

    complete_s: float  # its input was complete
    done_s: float  # it was answered
    first_sound_s: float | None = None  # its first audio was ready; None if not measured

    @property
    def latency_s(self) -> float:
        return self.done_s - self.complete_s


@dataclass
class PacedRun:
    units: list[PacedUnit] = field(default_factory=list)  # in order of the answers
    dropped: int = 0  # units dropped because too many waited
    spent_s: float = 0.0  # busy time
    lasted_s: float = 0.0
    passes: int = 0
    tasks: int = 0  # conversations in a pass, summed over the passes
    is_overloaded: bool = False  # stopped early because too many units were late

    @property
    def late(self) -> int:
        """Number of units dropped, or answered after the next unit's input was complete."""
        return self.dropped + sum(unit.latency_s > UNIT_S for unit in self.units)


@dataclass(eq=False)
class _Session:
    conversation: PacedConversation
    waiting: deque[float] = field(default_factory=deque)
    task: Task[Any] | None = None
    complete_s: float = 0.0
    first_sound_s: float | None = None
    is_closing: bool = False


class PacedPasses:
    """Concurrent conversations; does not depend on the model."""

    def __init__(
        self,
        conversations: Sequence[PacedConversation],
        run_pass: RunPass,
        clock: PacedClock,
        input_s: float = 0.0,
    ) -> None:
        """All passes use the clock; `input_s` is the time of preprocessing a unit's input."""
        self._sessions = [_Session(conversation) for conversation in conversations]
        self._run_pass = run_pass
        self._clock = clock
        self._input_s = input_s
        self._run = PacedRun()

    def run(self, seconds: int) -> PacedRun:
        """Run the conversations for some time; raises the error of a conversation."""
        run, clock = self._run, self._clock
        began_s = clock.now_s
        step_s = UNIT_S / len(self._sessions)
        arrivals = [
            (began_s + index * step_s + second * UNIT_S, index)
            for index in range(len(self._sessions))
            for second in range(seconds)
        ]
        heapq.heapify(arrivals)
        while not run.is_overloaded:
            self._begin_units(arrivals)
            tasks = [session.task for session in self._sessions if session.task is not None]
            if tasks:
                before_s = clock.now_s
                clock.run(partial(self._run_pass, tasks))
                run.spent_s += clock.now_s - before_s
                run.passes += 1
                run.tasks += len(tasks)
                for session in self._sessions:
                    if session.task is not None and session.task.is_paused:
                        self._continue(session, session.task)
            elif arrivals:
                clock.skip_to(arrivals[0][0] + self._input_s)
            else:
                break
        run.lasted_s = clock.now_s - began_s
        return run

    def _begin_units(self, arrivals: list[tuple[float, int]]) -> None:
        """Record complete inputs and begin the units that can begin."""
        now_s = self._clock.now_s
        while arrivals and arrivals[0][0] + self._input_s <= now_s:
            complete_s, index = heapq.heappop(arrivals)
            waiting = self._sessions[index].waiting
            waiting.append(complete_s)
            if len(waiting) > BACKLOG_MAX:
                waiting.popleft()
                self._run.dropped += 1
        for session in self._sessions:
            if session.task is None and session.waiting:
                session.complete_s, session.first_sound_s = session.waiting.popleft(), None
                session.is_closing = False
                unit = session.conversation.next_unit()
                session.task = Task(unit, session.complete_s + UNIT_S)

    def _continue(self, session: _Session, task: Task[Any]) -> None:
        """Continue a task after early audio, an answer or its last step."""
        run, now_s = self._run, self._clock.now_s
        task.take()  # raises what it failed with
        if task.state is TaskState.EMITTED:
            session.first_sound_s = session.first_sound_s or now_s
        elif session.is_closing:
            session.task = None
        else:
            run.units.append(PacedUnit(session.complete_s, now_s, session.first_sound_s))
            count = len(run.units) + run.dropped
            is_checked = count >= OVERLOAD_MIN and count % OVERLOAD_MIN == 0
            run.is_overloaded = is_checked and run.late > OVERLOAD_SHARE * count
            session.is_closing = True
            session.task = Task(session.conversation.finalize(), session.complete_s + UNIT_S)


class Speaking(StrEnum):
    """Share of time in which the conversations speak."""

    ALL = "all"
    HALF = "half"

    @property
    def pattern(self) -> str:
        """Repeated decisions; conversations start at different positions."""
        return "sssssssssse" if self is Speaking.ALL else "lllsse"


@dataclass(frozen=True)
class DeviceLoad:
    sessions: tuple[int, ...]  # one measurement for each number
    seconds: int  # of each measurement
    speaking: Speaking
    text_tokens: int  # of a speaking unit
    picture_size: tuple[int, int] | None  # width and height; None for audio only
    seed: int = 0
    has_early_audio: bool = False


@dataclass(frozen=True)
class CapacityResult:
    sessions: int
    units: int
    late: int  # units answered after the next unit's input was complete, or dropped
    latency_ms: Spread  # from complete input to the answer
    first_audio_ms: Spread | None  # from complete input to the first audio, if measured
    busy: float  # share of the time
    batch: float  # mean number of conversations in a pass
    is_overloaded: bool  # stopped early because too many units were late
    is_in_time: bool  # no unit was late, with a margin

    @classmethod
    def of(cls, sessions: int, run: PacedRun) -> CapacityResult:
        sounds_ms = [
            MS_PER_S * (unit.first_sound_s - unit.complete_s)
            for unit in run.units
            if unit.first_sound_s is not None
        ]
        latency_ms = Spread.of([MS_PER_S * unit.latency_s for unit in run.units])
        return cls(
            sessions=sessions,
            units=len(run.units),
            late=run.late,
            latency_ms=latency_ms,
            first_audio_ms=Spread.of(sounds_ms) if sounds_ms else None,
            busy=run.spent_s / run.lasted_s,
            batch=run.tasks / run.passes,
            is_overloaded=run.is_overloaded,
            is_in_time=not run.late and latency_ms.p99 < MS_PER_S * REQUIRED_P99_S,
        )

    def table(self) -> str:
        header = ["sessions", "units", "late", "p50 ms", "p95", "p99", "max", "sound p50", "busy"]
        late = f"{self.late}{' …' if self.is_overloaded else ''}"
        sound = "" if self.first_audio_ms is None else f"{self.first_audio_ms.p50:.0f}"
        cells = [f"{self.sessions}", f"{self.units}", late, *self.latency_ms.cells(0), sound]
        row = [*cells, f"{self.busy:.2f}", f"{self.batch:.1f}"]
        return format_table([*header, "batch"], [row])


@dataclass(eq=False)
class _Repeating:
    """A scripted conversation with preprocessed inputs, which repeat."""

    scripted: ScriptedConversation
    inputs: Iterator[tuple[np.ndarray, list[tuple[Slice, ...]]]]

    def next_unit(self) -> Steps[UnitResult]:
        act, cuts = self.scripted.begin_unit()
        return self.scripted.unit(*next(self.inputs), act, cuts=cuts)

    def finalize(self) -> Steps[None]:
        return self.scripted.finalize()


def measure_load(rig: Rig, load: DeviceLoad) -> Iterator[CapacityResult]:
    """Yield a result for each number of sessions, to the first overload; conversations are kept."""
    answers, source = ScriptedAnswers(rig.executor), Inputs(load.picture_size, load.seed)
    raw = [source.unit() for _ in range(INPUTS)]
    began_s = time.perf_counter()
    inputs = [(audio, rig.cut(frames)) for audio, frames in raw]
    input_s = (time.perf_counter() - began_s) / INPUTS
    window = WindowSettings(mode=WindowMode.BASIC)
    script = Script(
        parse_pattern(load.speaking.pattern),
        load.text_tokens,
        window=window,
        has_early_audio=load.has_early_audio,
    )
    opened: list[_Repeating] = []
    try:
        for sessions in load.sessions:
            for index in range(len(opened), sessions):
                scripted = ScriptedConversation(rig, script, seed=load.seed + index, first=index)
                scripted.prepare(answers, source)
                first = index % INPUTS
                opened.append(_Repeating(scripted, cycle(inputs[first:] + inputs[:first])))
            settle_memory()
            clock = PacedClock(rig.wait)
            passes = partial(run_pass, answers, now_s=lambda clock=clock: clock.now_s)  # type: ignore[misc]
            run = PacedPasses(opened[:sessions], passes, clock, input_s).run(load.seconds)
            yield CapacityResult.of(sessions, run)
            if run.is_overloaded:
                return
    finally:
        unsettle_memory()
        for each in opened:
            each.scripted.session.close()
