"""The one thread that touches the model: plain calls between rounds, and rounds for all sessions.

Knows nothing of the model itself; what a round is comes from whoever loads it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import structlog

from core.errors import GenerationFailedError, ShuttingDownError

T = TypeVar("T")


class GivenUpError(Exception):
    """Work was given up between two forward passes, because nobody wants its result."""


# A session has one piece of work under way and a few small calls; this is never reached.
WAITING_MAX: Final = 1_024
JOIN_LIMIT_S: Final = 5.0  # a model that hangs must not keep the program from ending


class Course(Protocol):
    """Work of one session that goes on round by round."""

    @property
    def stands_still(self) -> bool:
        """It has ended, or waits for somebody to look at what it made."""
        ...


class Rounds(Protocol):
    """Lets many courses go on together."""

    def run(self, courses: Sequence[Any]) -> None:
        """Run one round of each. Any: of whatever courses belong to these rounds."""
        ...


@dataclass(frozen=True, eq=False)
class _Call:
    work: Callable[[], Any]  # Any: of whatever type the caller waits for
    done: Future[Any]


@dataclass(frozen=True, eq=False)
class _Ride:
    course: Course
    done: Future[None]


class Engine:
    """Runs what it is given, in order of arrival, on its own thread.

    Overflow: beyond `WAITING_MAX` calls and courses that wait to begin, one more is refused.

    Attributes:
        worked_s: for how long it has worked; any thread may read it.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger | None = None) -> None:
        """Start the thread."""
        self._log = log or structlog.stdlib.get_logger("engine")
        self._changed = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._boarding: deque[_Ride] = deque()
        self._riding: list[_Ride] = []
        self._rounds: Rounds | None = None
        self._is_closed = False
        self.worked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """The caller is on the engine's thread."""
        return threading.current_thread() is self._thread

    def take_rounds(self, rounds: Rounds) -> None:
        """Drive courses by these rounds from now on."""
        self._rounds = rounds

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the thread, between two rounds.

        Raises:
            GenerationFailedError: Too much is waiting.
            ShuttingDownError: The engine was closed.
        """
        done: Future[T] = Future()
        with self._changed:
            self._check_room()
            self._calls.append(_Call(work, done))
            self._changed.notify()
        return done

    async def call(self, work: Callable[[], T]) -> T:
        """Do the same and wait for the result; it runs even if the caller is cancelled.

        Raises:
            OmniError: See `submit`; and whatever `work` raises.
        """
        return await asyncio.shield(asyncio.wrap_future(self.submit(work)))

    def drive(self, course: Course) -> None:
        """Let a course go on until it stands still; blocks the calling thread.

        On the engine's own thread it runs alone, and everybody else waits for it.

        Raises:
            GenerationFailedError: Too much is waiting, or a round broke.
            ShuttingDownError: The engine was closed.
        """
        assert self._rounds is not None, "no model is loaded"
        if self.is_here:
            self._rounds.run([course])
            while not course.stands_still:
                self._rounds.run([course])
            return
        ride = _Ride(course, Future())
        with self._changed:
            self._check_room()
            self._boarding.append(ride)
            self._changed.notify()
        ride.done.result()

    def run_here(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread, which may be the caller's; blocks until it is done.

        Raises:
            OmniError: See `submit`; and whatever `work` raises.
        """
        return work() if self.is_here else self.submit(work).result()

    def close(self) -> None:
        """End the thread after what it does now; what waits is refused. Blocks a little."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(JOIN_LIMIT_S)
        if self._thread.is_alive():  # whoever waits for it must not wait for ever
            self._log.error("engine_hangs_at_its_end")
            self._refuse_rest()

    def _check_room(self) -> None:
        if self._is_closed:
            raise ShuttingDownError()
        if len(self._calls) + len(self._boarding) >= WAITING_MAX:
            raise GenerationFailedError("The engine is overloaded.")

    # --- on the thread ---

    def _run(self) -> None:
        while not self._is_closed:
            calls = self._take_in()
            began_s = time.monotonic()
            for call in calls:
                _carry_out(call)
            if self._riding:
                self._riding = self._ride(self._riding)
            self.worked_s += time.monotonic() - began_s
        self._refuse_rest()

    def _take_in(self) -> list[_Call]:
        """Wait until there is something to do; new courses join those that are riding."""
        with self._changed:
            while not (self._calls or self._boarding or self._riding or self._is_closed):
                self._changed.wait()
            self._riding.extend(self._boarding)
            self._boarding.clear()
            calls = list(self._calls)
            self._calls.clear()
        return calls

    def _ride(self, riding: list[_Ride]) -> list[_Ride]:
        """Run one round; return the courses that need another one."""
        assert self._rounds is not None
        try:
            self._rounds.run([ride.course for ride in riding])
        except Exception:
            self._log.exception("engine_round_failed")
            for ride in riding:
                ride.done.set_exception(GenerationFailedError())
            return []
        for ride in riding:
            if ride.course.stands_still and not ride.done.done():  # refused, if it took too long
                ride.done.set_result(None)
        return [ride for ride in riding if not ride.course.stands_still]

    def _refuse_rest(self) -> None:
        with self._changed:
            waiting: list[_Ride | _Call] = [*self._riding, *self._boarding, *self._calls]
        for entry in waiting:
            if not entry.done.done():
                entry.done.set_exception(ShuttingDownError())


def _carry_out(call: _Call) -> None:
    if not call.done.set_running_or_notify_cancel():
        return
    try:
        result = call.work()
    except Exception as error:
        call.done.set_exception(error)
        return
    call.done.set_result(result)
