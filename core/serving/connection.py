"""The one loop that runs any machine against any socket.

It carries effects out and knows no rule of any protocol. Whatever happens, the machine's one
`Release` is carried out, every task it started has ended, and the socket is closed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from core.errors import CloseCode, InternalError, OmniError, describe_error
from core.protocols.effects import (
    Cancel,
    Close,
    Detect,
    DetectorEffect,
    Effect,
    Hear,
    Interrupt,
    Prefetch,
    Release,
    ResetDetector,
    Send,
    StartTimer,
    StopTimer,
    Transcribe,
    WorkEffect,
)
from core.protocols.events import (
    ClientAway,
    Disconnected,
    Event,
    Noticed,
    Opened,
    ShuttingDown,
    StopRequested,
    TimerFired,
)
from core.schemas.queue import ErrorMessage
from core.schemas.worker import WorkerStatus
from core.serving.observers import Observer
from core.serving.queues import (
    QUEUED_MAX,
    Bound,
    EffectHandler,
    Inbox,
    LoopScheduler,
    Scheduler,
    Timers,
    await_end,
    carry_out,
    end_task,
)
from core.serving.wire import Wire

EffectT = TypeVar("EffectT")


class Machine(Protocol):
    """What the loop needs of a machine."""

    @property
    def is_closed(self) -> bool:
        """Nothing will be asked for any more."""
        ...

    @property
    def status(self) -> WorkerStatus:
        """What the worker is doing because of this session."""
        ...

    def handle(self, event: Event) -> list[Effect]:
        """Take in an event and return what is to be done."""
        ...


@dataclass(frozen=True)
class ServeLimits:
    """Bounds of one connection. Ours.

    Attributes:
        inbox_events: most events on their way to the machine, which may also hold no more bytes
            than the largest message; then senders wait.
        stall_limit_s: longest silence of the engine during work.
        close_wait_s: how long the socket stays open while the session is being released.
    """

    inbox_events: int = 64
    stall_limit_s: float = 60.0
    close_wait_s: float = 5.0


class _EffectQueues:
    """The queues of effects and the release after them: everything that must end by itself."""

    def __init__(
        self,
        handler: EffectHandler,
        inbox: Inbox,
        scheduler: Scheduler,
        stall_limit_s: float,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        self.handler = handler
        self._log = log
        self._parts = (inbox, scheduler, stall_limit_s, log)
        # One place more, for the None that ends a queue.
        self.work: asyncio.Queue[WorkEffect | None] = asyncio.Queue(QUEUED_MAX + 1)
        self.prefetching: asyncio.Queue[Prefetch | None] = asyncio.Queue(QUEUED_MAX + 1)
        self.detecting: asyncio.Queue[DetectorEffect | None] = asyncio.Queue(QUEUED_MAX + 1)
        self.released = asyncio.Event()
        self.is_ending = False

    def cancel(self) -> None:
        """End running work though no machine asks for it."""
        try:
            self.handler.cancel()
        except Exception:
            self._log.exception("cancel_failed")

    def end(self) -> None:
        """Release once all queues have done what they were asked."""
        if not self.is_ending:
            self.is_ending = True
            for queue in (self.work, self.prefetching, self.detecting):
                queue.put_nowait(None)

    async def run(self) -> None:
        """Run the queues to their end, then release."""
        try:
            await asyncio.gather(
                carry_out(self.work, self.handler.perform, *self._parts),
                carry_out(self.prefetching, self.handler.prefetch, *self._parts),
                carry_out(self.detecting, self.handler.detect, *self._parts),
            )
            await self.handler.release()
        except Exception:
            self._log.exception("release_failed")
        finally:
            self.released.set()


@dataclass
class Connection:
    """One accepted socket, one machine, one handler.

    Attributes:
        wire: the client.
        machine: the rules.
        handler: the engine, for this session.
        observers: see every event with its effects before these are carried out.
        scheduler: the clock.
        limits: bounds.
        log: with the session's id bound to it.
    """

    wire: Wire
    machine: Machine
    handler: EffectHandler
    observers: Sequence[Observer] = ()
    scheduler: Scheduler = field(default_factory=LoopScheduler)
    limits: ServeLimits = field(default_factory=ServeLimits)
    log: structlog.stdlib.BoundLogger = field(default_factory=structlog.stdlib.get_logger)

    def __post_init__(self) -> None:
        """Make what carries events and effects."""
        self._inbox = Inbox(self.limits.inbox_events, self.wire.largest_bytes)
        self._timers = Timers(self.scheduler, self._inbox.post)
        self._queues = _EffectQueues(
            self.handler, self._inbox, self.scheduler, self.limits.stall_limit_s, self.log
        )
        self._is_stop_posted = False
        self._watching = list(self.observers)

    @property
    def status(self) -> WorkerStatus:
        """What the worker is doing because of this connection."""
        return self.machine.status

    @property
    def is_released(self) -> bool:
        """The session is freed."""
        return self._queues.released.is_set()

    def request_stop(self) -> None:
        """Stop what is going on, as the machine says; asked twice before it hears is asked once."""
        if not self._is_stop_posted:
            self._is_stop_posted = True
            self._inbox.post(StopRequested(at_s=self.scheduler.now_s()))

    def shut_down(self) -> None:
        """End: the program does not wait any longer."""
        self._inbox.post(ShuttingDown(at_s=self.scheduler.now_s()))

    def notice(self, problem: OmniError) -> None:
        """Have the client warned of something that does not end the session."""
        self._inbox.post(Noticed(problem, at_s=self.scheduler.now_s()))

    def note_away(self, is_away: bool) -> None:
        """The client's socket broke, or another one took its place."""
        self._inbox.post(ClientAway(is_away, at_s=self.scheduler.now_s()))

    async def serve(self) -> None:
        """Run until the machine has closed, everything is released and the socket is closed."""
        work = asyncio.create_task(self._queues.run())
        reading = asyncio.create_task(self._read())
        try:
            # A task of its own: an event wakes neither the route nor the middleware around it.
            await asyncio.create_task(self._run())
        finally:
            self._leave_nothing_open()
            await await_end(asyncio.create_task(self._wind_up(reading, work)))

    # --- what feeds the inbox ---

    async def _read(self) -> None:
        event: Event | None = None
        while not isinstance(event, Disconnected):
            try:
                event, size_bytes = await self.wire.read()
            except Exception:
                self.log.exception("receive_failed")
                event, size_bytes = self.wire.lose("receiving failed"), 0
            if isinstance(event, Disconnected):
                self._inbox.post(event)
            else:
                await self._inbox.put(event, size_bytes)

    # --- the loop ---

    async def _run(self) -> None:
        try:
            await self._take_in(Opened(at_s=self.scheduler.now_s()))
            while not self.machine.is_closed:
                event = await self._inbox.get()
                if not isinstance(event, TimerFired) or self._timers.take_in(event):
                    await self._take_in(event)
        except Exception as error:
            self.log.exception("serve_loop_failed")
            if not self.machine.is_closed:
                await self.wire.send(ErrorMessage.of(InternalError()))
            await self.wire.close(Close(describe_error(error).close_code, "internal"))

    async def _take_in(self, event: Event) -> None:
        if isinstance(event, StopRequested):
            self._is_stop_posted = False
        for effect in self._ask(event):
            await self._carry_out(effect)
        if self.wire.is_lost and not self.machine.is_closed:
            await self._take_in(Disconnected("the client is gone", at_s=self.scheduler.now_s()))

    def _ask(self, event: Event) -> list[Effect]:
        """Let the machine decide and the observers know."""
        effects = self.machine.handle(event)
        if self.machine.is_closed:
            self._inbox.close()  # the queues must not wait for a loop that waits for them
        for observer in tuple(self._watching):
            try:
                observer.observe(event, effects)
            except Exception:
                self.log.exception("observer_failed", observer=type(observer).__name__)
                self._watching.remove(observer)
        return effects

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(message):
                await self.wire.send(message)
            case Close():
                await self._close(effect)
            case _:
                self._start(effect)

    def _start(self, effect: Effect) -> None:
        """Carry out what needs no waiting."""
        match effect:
            case StartTimer(name, delay_s):
                self._timers.start(name, delay_s)
            case StopTimer(name):
                self._timers.stop(name)
            case Interrupt():
                self.handler.interrupt()
            case Cancel():
                self.handler.cancel()
            case Prefetch():
                self.handler.expect_prefetch(effect)
                _ask_for(self._queues.prefetching, effect)
            case Detect() | ResetDetector() | Hear() | Transcribe():
                _ask_for(self._queues.detecting, effect)
            case Release():
                self._queues.end()
            case Send() | Close():
                raise AssertionError("these are awaited")
            case _:
                self.handler.expect()
                _ask_for(self._queues.work, effect)

    async def _close(self, effect: Close) -> None:
        """Close once the session is released, or has not been for too long."""
        try:
            limit_s = self.limits.close_wait_s
            await Bound(self.scheduler).run(self._queues.released.wait(), limit_s)
        except TimeoutError:
            self.log.warning("release_is_slow", limit_s=self.limits.close_wait_s)
        await self.wire.close(effect)

    # --- the end ---

    def _leave_nothing_open(self) -> None:
        """Bring the machine to its end, whatever stopped the loop."""
        try:
            if not self.machine.is_closed:
                for effect in self._ask(Disconnected("cancelled", at_s=self.scheduler.now_s())):
                    self._start(effect)
        except Exception:
            self.log.exception("machine_failed")
        if not self._queues.is_ending:
            self._queues.cancel()
        self._timers.stop_all()
        self._inbox.close()
        self._queues.end()

    async def _wind_up(self, reading: asyncio.Task[None], work: asyncio.Task[None]) -> None:
        """Wait for the release; close what is still open; let the observers finish."""
        await end_task(reading)
        try:
            await self.wire.close(Close(CloseCode.SHUTDOWN))
        except Exception:
            self.log.exception("close_failed")
        await work
        for observer in self.observers:
            try:
                await observer.close()
            except Exception:
                self.log.exception("observer_failed", observer=type(observer).__name__)


def _ask_for(queue: asyncio.Queue[EffectT | None], effect: EffectT) -> None:
    """Add an effect; it waits for the ones before.

    Raises:
        asyncio.QueueFull: The machine asked for far too much.
    """
    if queue.qsize() >= QUEUED_MAX:
        raise asyncio.QueueFull
    queue.put_nowait(effect)
