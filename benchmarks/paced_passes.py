"""Many conversations over the passes of a worker, with a second of input per second.

Idle time is skipped, so two minutes of a few conversations take only their busy time. Does not
depend on the model.
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
    """A clock that runs during work and skips idle time."""

    @property
    def now_s(self) -> float: ...

    def run(self, work: Callable[[], None]) -> None:
        """Run work and advance the clock."""
        ...

    def skip_to(self, now_s: float) -> None:
        """Advance the clock, if it is earlier."""
        ...


class SkippingClock:
    """Real time without idle time."""

    def __init__(self, wait: Callable[[], None]) -> None:
        """Start at 0; `wait` synchronises with the device before time is skipped."""
        self._wait = wait
        self._now_s = 0.0

    @property
    def now_s(self) -> float:
        return self._now_s

    def run(self, work: Callable[[], None]) -> None:
        began_s = time.perf_counter()
        work()
        self._now_s += time.perf_counter() - began_s

    def skip_to(self, now_s: float) -> None:
        self.run(self._wait)
        self._now_s = max(self._now_s, now_s)


class Speaker(Protocol):
    """A conversation."""

    def next_unit(self) -> Steps[Any]:
        """Begin the next unit; its steps end with the answer."""
        ...

    def finalize(self) -> Steps[Any]:
        """Return the steps after the answer."""
        ...


@dataclass(frozen=True)
class PacedUnit:
    """Times of one unit, in seconds since the beginning.

    Attributes:
        heard_s: its input was complete.
        done_s: it was answered.
        first_sound_s: its first audio was ready; None if not measured.
    """

    heard_s: float
    done_s: float
    first_sound_s: float | None = None

    @property
    def latency_s(self) -> float:
        """From complete input to the answer."""
        return self.done_s - self.heard_s

    @property
    def is_late(self) -> bool:
        """The next unit's input was complete before the answer."""
        return self.latency_s > UNIT_S


@dataclass
class Held:
    """Results of a run.

    Attributes:
        units: in order of the answers.
        dropped: units dropped because too many waited.
        spent_s: busy time.
        lasted_s: total time.
        passes: number of passes.
        tasks: conversations in a pass, summed over the passes.
        is_hopeless: stopped early because too many units were late.
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
        """Number of late and dropped units."""
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
    """Concurrent conversations."""

    def __init__(
        self, speakers: Sequence[Speaker], run_pass: RunPass, clock: Clock, input_s: float = 0.0
    ) -> None:
        """Set up the conversations.

        Args:
            speakers: the conversations; their units are complete at evenly distributed times.
            run_pass: answers them, with the same clock.
            clock: the clock.
            input_s: time of the preprocessing of a unit's input.
        """
        self._seats = [_Seat(speaker) for speaker in speakers]
        self._run_pass = run_pass
        self._clock = clock
        self._input_s = input_s
        self._held = Held()

    def hold(self, seconds: int) -> Held:
        """Run the conversations for some time.

        Raises:
            Exception: the error of a conversation.
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
        """Record complete inputs and begin the units that can begin."""
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
        """Continue a task after early audio, an answer or its last step."""
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
