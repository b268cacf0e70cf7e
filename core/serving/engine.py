"""The one thread that touches the model: plain calls between rounds, and rounds for all sessions.

Knows nothing of the model itself; what a round is comes from the code that loads it. No work can
end the thread unseen, and every future that was handed out is settled.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import structlog

from core.errors import GenerationFailedError, ShuttingDownError
from core.serving.heartbeat import Heartbeat

T = TypeVar("T")


class GivenUpError(Exception):
    """Work was given up between two forward passes, because nobody wants its result."""


# A session has one piece of work under way and a few small calls; this is never reached.
WAITING_MAX: Final = 1_024
JOIN_LIMIT_S: Final = 5.0  # a model that hangs must not keep the program from ending
GAUGE_S: Final = 0.25  # ours: at least so often is the gauge read while there is work


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


@dataclass
class _Gauge:
    read: Callable[[], None] = lambda: None
    read_s: float = 0.0

    def read_if_due(self, *, is_idle: bool) -> None:
        now_s = time.monotonic()
        if is_idle or now_s >= self.read_s + GAUGE_S:
            self.read_s = now_s
            self.read()


class Engine:
    """Runs what it is given, in order of arrival, on its own thread.

    Overflow: beyond `WAITING_MAX` calls and courses that wait to begin, one more is refused. Calls
    that free something are never refused; there is one for each conversation that exists.

    Attributes:
        heartbeat: when the thread works; each call and each round is one piece of work.
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
        self._failure: str | None = None  # what ended the thread, if anything did
        self._gauge = _Gauge()
        self._current: _Call | None = None
        self.heartbeat = Heartbeat()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """The caller is on the engine's thread."""
        return threading.current_thread() is self._thread

    def take_rounds(self, rounds: Rounds) -> None:
        """Drive courses by these rounds from now on."""
        self._rounds = rounds

    def take_gauge(self, read: Callable[[], None]) -> None:
        """Read a gauge on the thread, between rounds and whenever no more work waits."""
        self._gauge = _Gauge(read)

    def problem(self, limit_s: float) -> str | None:
        """Say what is wrong with the thread, if anything; any thread may ask.

        Args:
            limit_s: longest time for one call or round.
        """
        if self._failure is not None:
            return f"The engine has ended: {self._failure}"
        if self.heartbeat.silent_s > limit_s:
            return "The engine does not answer."
        return None

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` on the thread, between two rounds.

        Raises:
            GenerationFailedError: Too much is waiting.
            ShuttingDownError: The engine was closed.
        """
        return self._submit(work, is_bounded=True)

    async def free(self, work: Callable[[], object]) -> None:
        """Run `work` that frees something, however much is waiting.

        Raises:
            ShuttingDownError: The engine was closed; and whatever `work` raises.
        """
        await asyncio.shield(asyncio.wrap_future(self._submit(work, is_bounded=False)))

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
            self._check_room(is_bounded=True)
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

    def _submit(self, work: Callable[[], T], *, is_bounded: bool) -> Future[T]:
        done: Future[T] = Future()
        with self._changed:
            self._check_room(is_bounded=is_bounded)
            self._calls.append(_Call(work, done))
            self._changed.notify()
        return done

    def _check_room(self, *, is_bounded: bool) -> None:
        if self._is_closed:
            raise ShuttingDownError()
        if is_bounded and len(self._calls) + len(self._boarding) >= WAITING_MAX:
            raise GenerationFailedError("The engine is overloaded.")

    # --- on the thread ---

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._work_once()
        except BaseException as error:
            self._failure = f"{type(error).__name__}: {error}"
            self._log.exception("engine_ended")
        finally:
            with self._changed:
                self._is_closed = True
            self._refuse_rest()

    def _work_once(self) -> None:
        """Carry out the calls that wait, then one round."""
        for _ in range(self._wait_for_work()):
            with self.heartbeat.beat():
                self._current = self._calls.popleft()
                _carry_out(self._current)
                self._current = None
        if self._riding:
            with self.heartbeat.beat():
                self._riding = self._ride(self._riding)
        self._read_gauge()

    def _wait_for_work(self) -> int:
        """Wait for something to do; new courses join those that are riding.

        Returns:
            How many calls wait.
        """
        with self._changed:
            while not (self._calls or self._boarding or self._riding or self._is_closed):
                self._changed.wait()
            self._riding.extend(self._boarding)
            self._boarding.clear()
            return len(self._calls)

    def _ride(self, riding: list[_Ride]) -> list[_Ride]:
        """Run one round; return the courses that need another one."""
        assert self._rounds is not None
        try:
            self._rounds.run([ride.course for ride in riding])
            going = [ride for ride in riding if not ride.course.stands_still]
        except BaseException:
            self._log.exception("engine_round_failed")
            for ride in riding:
                _fail(ride.done, GenerationFailedError())
            return []
        for ride in riding:
            if ride not in going:
                _settle(ride.done, None)
        return going

    def _read_gauge(self) -> None:
        try:
            self._gauge.read_if_due(is_idle=not (self._calls or self._boarding or self._riding))
        except Exception:
            self._log.exception("engine_gauge_failed")

    def _refuse_rest(self) -> None:
        with self._changed:
            waiting: list[_Ride | _Call] = [*self._riding, *self._boarding, *self._calls]
        if self._current is not None:
            waiting.append(self._current)
        for entry in waiting:
            _fail(entry.done, ShuttingDownError())


def _carry_out(call: _Call) -> None:
    try:
        if not call.done.set_running_or_notify_cancel():
            return
        result = call.work()
    except BaseException as error:  # even an exit is meant for the caller, not for this thread
        _fail(call.done, error)
        return
    _settle(call.done, result)


# What `close` has refused meanwhile, because it took too long, stays refused.


def _settle(done: Future[Any], result: object) -> None:
    with suppress(InvalidStateError):
        done.set_result(result)


def _fail(done: Future[Any], error: BaseException) -> None:
    with suppress(InvalidStateError):
        done.set_exception(error)
