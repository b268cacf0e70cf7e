"""Observers of a session: its log, metrics, unit times and trace spans.

An observer is given each event with its effects before these are carried out. `observe` must not
block; an observer that raises is removed, and the session continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from core.metrics import WorkerMetrics
from core.protocols import effects, events
from core.protocols.events import MS_PER_S
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.realtime import RealtimeMachine
from core.schemas.duplex import Prepare, Result, ResultPart
from core.schemas.half_duplex import TurnDone
from core.schemas.limits import UNIT_MS
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import Chunk, Done
from core.serving.capacity import Capacity
from core.telemetry import CallTrace

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class Observer(Protocol):
    """Observes one session."""

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        """Record an event and its effects; runs on the event loop, without blocking."""

    async def close(self) -> None:
        """Finish; called once, after the session is released."""


SESSION_LOG: Final = "session"


class LogObserver:
    """Logs a session's beginning, problems and end."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._logs_events = logging.getLogger(SESSION_LOG).isEnabledFor(logging.DEBUG)
        self._began_s = 0.0
        self._events = 0

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        self._events += 1
        match event:
            case events.Opened():
                self._began_s = event.at_s
                self._log.info("session_opened")
            case events.Disconnected(reason=reason):
                self._log.info("client_gone", reason=reason)
            case events.EngineFailed(error=error):
                self._log.error("engine_failed", code=error.code, message=error.message)
            case events.Rejected(error=error):
                self._log.warning("message_rejected", code=error.code, message=error.message)
        for effect in made:
            self._log_effect(event, effect)
        if self._logs_events:
            self._log.debug(
                "event", kind=event.kind, effects=[effects.label(each) for each in made]
            )

    async def close(self) -> None:
        self._log.info("session_released", events=self._events)

    def _log_effect(self, event: events.Event, effect: effects.Effect) -> None:
        match effect:
            case effects.Send(WarningMessage(code=code, message=text)):
                self._log.warning("client_warned", code=code.value, message=text)
            case effects.Send(ErrorMessage(code=code, message=text)):
                self._log.error("session_failed", code=code.value, message=text)
            case effects.Close(code=close_code, reason=reason):
                duration_s = round(event.at_s - self._began_s, 3)
                self._log.info(
                    "session_closed",
                    close_code=int(close_code),
                    reason=reason,
                    cause=event.kind,
                    duration_s=duration_s,
                )


@dataclass
class InnerObserver:
    """Passes an observer the events of the duplex machine inside another protocol's machine.

    Attributes:
        is_shown: selects these events.
        shows_outer: the events of the other protocol are passed too.
    """

    machine: GptLiveMachine | RealtimeMachine
    observer: Observer
    is_shown: Callable[[events.Event], bool] = lambda event: True
    shows_outer: bool = False

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        if self.shows_outer:
            self.observer.observe(event, made)
        for inner, inner_made in self.machine.seen:
            if self.is_shown(inner):
                self.observer.observe(inner, inner_made)

    async def close(self) -> None:
        await self.observer.close()


class MetricsObserver:
    """Counts the events of one session in the worker's metrics, and reports its unit times."""

    def __init__(
        self, metrics: WorkerMetrics, capacity: Capacity, mode: str, session_id: str
    ) -> None:
        self._metrics = metrics
        self._capacity = capacity
        self._mode = mode
        self._session_id = session_id
        self._unit_ms = 0  # length of a duplex unit
        self._began_s: float | None = None
        self._now_s = 0.0
        self._requested_s: float | None = None  # when the reply was requested; None once it began

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        self._now_s = event.at_s
        metrics, mode = self._metrics, self._mode
        match event:
            case events.Opened():
                self._began_s = event.at_s
                metrics.sessions.labels(mode).inc()
            case events.Received(message=message, size_bytes=size_bytes):
                metrics.received.labels(mode).inc(size_bytes)
                if isinstance(message, Prepare):
                    self._unit_ms = message.config.chunk_ms
            case events.FinalizeDone(finalize_ms=finalize_ms):
                metrics.stage_s.labels(mode, "finalize").observe(finalize_ms / MS_PER_S)
        for effect in made:
            if isinstance(effect, effects.Generate):
                self._requested_s = event.at_s
            elif isinstance(effect, effects.Send):
                self._count_message(effect)

    async def close(self) -> None:
        self._capacity.end(self._session_id)
        if self._began_s is not None:
            self._metrics.sessions.labels(self._mode).dec()
            self._metrics.session_s.labels(self._mode).observe(self._now_s - self._began_s)

    def _count_message(self, effect: effects.Send) -> None:
        metrics, mode = self._metrics, self._mode
        match effect.message:
            case WarningMessage(code=code):
                metrics.problems.labels(mode, code.value, "false").inc()
            case ErrorMessage(code=code):
                metrics.problems.labels(mode, code.value, "true").inc()
            case ResultPart(elapsed_ms=elapsed_ms):
                metrics.first_s.labels(mode).observe(elapsed_ms / MS_PER_S)
            case Result() as result:
                self._count_unit(result)
            case Chunk() if self._requested_s is not None:
                metrics.first_s.labels(mode).observe(self._now_s - self._requested_s)
                self._requested_s = None
            case Done() | TurnDone() as done:
                metrics.turn_s.labels(mode).observe(done.elapsed_ms / MS_PER_S)
                metrics.tokens.labels(mode).inc(done.token_stats.generated_tokens)

    def _count_unit(self, result: Result) -> None:
        metrics, mode = self._metrics, self._mode
        stages_ms = {
            "prefill": result.prefill_ms,
            "llm": result.cost_llm_ms,
            "tts_prep": result.cost_tts_prep_ms,
            "tts": result.cost_tts_ms,
            "token2wav": result.cost_token2wav_ms,
            "all": result.cost_all_ms,
            "wall": result.wall_clock_ms,
        }
        for stage, cost_ms in stages_ms.items():
            if cost_ms is not None:
                metrics.stage_s.labels(mode, stage).observe(cost_ms / MS_PER_S)
        metrics.late.labels(mode).inc(result.wall_clock_ms > self._unit_ms)
        metrics.tokens.labels(mode).inc(result.n_tokens)
        metrics.kv.labels(mode).set(result.kv_cache_length)
        share, has_picture = result.cost_all_ms / UNIT_MS, result.vision_slices > 0
        self._capacity.note(self._session_id, share, has_picture=has_picture)


class TraceObserver:
    """Writes the OpenTelemetry spans of one session, of its units and of their parts.

    Nothing is measured for it. The parts of a unit are placed one after another from the unit's
    beginning, each as long as the result says; the rest is `send`.
    """

    def __init__(self, trace: CallTrace, mode: str, *, is_root: bool) -> None:
        """`is_root`: no gateway writes the call's own span, so that the session's stands for it."""
        self._trace = trace
        self._mode = mode
        self._is_root = is_root
        self._session: Span | None = None
        self._now_s = 0.0
        self._step_s = 0.0  # when the unit's step began
        self._error = ""

    def observe(self, event: events.Event, made: Sequence[effects.Effect], /) -> None:
        self._now_s = event.at_s
        if self._session is None:
            root = self._is_root
            self._session = self._trace.begin("session", event.at_s, stands_for_call=root)
        for effect in made:
            match effect:
                case effects.Send(Result() as result):
                    self._write_unit(result, self._session)
                case effects.Send(Done() | TurnDone() as done):
                    began_s = event.at_s - done.elapsed_ms / MS_PER_S
                    tokens = {"tokens": done.token_stats.generated_tokens}
                    self._trace.write("turn", began_s, event.at_s, self._session, tokens)
                case effects.Send(ErrorMessage(code=code)):
                    self._error = code.value
                case effects.Step():
                    self._step_s = event.at_s

    async def close(self) -> None:
        if self._session is not None:
            error = {"error.type": self._error} if self._error else {}
            self._trace.end(self._session, self._now_s, {"mode": self._mode} | error)

    def _write_unit(self, result: Result, session: Span) -> None:
        ended_s = self._now_s
        at_s = ended_s - result.wall_clock_ms / MS_PER_S
        attributes = {
            "step": result.step,
            "is_listen": result.is_listen,
            "tokens": result.n_tokens,
            "speech_tokens": result.n_tts_tokens,
            "kv_tokens": result.kv_cache_length,
        }
        unit = self._trace.write("unit", at_s, ended_s, session, attributes)
        speech_ms = result.cost_tts_ms + (result.cost_tts_prep_ms or 0.0)
        parts_ms = {
            "queue": (self._step_s - at_s) * MS_PER_S,
            "encode": result.prefill_ms,
            "prefill": result.cost_read_ms,
            "generate": result.cost_llm_ms - result.cost_read_ms,
            "speech": speech_ms + (result.cost_token2wav_ms or 0.0),
        }
        for name, length_ms in parts_ms.items():
            part_s = min(max(0.0, length_ms) / MS_PER_S, max(0.0, ended_s - at_s))
            self._trace.write(name, at_s, at_s + part_s, unit)
            at_s += part_s
        self._trace.write("send", at_s, ended_s, unit)
