"""Who watches a session without taking part: the contract, a log, and counters.

An observer sees each event with the effects it led to, before these are carried out. It must not
wait in `saw`; one that raises is left out from then on and the session goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from core.metrics import WorkerMetrics
from core.protocols.effects import Close, Effect, Generate, Send, label
from core.protocols.events import (
    MS_PER_S,
    Disconnected,
    EngineFailed,
    Event,
    FinalizeDone,
    Opened,
    Received,
    Rejected,
)
from core.schemas.duplex import Prepare, Result, ResultPart
from core.schemas.half_duplex import TurnDone
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import Chunk, Done


class Observer(Protocol):
    """Watches one session."""

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        """Note an event and what it led to; on the event loop, without waiting."""
        ...

    async def close(self) -> None:
        """Finish; called once, after the session is released."""
        ...


class LogObserver:
    """Writes what matters of a session to the log: its beginning, problems, and its end."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._began_s = 0.0
        self._events = 0

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        self._events += 1
        match event:
            case Opened():
                self._began_s = event.at_s
                self._log.info("session_opened")
            case Disconnected(reason=reason):
                self._log.info("client_gone", reason=reason)
            case EngineFailed(error=error):
                self._log.error("engine_failed", code=error.code, message=error.message)
            case Rejected(error=error):
                self._log.warning("message_rejected", code=error.code, message=error.message)
        for effect in effects:
            self._log_effect(event, effect)
        self._log.debug("event", kind=event.kind, effects=[label(effect) for effect in effects])

    async def close(self) -> None:
        self._log.info("session_released", events=self._events)

    def _log_effect(self, event: Event, effect: Effect) -> None:
        match effect:
            case Send(WarningMessage(code=code, message=text)):
                self._log.warning("client_warned", code=code.value, message=text)
            case Send(ErrorMessage(code=code, message=text)):
                self._log.error("session_failed", code=code.value, message=text)
            case Close(code=close_code, reason=reason):
                duration_s = round(event.at_s - self._began_s, 3)
                self._log.info(
                    "session_closed",
                    close_code=int(close_code),
                    reason=reason,
                    cause=event.kind,
                    duration_s=duration_s,
                )


class MetricsObserver:
    """Counts what happens in one session."""

    def __init__(self, metrics: WorkerMetrics, mode: str) -> None:
        """Count for one session.

        Args:
            metrics: The worker's counters.
            mode: What the session is: the queue's name for it.
        """
        self._metrics = metrics
        self._mode = mode
        self._unit_ms = 0  # how long a duplex unit lasts
        self._began_s: float | None = None
        self._now_s = 0.0
        self._asked_s: float | None = None  # when the reply that is to come was asked for

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        self._now_s = event.at_s
        match event:
            case Opened():
                self._began_s = event.at_s
                self._metrics.session_opened(self._mode)
            case Received(message=message, size_bytes=size_bytes):
                self._metrics.received(self._mode, size_bytes)
                if isinstance(message, Prepare):
                    self._unit_ms = message.config.chunk_ms
            case FinalizeDone(finalize_ms=finalize_ms):
                self._metrics.finalized(self._mode, finalize_ms)
        for effect in effects:
            if isinstance(effect, Generate):
                self._asked_s = event.at_s
            elif isinstance(effect, Send):
                self._count_message(effect)

    async def close(self) -> None:
        if self._began_s is not None:
            self._metrics.session_closed(self._mode, self._now_s - self._began_s)

    def _count_message(self, effect: Send) -> None:
        match effect.message:
            case WarningMessage(code=code):
                self._metrics.problem(self._mode, code, is_fatal=False)
            case ErrorMessage(code=code):
                self._metrics.problem(self._mode, code, is_fatal=True)
            case ResultPart(elapsed_ms=elapsed_ms):
                self._metrics.first_chunk(self._mode, elapsed_ms)
            case Result() as result:
                is_late = result.wall_clock_ms > self._unit_ms
                self._metrics.unit(self._mode, result, is_late=is_late)
            case Chunk() if self._asked_s is not None:
                self._metrics.first_chunk(self._mode, (self._now_s - self._asked_s) * MS_PER_S)
                self._asked_s = None
            case Done() | TurnDone() as done:
                generated = done.token_stats.generated_tokens
                self._metrics.turn(self._mode, done.elapsed_ms, generated)
