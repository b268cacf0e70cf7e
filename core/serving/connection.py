"""The serve loop: runs any protocol machine against any socket.

It carries out effects and knows no protocol's rules. However a session ends, its machine's one
`Release` is carried out, every task has ended, and the socket is closed once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from core.engine import WorkCancelledError
from core.errors import CloseCode, GenerationFailedError, InternalError, OmniError, describe_error
from core.protocols import effects, events
from core.protocols.machine import SessionMachine
from core.schemas.chat import ChatSocketRequest
from core.schemas.queue import ErrorMessage, WarningMessage
from core.serving.observers import Observer
from core.serving.session_handler import Emit, SessionHandler
from core.serving.wire import Inbox, Wire, await_end, end_task, loop_time_s
from core.sockets import ClientGoneError

# A machine requests the next work only after the last has ended, so this is never reached.
QUEUED_MAX: Final = 16
INBOX_EVENTS: Final = 64  # ours
STALL_LIMIT_S: Final = 60.0  # ours: longest time without an event of the engine during work
# Ours: the same for a reply generated as a whole; the default of `service.request_timeout`.
WHOLE_REPLY_LIMIT_S: Final = 300.0
CLOSE_WAIT_S: Final = 5.0  # ours: the socket stays open so long while the session is released


SESSION_LOG: Final = "session"


class Timers:
    def __init__(self, post: Callable[[events.TimerFired], None]) -> None:
        self._post = post
        # None: it has expired, and is not claimed yet.
        self._started: dict[events.TimerName, asyncio.TimerHandle | None] = {}

    def start(self, name: events.TimerName, delay_s: float) -> None:
        self.stop(name)
        loop = asyncio.get_running_loop()
        self._started[name] = loop.call_later(delay_s, self._fire, name)

    def stop(self, name: events.TimerName) -> None:
        """Stop a timer, even if it has expired but was not claimed yet."""
        handle = self._started.pop(name, None)
        if handle is not None:
            handle.cancel()

    def claim(self, event: events.TimerFired) -> bool:
        """Return whether an expiry is still valid; each is valid once."""
        is_valid = event.name in self._started and self._started[event.name] is None
        if is_valid:
            del self._started[event.name]
        return is_valid

    def _fire(self, name: events.TimerName) -> None:
        self._started[name] = None
        self._post(events.TimerFired(name))


@dataclass
class Connection:
    """Serves one accepted socket with one machine and one handler."""

    wire: Wire
    machine: SessionMachine
    handler: SessionHandler[Any]
    observers: Sequence[Observer] = ()
    log: structlog.stdlib.BoundLogger = field(default_factory=structlog.stdlib.get_logger)

    def __post_init__(self) -> None:
        self._inbox = Inbox(INBOX_EVENTS, self.wire.endpoint.largest_bytes)
        self._timers = Timers(self._inbox.post)
        # Any: each queue has effects of its own type. None ends a queue, hence the extra place.
        self._work, self._prefetching, self._detecting = (
            asyncio.Queue[Any](QUEUED_MAX + 1) for _ in range(3)
        )
        self._is_releasing = False
        self.released = asyncio.Event()
        self._is_stop_posted = False
        self._watching = list(self.observers)
        self._logs_events = logging.getLogger(SESSION_LOG).isEnabledFor(logging.DEBUG)
        self._events = 0
        self._began_s = 0.0

    def post(self, event: events.Event) -> None:
        """Have the machine handle an event; a `StopRequested` is dropped while another waits."""
        if isinstance(event, events.StopRequested):
            if self._is_stop_posted:
                return
            self._is_stop_posted = True
        self._inbox.post(event)

    async def serve(self) -> None:
        """Run until the machine is closed, the session released and the socket closed."""
        work = asyncio.create_task(self._run_handler())
        reading = asyncio.create_task(self._read())
        try:
            # In its own task, so that an event does not wake the route and its middleware.
            await asyncio.create_task(self._run())
        finally:
            self._end_machine()
            await await_end(asyncio.create_task(self._finish(reading, work)))

    async def _read(self) -> None:
        """Read the client's messages until the socket closes; the last event is `Disconnected`."""
        try:
            await self._inbox.read(self.wire.socket, self.wire.endpoint, self.handler.check)
        except ClientGoneError as error:
            reason = str(error)
            self.wire.lose(is_closed=True)
        except Exception:
            self.log.exception("receive_failed")
            reason = "receiving failed"
            self.wire.lose()
        self._inbox.post(events.Disconnected(reason))

    # --- the loop ---

    async def _run(self) -> None:
        try:
            await self._handle(events.Opened(at_s=loop_time_s()))
            while not self.machine.is_closed:
                event = await self._inbox.get()
                if not isinstance(event, events.TimerFired) or self._timers.claim(event):
                    await self._handle(event)
        except Exception as error:
            self.log.exception("serve_loop_failed")
            if not self.machine.is_closed:
                await self.wire.send(ErrorMessage.of(InternalError()))
            await self.wire.close(effects.Close(describe_error(error).close_code, "internal"))

    async def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.StopRequested):
            self._is_stop_posted = False
        for effect in self._effects_of(event):
            match effect:
                case effects.Send(message):
                    await self.wire.send(message)
                case effects.Close():
                    await self._close(effect)
                case _:
                    self._start(effect)
        if self.wire.is_lost and not self.machine.is_closed:
            await self._handle(events.Disconnected("the client is gone", at_s=loop_time_s()))

    def _effects_of(self, event: events.Event) -> list[effects.Effect]:
        """Return an event's effects, after passing both to the observers."""
        made = self.machine.handle(event)
        if self.machine.is_closed:
            self._inbox.close()  # else the queues could wait for a loop that waits for them
        self._log(event, made)
        for observer in tuple(self._watching):
            try:
                observer.observe(event, made)
            except Exception:
                self.log.exception("observer_failed", observer=type(observer).__name__)
                self._watching.remove(observer)
        return made

    def _log(self, event: events.Event, made: Sequence[effects.Effect]) -> None:
        self._events += 1
        match event:
            case events.Opened():
                self._began_s = event.at_s
                self.log.info("session_opened")
            case events.Disconnected(reason=reason):
                self.log.info("client_gone", reason=reason)
            case events.EngineFailed(error=error):
                self.log.error("engine_failed", code=error.code, message=error.message)
            case events.Rejected(error=error):
                self.log.warning("message_rejected", code=error.code, message=error.message)
        for effect in made:
            match effect:
                case effects.Send(WarningMessage(code=code, message=text)):
                    self.log.warning("client_warned", code=code.value, message=text)
                case effects.Send(ErrorMessage(code=code, message=text)):
                    self.log.error("session_failed", code=code.value, message=text)
                case effects.Close(code=close_code, reason=reason):
                    self.log.info(
                        "session_closed",
                        close_code=int(close_code),
                        reason=reason,
                        cause=event.kind,
                        duration_s=round(event.at_s - self._began_s, 3),
                    )
        if self._logs_events:
            self.log.debug("event", kind=event.kind, effects=[effects.label(each) for each in made])

    def _start(self, effect: effects.Effect) -> None:
        match effect:
            case effects.StartTimer(name, delay_s):
                self._timers.start(name, delay_s)
            case effects.StopTimer(name):
                self._timers.stop(name)
            case effects.Interrupt():
                self.handler.interrupt()
            case effects.Cancel():
                self.handler.cancel()
            case effects.Prefetch():
                self.handler.expect_prefetch(effect)
                _enqueue(self._prefetching, effect)
            case effects.Detect() | effects.ResetDetector() | effects.ScoreSpeech():
                _enqueue(self._detecting, effect)
            case effects.Transcribe():  # any number of them
                self.handler.transcribe(effect, self._emit)
            case effects.Release():
                self._end_queues()
            case effects.Send() | effects.Close():
                raise AssertionError("these are awaited")
            case _:
                self.handler.expect()
                _enqueue(self._work, effect)

    async def _close(self, effect: effects.Close) -> None:
        """Close the socket once the session is released, or after a limit."""
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self.released.wait()
        except TimeoutError:
            self.log.warning("release_is_slow", limit_s=CLOSE_WAIT_S)
        await self.wire.close(effect)

    # --- the handler's effects ---

    async def _run_handler(self) -> None:
        try:
            await asyncio.gather(
                self._carry_out(self._work, self.handler.perform),
                self._carry_out(self._prefetching, self.handler.prefetch),
                self._carry_out(self._detecting, self.handler.detect),
            )
            await self.handler.release()
        except Exception:
            self.log.exception("release_failed")
        finally:
            self.released.set()

    async def _carry_out(
        self, queue: asyncio.Queue[Any], perform: Callable[[Any, Emit], Awaitable[None]]
    ) -> None:
        """Carry out effects one at a time, in order, until a None.

        An exception becomes an event, and so does too long a time without an event.
        """
        watch: asyncio.TimerHandle | None = None
        limit_s = STALL_LIMIT_S

        def rewind() -> None:
            nonlocal watch
            if watch is not None:
                watch.cancel()
            watch = asyncio.get_running_loop().call_later(limit_s, stalled)

        def stalled() -> None:
            self.log.error("engine_stalled", limit_s=limit_s)
            self._inbox.post(
                events.EngineFailed(GenerationFailedError("The engine does not answer."))
            )

        async def emit(event: events.Event) -> None:
            if watch is not None:  # a background task may emit after the effect has ended
                rewind()
            await self._emit(event)

        while (effect := await queue.get()) is not None:
            match effect:
                case effects.Generate(ChatSocketRequest(streaming=False)):
                    limit_s = WHOLE_REPLY_LIMIT_S
                case _:
                    limit_s = STALL_LIMIT_S
            rewind()
            try:
                await perform(effect, emit)
            except WorkCancelledError:
                self.log.info("engine_effect_cancelled", effect=type(effect).__name__)
            except OmniError as error:
                await emit(events.EngineFailed(error))
            except Exception:
                self.log.exception("engine_effect_failed", effect=type(effect).__name__)
                await emit(events.EngineFailed(InternalError()))
            finally:
                assert watch is not None
                watch.cancel()
                watch = None

    async def _emit(self, event: events.Event) -> None:
        await self._inbox.put(replace(event, at_s=loop_time_s()))

    def _end_queues(self) -> None:
        """Release once all requested effects are carried out."""
        if not self._is_releasing:
            self._is_releasing = True
            for queue in (self._work, self._prefetching, self._detecting):
                queue.put_nowait(None)

    # --- the end ---

    def _end_machine(self) -> None:
        """Close the machine if the loop ended early."""
        try:
            if not self.machine.is_closed:
                cancelled = events.Disconnected("cancelled", at_s=loop_time_s())
                for effect in self._effects_of(cancelled):
                    self._start(effect)
        except Exception:
            self.log.exception("machine_failed")
        try:
            if not self._is_releasing:  # the machine has not cancelled the work
                self.handler.cancel()
        except Exception:
            self.log.exception("cancel_failed")
        for name in events.TimerName:
            self._timers.stop(name)
        self._inbox.close()
        self._end_queues()

    async def _finish(self, reading: asyncio.Task[None], work: asyncio.Task[None]) -> None:
        """Wait for the release; close what is still open; let the observers finish."""
        await end_task(reading)
        try:
            await self.wire.close(effects.Close(CloseCode.SHUTDOWN))
        except Exception:
            self.log.exception("close_failed")
        await work
        for observer in self.observers:
            try:
                await observer.close()
            except Exception:
                self.log.exception("observer_failed", observer=type(observer).__name__)
        self.log.info("session_released", events=self._events)


def _enqueue(queue: asyncio.Queue[Any], effect: effects.Effect) -> None:
    """Add an effect; raises `asyncio.QueueFull` if the machine requests far too much."""
    if queue.qsize() >= QUEUED_MAX:
        raise asyncio.QueueFull
    queue.put_nowait(effect)
