"""Many conversations over the passes of a worker, each a second of input a second, on any clock.

Idle time is skipped, so two minutes of a few conversations take only their work's
time. Knows neither the model nor what a unit consists of.
"""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from core.engine.engine import RunPass
from core.engine.passes import Task, TaskState
from MiniCPMO45.engine.steps import Steps

UNIT_S = 1.0
BACKLOG_MAX = 3  # units a session may wait for; a worker drops the oldest beyond that, too
HOPELESS_SHARE = 0.1  # of the units so far; more late ones end the run
HOPELESS_MIN = 64  # units to have seen before that


class Clock(Protocol):
    """Time that passes while there is work, and is skipped otherwise."""

    @property
    def now_s(self) -> float:
        """The time."""
        ...

    def run(self, work: Callable[[], None]) -> None:
        """Do some work; the time is later afterwards."""
        ...

    def skip_to(self, now_s: float) -> None:
        """Let it be so late, if it is not later."""
        ...


class SkippingClock:
    """Real time of what runs, without the waiting between."""

    def __init__(self, wait: Callable[[], None]) -> None:
        """Begin at 0.

        Args:
            wait: returns when the device is done; called before time is skipped.
        """
        self._wait = wait
        self._now_s = 0.0

    @property
    def now_s(self) -> float:
        """The time."""
        return self._now_s

    def run(self, work: Callable[[], None]) -> None:
        """Do some work, timed."""
        began_s = time.perf_counter()
        work()
        self._now_s += time.perf_counter() - began_s

    def skip_to(self, now_s: float) -> None:
        """Let it be so late, once the device is done."""
        self.run(self._wait)
        self._now_s = max(self._now_s, now_s)


class Speaker(Protocol):
    """A conversation."""

    def next_unit(self) -> Steps[Any]:
        """Begin the next unit; its steps are done when it is answered."""
        ...

    def finalize(self) -> Steps[Any]:
        """Return the bookkeeping that follows."""
        ...


@dataclass(frozen=True)
class PacedUnit:
    """One unit, in seconds since the beginning.

    Attributes:
        heard_s: its input was complete.
        done_s: its answer was.
        first_sound_s: its first sound was; None if it was not told apart.
    """

    heard_s: float
    done_s: float
    first_sound_s: float | None = None

    @property
    def latency_s(self) -> float:
        """From input complete to answer."""
        return self.done_s - self.heard_s

    @property
    def is_late(self) -> bool:
        """The next unit's input was complete before the answer."""
        return self.latency_s > UNIT_S


@dataclass
class Held:
    """What came of it.

    Attributes:
        units: as they were answered.
        dropped: units given up because too many waited.
        spent_s: time that was worked.
        lasted_s: time from the beginning to the end.
        passes: how many were run.
        tasks: conversations under way, summed over the passes.
        is_hopeless: it was ended early because too much was late.
    """

    units: list[PacedUnit] = field(default_factory=list)
    dropped: int = 0
    spent_s: float = 0.0
    lasted_s: float = 0.0
    passes: int = 0
    tasks: int = 0
    is_hopeless: bool = False

    @property
    def late(self) -> int:
        """Late and dropped units."""
        return self.dropped + sum(unit.is_late for unit in self.units)


@dataclass(eq=False)
class _Seat:
    speaker: Speaker
    waiting: deque[float] = field(default_factory=deque)
    task: Task[Any] | None = None
    heard_s: float = 0.0
    first_sound_s: float | None = None
    is_closing: bool = False


class PacedPasses:
    """Conversations side by side."""

    def __init__(
        self, speakers: Sequence[Speaker], run_pass: RunPass, clock: Clock, input_s: float = 0.0
    ) -> None:
        """Seat everybody.

        Args:
            speakers: the conversations; what they hear is complete at times spread evenly.
            run_pass: answers them, by the same clock.
            clock: tells the time.
            input_s: what a session's own thread does with a unit's input beforehand.
        """
        self._seats = [_Seat(speaker) for speaker in speakers]
        self._run_pass = run_pass
        self._clock = clock
        self._input_s = input_s
        self._held = Held()

    def hold(self, seconds: int) -> Held:
        """Let everybody talk for so long.

        Raises:
            Exception: whatever a conversation failed with.
        """
        held, clock = self._held, self._clock
        began_s = clock.now_s
        step_s = UNIT_S / len(self._seats)
        arrivals = [
            (began_s + index * step_s + second * UNIT_S, index)
            for index in range(len(self._seats))
            for second in range(seconds)
        ]
        heapq.heapify(arrivals)
        while not held.is_hopeless:
            self._take_in(arrivals)
            tasks = [seat.task for seat in self._seats if seat.task is not None]
            if tasks:
                self._run(tasks)
            elif arrivals:
                clock.skip_to(arrivals[0][0] + self._input_s)
            else:
                break
        held.lasted_s = clock.now_s - began_s
        return held

    def _take_in(self, arrivals: list[tuple[float, int]]) -> None:
        """Note whose input is complete by now, and begin units where nothing stands in the way."""
        now_s = self._clock.now_s
        while arrivals and arrivals[0][0] + self._input_s <= now_s:
            heard_s, index = heapq.heappop(arrivals)
            waiting = self._seats[index].waiting
            waiting.append(heard_s)
            if len(waiting) > BACKLOG_MAX:
                waiting.popleft()
                self._held.dropped += 1
        for seat in self._seats:
            if seat.task is None and seat.waiting:
                seat.heard_s, seat.first_sound_s = seat.waiting.popleft(), None
                seat.is_closing = False
                seat.task = Task(seat.speaker.next_unit(), seat.heard_s + UNIT_S)

    def _run(self, tasks: list[Task[Any]]) -> None:
        held, clock = self._held, self._clock
        before_s = clock.now_s
        clock.run(lambda: self._run_pass(tasks))
        held.spent_s += clock.now_s - before_s
        held.passes += 1
        held.tasks += len(tasks)
        for seat in self._seats:
            if seat.task is not None and seat.task.is_paused:
                self._look_at(seat, seat.task)

    def _look_at(self, seat: _Seat, task: Task[Any]) -> None:
        """Continue where a task has paused: after some sound, an answer or its bookkeeping."""
        now_s = self._clock.now_s
        task.take()  # raises what it failed with
        match task.state:
            case TaskState.EMITTED:
                seat.first_sound_s = seat.first_sound_s or now_s
            case _ if seat.is_closing:
                seat.task = None
            case _:
                self._held.units.append(PacedUnit(seat.heard_s, now_s, seat.first_sound_s))
                self._held.is_hopeless = self._is_hopeless()
                seat.is_closing = True
                seat.task = Task(seat.speaker.finalize(), seat.heard_s + UNIT_S)

    def _is_hopeless(self) -> bool:
        held = self._held
        seen = len(held.units) + held.dropped
        return (
            seen >= HOPELESS_MIN and seen % HOPELESS_MIN == 0 and held.late > HOPELESS_SHARE * seen
        )
