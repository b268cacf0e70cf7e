"""What is logged, counted and learnt of a session, without taking part in it.

An observer sees each event with the effects it led to, before these are carried out. It must not
wait in `observe`; one that raises is left out from then on and the session continues.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from core.errors import ErrorCode
from core.metrics import SESSION_BUCKETS_S, UNIT_BUCKETS_S
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
from core.protocols.gpt_live import GptLiveMachine
from core.protocols.realtime import RealtimeMachine
from core.schemas.duplex import Prepare, Result, ResultPart
from core.schemas.half_duplex import TurnDone
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import Chunk, Done
from recording.uploads import Unsealed


class Observer(Protocol):
    """Watches one session."""

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        """Record an event and what it led to; on the event loop, without waiting."""

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
        if self._logs_events:
            self._log.debug("event", kind=event.kind, effects=[label(each) for each in effects])

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


REPLY_BUCKETS_S: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)


class WorkerMetrics:
    """What a worker counts."""

    def __init__(self, registry: CollectorRegistry, worker_id: str = "") -> None:
        """Register everything; each name may be once in a program's registry."""
        info = Gauge("omni_worker_info", "1; says its name.", ("worker",), registry=registry)
        info.labels(worker_id).set(1)
        self._loaded = Gauge("omni_worker_model_loaded", "1 when ready.", registry=registry)
        self._sessions = Gauge(
            "omni_worker_sessions", "Sessions held now.", ("mode",), registry=registry
        )
        self._session_s = _histogram(
            registry, "session_seconds", "Length of finished sessions.", SESSION_BUCKETS_S
        )
        self._received = Counter(
            "omni_worker_received_bytes", "Messages received.", ("mode",), registry=registry
        )
        self._problems = Counter(
            "omni_worker_problems",
            "Warnings and errors sent to clients.",
            ("mode", "code", "fatal"),
            registry=registry,
        )
        self._stage_s = Histogram(
            "omni_worker_unit_stage_seconds",
            "One duplex unit by stage; `wall` is from the chunk's arrival to its result.",
            ("mode", "stage"),
            buckets=UNIT_BUCKETS_S,
            registry=registry,
        )
        self._late = Counter(
            "omni_worker_late_units",
            "Units that took longer than they lasted.",
            ("mode",),
            registry=registry,
        )
        self._kv = Gauge(
            "omni_worker_kv_tokens", "KV cache at the last unit.", ("mode",), registry=registry
        )
        self._first_s = _histogram(
            registry, "first_chunk_seconds", "Until a reply's first piece left.", REPLY_BUCKETS_S
        )
        self._turn_s = _histogram(
            registry, "turn_seconds", "Until a reply was complete.", REPLY_BUCKETS_S
        )
        self._tokens = Counter(
            "omni_worker_generated_tokens", "Tokens drawn.", ("mode",), registry=registry
        )
        texts = {
            "omni_worker_capacity": "Sessions it can serve in time now, as measured.",
            "omni_worker_engine_seconds": "Time the model's thread has worked since the start.",
            "omni_worker_recordings_unsealed": "Complete ones that the store does not have yet.",
            "omni_worker_recordings_unsealed_bytes": "Their size.",
            "omni_worker_recordings_unsealed_age_seconds": "Since the oldest of them ended.",
        }
        self._asked = [Gauge(name, text, registry=registry) for name, text in texts.items()]

    def ask(self, capacity: Callable[[], float], worked_s: Callable[[], float]) -> None:
        """Call these functions whenever the metrics are read."""
        for gauge, value in zip(self._asked[:2], (capacity, worked_s), strict=True):
            gauge.set_function(value)

    def watch_uploads(self, unsealed: Callable[[], Unsealed]) -> None:
        """Call this whenever the metrics are read."""
        count, size_bytes, age_s = self._asked[2:]
        count.set_function(lambda: unsealed().count)
        size_bytes.set_function(lambda: unsealed().size_bytes)
        age_s.set_function(lambda: unsealed().age_s)

    def model_is_loaded(self, is_loaded: bool) -> None:
        self._loaded.set(is_loaded)

    def session_opened(self, mode: str) -> None:
        self._sessions.labels(mode).inc()

    def session_closed(self, mode: str, duration_s: float) -> None:
        self._sessions.labels(mode).dec()
        self._session_s.labels(mode).observe(duration_s)

    def received(self, mode: str, size_bytes: int) -> None:
        self._received.labels(mode).inc(size_bytes)

    def problem(self, mode: str, code: ErrorCode, *, is_fatal: bool) -> None:
        self._problems.labels(mode, code.value, str(is_fatal).lower()).inc()

    def unit(self, mode: str, result: Result, *, is_late: bool) -> None:
        """Count a duplex unit; late means that it took longer than it lasted."""
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
                self._stage_s.labels(mode, stage).observe(cost_ms / MS_PER_S)
        self._late.labels(mode).inc(is_late)
        self._tokens.labels(mode).inc(result.n_tokens)
        self._kv.labels(mode).set(result.kv_cache_length)

    def finalized(self, mode: str, finalize_ms: float) -> None:
        """Count the bookkeeping of a duplex unit."""
        self._stage_s.labels(mode, "finalize").observe(finalize_ms / MS_PER_S)

    def first_chunk(self, mode: str, wait_ms: float) -> None:
        """Count how long after its request the first piece of a reply was sent."""
        self._first_s.labels(mode).observe(wait_ms / MS_PER_S)

    def turn(self, mode: str, elapsed_ms: float, generated_tokens: int) -> None:
        self._turn_s.labels(mode).observe(elapsed_ms / MS_PER_S)
        self._tokens.labels(mode).inc(generated_tokens)


def _histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]
) -> Histogram:
    return Histogram(f"omni_worker_{name}", text, ("mode",), buckets=buckets, registry=registry)


class InnerObserver:
    """Shows an observer the events of the duplex machine inside another protocol's machine."""

    def __init__(
        self,
        machine: GptLiveMachine | RealtimeMachine,
        observer: Observer,
        is_shown: Callable[[Event], bool] = lambda event: True,
        *,
        closes: bool = True,
    ) -> None:
        self._machine = machine
        self._observer = observer
        self._is_shown = is_shown
        self._closes = closes

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        for inner, made in self._machine.seen:
            if self._is_shown(inner):
                self._observer.observe(inner, made)

    async def close(self) -> None:
        if self._closes:
            await self._observer.close()


class MetricsObserver:
    """Counts the events of one session."""

    def __init__(self, metrics: WorkerMetrics, mode: str) -> None:
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


UNIT_MS: Final = 1_000  # the only unit length the model was trained on
MEMORY_S: Final = 30.0  # ours: what happened longer ago does not count
ACTIVE_S: Final = 3.0  # ours: a session without a unit for so long is not active now
UNITS_KEPT: Final = 4_096


@dataclass(frozen=True)
class UnitTime:
    """What one unit took.

    Attributes:
        share: of its own length that the engine took for it.
        active: sessions that had units at that time.
        has_picture: it had one, which makes it far dearer.
    """

    at_s: float
    share: float
    active: int
    has_picture: bool


class UnitTimes:
    """What units of all sessions took lately; beyond `UNITS_KEPT` the oldest are dropped."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._units: deque[UnitTime] = deque(maxlen=UNITS_KEPT)
        self._last_s: dict[str, float] = {}  # by session: when it had a unit

    def note(self, session_id: str, share: float, *, has_picture: bool) -> None:
        now_s = self._now_s()
        self._last_s[session_id] = now_s
        active = {name: s for name, s in self._last_s.items() if s > now_s - ACTIVE_S}
        self._last_s = active
        self._units.append(UnitTime(now_s, share, len(active), has_picture))

    def end(self, session_id: str) -> None:
        """Count a session no longer: its successors would seem to be served beside it."""
        self._last_s.pop(session_id, None)

    def recent(self) -> Sequence[UnitTime]:
        """Return the units of the last `MEMORY_S`."""
        while self._units and self._units[0].at_s < self._now_s() - MEMORY_S:
            self._units.popleft()
        return self._units


class CapacityObserver:
    """Reports how long the units of one session take."""

    def __init__(self, units: UnitTimes, session_id: str) -> None:
        self._units = units
        self._session_id = session_id

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Result):
                self._units.note(
                    self._session_id,
                    effect.message.cost_all_ms / UNIT_MS,
                    has_picture=effect.message.vision_slices > 0,
                )

    async def close(self) -> None:
        self._units.end(self._session_id)
