"""Queues, timers and time limits of one connection.

Events wait in an inbox for the machine. Effects wait in queues and are carried out in order, one
at a time; whatever goes wrong in one becomes an event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import structlog

from core.engine import WorkCancelledError
from core.errors import GenerationFailedError, InternalError, OmniError
from core.protocols.effects import DetectorEffect, Prefetch, WorkEffect
from core.protocols.events import EngineFailed, Event, TimerFired, TimerName

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
        return asyncio.get_running_loop().time()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, callback)


class Bound:
    """Awaits that end early: after a limit, or when `expire` is called."""

    def __init__(self, scheduler: Scheduler) -> None:
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

    def __init__(self, scheduler: Scheduler, post: Callable[[TimerFired], None]) -> None:
        self._scheduler = scheduler
        self._post = post
        self._running: dict[TimerName, TimerHandle] = {}
        self._fired: set[TimerName] = set()  # ran out, and not yet taken in

    def start(self, name: TimerName, delay_s: float) -> None:
        """Start a timer, anew if it runs."""
        self.stop(name)
        self._running[name] = self._scheduler.call_later(delay_s, lambda: self._fire(name))

    def stop(self, name: TimerName) -> None:
        """Stop a timer, even one that has run out but was not taken in yet."""
        self._fired.discard(name)
        handle = self._running.pop(name, None)
        if handle is not None:
            handle.cancel()

    def stop_all(self) -> None:
        for name in TimerName:
            self.stop(name)

    def take_in(self, event: TimerFired) -> bool:
        """Say whether an expiry still counts; each counts once."""
        if event.name not in self._fired:
            return False
        self._fired.discard(event.name)
        return True

    def _fire(self, name: TimerName) -> None:
        self._running.pop(name, None)
        self._fired.add(name)
        self._post(TimerFired(name, at_s=self._scheduler.now_s()))


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def await_end(task: asyncio.Task[None]) -> None:
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


class Inbox:
    """A queue bounded in events and in bytes, which can be closed."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        """Begin empty.

        Args:
            max_events: Most events that wait, but for what is posted.
            max_bytes: Most bytes of messages that wait; a single one is always let in.
        """
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._entries: deque[tuple[Event, int]] = deque()
        self._size_bytes = 0
        self._is_closed = False
        self._line = asyncio.Lock()  # a fair one: senders are let in in order
        self._arrived = asyncio.Event()
        self._left = asyncio.Event()

    def __len__(self) -> int:
        """How many events wait inside."""
        return len(self._entries)

    async def put(self, event: Event, size_bytes: int = 0) -> None:
        """Add an event, waiting for room; once closed, return without adding."""
        async with self._line:
            while not (self._is_closed or self._has_room(size_bytes)):
                self._left.clear()
                await self._left.wait()
            self._let_in(event, size_bytes)

    def post(self, event: Event) -> None:
        """Add an event at once, room or not."""
        self._let_in(event, 0)

    async def get(self) -> Event:
        """Wait for the oldest event."""
        while not self._entries:
            self._arrived.clear()
            await self._arrived.wait()
        event, size_bytes = self._entries.popleft()
        self._size_bytes -= size_bytes
        self._left.set()
        return event

    def close(self) -> None:
        """Let nothing in any more; what waits for room is dropped."""
        self._is_closed = True
        self._left.set()

    def _has_room(self, size_bytes: int) -> bool:
        if not self._entries:
            return True
        fits = self._size_bytes + size_bytes <= self._max_bytes
        return fits and len(self._entries) < self._max_events

    def _let_in(self, event: Event, size_bytes: int) -> None:
        if not self._is_closed:
            self._entries.append((event, size_bytes))
            self._size_bytes += size_bytes
            self._arrived.set()


Emit = Callable[[Event], Awaitable[None]]
"""Posts an event to the machine; waits while the inbox is full."""

# A machine asks for the next work only after the last, so this is never reached.
QUEUED_MAX: Final = 16


class EffectHandler(Protocol):
    """Carries out what a machine asks of the engine, for one session.

    `perform`, `prefetch` and `detect` run one effect at a time each, in order, and to their end.
    """

    async def perform(self, effect: WorkEffect, emit: Emit) -> None:
        """Carry out one effect and emit what its docstring promises.

        Raises:
            OmniError: It failed, and the session with it; as does anything else raised.
        """
        ...

    async def prefetch(self, effect: Prefetch, emit: Emit) -> None:
        """Encode the pictures that `expect_prefetch` was given; raises as `perform`."""
        ...

    async def detect(self, effect: DetectorEffect, emit: Emit) -> None:
        """The same for voice activity detection; never on the event loop's thread.

        Raises:
            OmniError: It failed, and the session with it.
        """
        ...

    def expect(self) -> None:
        """Count an effect that was asked for; `perform` gets it after those before it."""
        ...

    def expect_prefetch(self, effect: Prefetch) -> None:
        """Take a `Prefetch` when it is asked for; a `Step` may come before `prefetch` does."""
        ...

    def interrupt(self) -> None:
        """Carry out `Interrupt` at once, without waiting."""
        ...

    def cancel(self) -> None:
        """Carry out `Cancel` at once, without waiting."""
        ...

    async def release(self) -> None:
        """Free everything; once, as the last call, when no effect is being carried out."""
        ...


async def carry_out(
    effects: asyncio.Queue[Any],  # Any: each queue has effects of its own type, and a None
    perform: Callable[[Any, Emit], Awaitable[None]],
    inbox: Inbox,
    scheduler: Scheduler,
    stall_limit_s: float,
    log: structlog.stdlib.BoundLogger,
) -> None:
    """Carry out effects in order, one at a time, until there is a None.

    Args:
        effects: What is asked for.
        perform: Carries one effect out.
        inbox: Where its events go.
        scheduler: The clock.
        stall_limit_s: Longest time between two signs of life of one effect.
        log: For unexpected failures.
    """
    watch: TimerHandle | None = None

    def rewind() -> None:
        nonlocal watch
        unwatch()
        watch = scheduler.call_later(stall_limit_s, stalled)

    def unwatch() -> None:
        nonlocal watch
        if watch is not None:
            watch.cancel()
            watch = None

    def stalled() -> None:
        nonlocal watch
        watch = None
        log.error("engine_stalled", limit_s=stall_limit_s)
        error = GenerationFailedError("The engine does not answer.")
        inbox.post(EngineFailed(error, at_s=scheduler.now_s()))

    async def emit(event: Event) -> None:
        if watch is not None:  # what an effect left behind may come after its end
            rewind()
        await inbox.put(replace(event, at_s=scheduler.now_s()))

    while (effect := await effects.get()) is not None:
        rewind()
        try:
            await perform(effect, emit)
        except WorkCancelledError:
            log.info("engine_effect_cancelled", effect=type(effect).__name__)
        except OmniError as error:
            await emit(EngineFailed(error))
        except Exception:
            log.exception("engine_effect_failed", effect=type(effect).__name__)
            await emit(EngineFailed(InternalError()))
        finally:
            unwatch()
