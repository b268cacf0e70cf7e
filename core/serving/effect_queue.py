"""Queues of a session's effects, each carried out in order, one at a time.

A session has three: work on the model, pictures ahead of their unit, and detection. Whatever goes
wrong in one becomes an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Generic, Protocol, TypeVar

import structlog

from core.engine import WorkCancelledError
from core.errors import GenerationFailedError, InternalError, OmniError
from core.protocols.effects import DetectorEffect, Look, WorkEffect
from core.protocols.events import EngineFailed, Event
from core.serving.inbox import Inbox
from core.serving.scheduling import Scheduler, TimerHandle

EffectT = TypeVar("EffectT")

Emit = Callable[[Event], Awaitable[None]]
"""Tells the machine an event; waits while too many are on their way to it."""

# A machine asks for the next work only after the last, so this is never reached.
QUEUED_MAX: Final = 16


class EffectHandler(Protocol):
    """Carries out what a machine asks of the engine, for one session.

    `perform`, `look` and `detect` run one effect at a time each, in order, and are never cancelled.
    """

    async def perform(self, effect: WorkEffect, emit: Emit) -> None:
        """Carry out one effect and emit what its docstring promises.

        Raises:
            OmniError: It failed, and the session with it; anything else raised is told as such.
        """
        ...

    async def look(self, effect: Look, emit: Emit) -> None:
        """Encode the pictures that `expect_look` was given; raises as `perform`."""
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

    def expect_look(self, effect: Look) -> None:
        """Take a `Look` when it is asked for; a `Step` may come before `look` does."""
        ...

    def interrupt(self) -> None:
        """Carry out `Interrupt` at once, without waiting."""
        ...

    def halt(self) -> None:
        """Carry out `Halt` at once, without waiting."""
        ...

    async def release(self) -> None:
        """Free everything; once, as the last call, when no effect is being carried out."""
        ...


class EffectQueue(Generic[EffectT]):
    """Carries out effects in order. Bounded: one more than fits is a mistake of the machine."""

    def __init__(
        self,
        perform: Callable[[EffectT, Emit], Awaitable[None]],
        inbox: Inbox,
        scheduler: Scheduler,
        stall_limit_s: float,
        log: structlog.stdlib.BoundLogger,
    ) -> None:
        """Begin idle.

        Args:
            perform: Carries one effect out.
            inbox: Where its events go.
            scheduler: The clock.
            stall_limit_s: Longest time between two signs of life of one effect.
            log: For what nobody expected.
        """
        self._perform = perform
        self._inbox = inbox
        self._scheduler = scheduler
        self._stall_limit_s = stall_limit_s
        self._log = log
        self._queue: asyncio.Queue[EffectT | None] = asyncio.Queue(QUEUED_MAX + 1)
        self._watch: TimerHandle | None = None

    def put(self, effect: EffectT) -> None:
        """Add an effect; it waits for the ones before.

        Raises:
            asyncio.QueueFull: The machine asked for far too much.
        """
        if self._queue.qsize() >= QUEUED_MAX:
            raise asyncio.QueueFull
        self._queue.put_nowait(effect)

    def end(self) -> None:
        """Let `run` return after the effects that are there."""
        self._queue.put_nowait(None)

    async def run(self) -> None:
        """Carry out effects until `end`."""
        while (effect := await self._queue.get()) is not None:
            self._rewind()
            try:
                await self._perform(effect, self._emit)
            except WorkCancelledError:
                self._log.info("engine_effect_cancelled", effect=type(effect).__name__)
            except OmniError as error:
                await self._emit(EngineFailed(error))
            except Exception:
                self._log.exception("engine_effect_failed", effect=type(effect).__name__)
                await self._emit(EngineFailed(InternalError()))
            finally:
                self._unwatch()

    async def _emit(self, event: Event) -> None:
        self._rewind()
        await self._inbox.put(replace(event, at_s=self._scheduler.now_s()))

    def _rewind(self) -> None:
        self._unwatch()
        self._watch = self._scheduler.call_later(self._stall_limit_s, self._stalled)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _stalled(self) -> None:
        self._watch = None
        self._log.error("engine_stalled", limit_s=self._stall_limit_s)
        error = GenerationFailedError("The engine does not answer.")
        self._inbox.post(EngineFailed(error, at_s=self._scheduler.now_s()))
