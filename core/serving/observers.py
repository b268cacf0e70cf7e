"""Who watches a session without taking part: the contract, a log, and counters.

An observer sees each event with the effects it led to, before these are carried out. It must not
wait in `observe`; one that raises is left out from then on and the session goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    SoundReady,
    StepDone,
)
from core.schemas.duplex import Prepare, Result, ResultPart
from core.schemas.half_duplex import TurnDone
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.streaming import Chunk, Done
from recording.uploads import Unsealed


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


REPLY_BUCKETS_S: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)


class WorkerMetrics:
    """What a worker counts; what observers of its sessions call."""

    def __init__(self, registry: CollectorRegistry, worker_id: str = "") -> None:
        """Register everything.

        Args:
            registry: of the program; each name may be in it once.
            worker_id: the worker's name.
        """
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
            "Warnings and errors told to clients.",
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
        """Read these values whenever the metrics are read.

        Args:
            capacity: sessions the worker can serve in time now.
            worked_s: time the model's thread has worked.
        """
        for gauge, value in zip(self._asked[:2], (capacity, worked_s), strict=True):
            gauge.set_function(value)

    def watch_uploads(self, unsealed: Callable[[], Unsealed]) -> None:
        """Read what an object store does not have yet whenever the metrics are read."""
        count, size_bytes, age_s = self._asked[2:]
        count.set_function(lambda: unsealed().count)
        size_bytes.set_function(lambda: unsealed().size_bytes)
        age_s.set_function(lambda: unsealed().age_s)

    def model_is_loaded(self, is_loaded: bool) -> None:
        self._loaded.set(is_loaded)

    def session_opened(self, mode: str) -> None:
        """A socket was accepted."""
        self._sessions.labels(mode).inc()

    def session_closed(self, mode: str, duration_s: float) -> None:
        """A session was released."""
        self._sessions.labels(mode).dec()
        self._session_s.labels(mode).observe(duration_s)

    def received(self, mode: str, size_bytes: int) -> None:
        """A message came in."""
        self._received.labels(mode).inc(size_bytes)

    def problem(self, mode: str, code: ErrorCode, *, is_fatal: bool) -> None:
        """The client was warned, or the session ended with an error."""
        self._problems.labels(mode, code.value, str(is_fatal).lower()).inc()

    def unit(self, mode: str, result: Result, *, is_late: bool) -> None:
        """A duplex unit was answered; late means it took longer than it lasted."""
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
        """A duplex unit was closed in the cache."""
        self._stage_s.labels(mode, "finalize").observe(finalize_ms / MS_PER_S)

    def first_chunk(self, mode: str, wait_ms: float) -> None:
        """The first piece of a reply left, so long after what it answers came."""
        self._first_s.labels(mode).observe(wait_ms / MS_PER_S)

    def turn(self, mode: str, elapsed_ms: float, generated_tokens: int) -> None:
        """A reply was completed."""
        self._turn_s.labels(mode).observe(elapsed_ms / MS_PER_S)
        self._tokens.labels(mode).inc(generated_tokens)


def _histogram(
    registry: CollectorRegistry, name: str, text: str, buckets: tuple[float, ...]
) -> Histogram:
    return Histogram(f"omni_worker_{name}", text, ("mode",), buckets=buckets, registry=registry)


class HasUnits(Protocol):
    """A machine around the duplex machine."""

    @property
    def seen(self) -> Sequence[tuple[Event, Sequence[Effect]]]:
        """What the last event led the duplex machine to."""
        ...


class UnitObserver:
    """Shows an observer the units of a Realtime session, whose results its client is not sent."""

    def __init__(self, machine: HasUnits, observer: Observer) -> None:
        """Watch a session for an observer, which somebody else closes."""
        self._machine = machine
        self._observer = observer

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        """Show what begins units, and what comes of them; the rest passes outside."""
        for inner, made in self._machine.seen:
            if isinstance(inner, (Received, SoundReady, StepDone)):
                self._observer.observe(inner, made)

    async def close(self) -> None:
        """Nothing is held."""


class MetricsObserver:
    """Counts what happens in one session."""

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
