"""Time for the serve loop: a scheduler that tests can replace, named timers, bounded awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from core.protocols.events import TimerFired, TimerName

T = TypeVar("T")

LONG_AGO_S: Final = 0.0  # on any event loop's clock


class TimerHandle(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """Forget it; harmless if it has come."""
        ...


class Scheduler(Protocol):
    """A monotonic clock and calls that are to come."""

    def now_s(self) -> float:
        """Return the time."""
        ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after `delay_s`, on the event loop."""
        ...


class LoopScheduler:
    """The running event loop's own clock."""

    def now_s(self) -> float:
        """Return the time."""
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        """Call back after `delay_s`."""
        return asyncio.get_running_loop().call_later(delay_s, callback)


class Bound:
    """Awaits that end early: after a limit, or when `expire` is called."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Use the scheduler's clock."""
        self._scheduler = scheduler
        self._scopes: set[asyncio.Timeout] = set()
        self._is_expired = False

    async def run(self, work: Awaitable[T], limit_s: float) -> T:
        """Await `work`.

        Raises:
            TimeoutError: It took too long, or `expire` was called; it is cancelled then.
        """
        async with asyncio.timeout(LONG_AGO_S if self._is_expired else None) as scope:
            handle = self._scheduler.call_later(limit_s, lambda: self._end(scope))
            self._scopes.add(scope)
            try:
                return await work
            finally:
                self._scopes.discard(scope)
                handle.cancel()

    def expire(self) -> None:
        """End what is awaited now and whatever will be."""
        self._is_expired = True
        for scope in tuple(self._scopes):
            self._end(scope)

    def _end(self, scope: asyncio.Timeout) -> None:
        if scope in self._scopes:
            scope.reschedule(LONG_AGO_S)


class Timers:
    """The named timers of one machine; each runs at most once at a time."""

    def __init__(self, scheduler: Scheduler, tell: Callable[[TimerFired], None]) -> None:
        """Tell of each timer that runs out; `tell` must not wait."""
        self._scheduler = scheduler
        self._tell = tell
        self._running: dict[TimerName, TimerHandle] = {}
        self._told: set[TimerName] = set()  # ran out, and not yet taken in

    def start(self, name: TimerName, delay_s: float) -> None:
        """Start a timer, anew if it runs."""
        self.stop(name)
        self._running[name] = self._scheduler.call_later(delay_s, lambda: self._fire(name))

    def stop(self, name: TimerName) -> None:
        """Stop a timer, even one that has run out but was not taken in yet."""
        self._told.discard(name)
        handle = self._running.pop(name, None)
        if handle is not None:
            handle.cancel()

    def stop_all(self) -> None:
        """Stop every timer."""
        for name in TimerName:
            self.stop(name)

    def take_in(self, event: TimerFired) -> bool:
        """Say whether an expiry still counts; each counts once."""
        if event.name not in self._told:
            return False
        self._told.discard(event.name)
        return True

    def _fire(self, name: TimerName) -> None:
        self._running.pop(name, None)
        self._told.add(name)
        self._tell(TimerFired(name, at_s=self._scheduler.now_s()))


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def see_through(task: asyncio.Task[None]) -> None:
    """Await a task to its end, however often the caller is cancelled meanwhile.

    Raises:
        asyncio.CancelledError: Afterwards, if the caller was cancelled.
    """
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError
    task.result()
