"""Counters and histograms of both programs; the registry is passed in, nothing is global.

Labels take few values: modes, stages, error codes and route templates, never anything a client
makes up. Times are in seconds and sizes in bytes, as Prometheus wants them.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from core.errors import ErrorCode
from core.schemas.duplex import Result
from core.schemas.worker import WorkerStatus

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
MS_PER_S: Final = 1_000

# Fine around one second, the length of a unit: what is slower cannot keep up.
UNIT_BUCKETS_S: Final = (
    0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0,
)  # fmt: skip
WAIT_BUCKETS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800)
SESSION_BUCKETS_S: Final = (1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600)
REPLY_BUCKETS_S: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)

REFUSALS: Final = frozenset({ErrorCode.QUEUE_FULL, ErrorCode.NO_WORKER, ErrorCode.RATE_LIMITED})
REFUSAL_STATUSES: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
UNITS_KEPT: Final = 50_000  # ours: between two looks; of a thousand sessions' units that is all

GATEWAY_METRICS: Final = (
    "omni_gateway_queue_length",
    "omni_gateway_queue_wait_seconds",
    "omni_gateway_workers",
    "omni_gateway_sessions",
    "omni_gateway_session_seconds",
    "omni_gateway_bytes",
    "omni_gateway_errors",
    "omni_gateway_requests",
    "omni_gateway_unit_seconds",
)
"""Names without the endings Prometheus adds to counters and histograms."""

WORKER_METRICS: Final = (
    "omni_worker_model_loaded",
    "omni_worker_sessions",
    "omni_worker_session_seconds",
    "omni_worker_received_bytes",
    "omni_worker_problems",
    "omni_worker_unit_stage_seconds",
    "omni_worker_late_units",
    "omni_worker_kv_tokens",
    "omni_worker_first_chunk_seconds",
    "omni_worker_turn_seconds",
    "omni_worker_generated_tokens",
    "omni_worker_capacity",
    "omni_worker_engine_seconds",
)
"""The same of the worker."""


def new_registry() -> CollectorRegistry:
    """Return a registry that knows the process itself: memory, CPU, open files, Python."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def exposition(registry: CollectorRegistry) -> bytes:
    """Return what `GET /metrics` answers, as `CONTENT_TYPE`."""
    return generate_latest(registry)


class GatewayMetrics:
    """What the gateway counts.

    Attributes:
        refused: requests refused because there was no room, since the start.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything.

        Args:
            registry: of the program; each name may be in it once.
        """
        self._queue = Gauge("omni_gateway_queue_length", "Requests that wait.", registry=registry)
        self._wait = Histogram(
            "omni_gateway_queue_wait_seconds",
            "Time from asking for a worker to getting one, or to giving up.",
            ("mode", "outcome"),
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self._workers = Gauge(
            "omni_gateway_workers", "Workers by what they do.", ("status",), registry=registry
        )
        self._sessions = Gauge(
            "omni_gateway_sessions", "Clients connected now.", ("mode",), registry=registry
        )
        self._session_s = Histogram(
            "omni_gateway_session_seconds",
            "Length of finished connections.",
            ("mode",),
            buckets=SESSION_BUCKETS_S,
            registry=registry,
        )
        self._bytes = Counter(
            "omni_gateway_bytes", "Payload forwarded.", ("mode", "direction"), registry=registry
        )
        self._errors = Counter(
            "omni_gateway_errors", "Errors told to clients.", ("code",), registry=registry
        )
        self._requests = Counter(
            "omni_gateway_requests",
            "HTTP requests answered.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._unit_s = Histogram(
            "omni_gateway_unit_seconds",
            "From a chunk's arrival at the worker to its result, of what was passed on.",
            ("mode",),
            buckets=UNIT_BUCKETS_S,
            registry=registry,
        )
        self.refused = 0
        self._units_ms: deque[float] = deque(maxlen=UNITS_KEPT)

    def queue_is(self, length: int) -> None:
        """Set how many requests wait."""
        self._queue.set(length)

    def waited(self, mode: str, wait_s: float, outcome: str) -> None:
        """Count a request that no longer waits.

        Args:
            mode: type of request.
            wait_s: how long it did, s.
            outcome: "assigned", "cancelled", "gone" or "refused".
        """
        self._wait.labels(mode, outcome).observe(wait_s)

    def workers_are(self, statuses: Iterable[WorkerStatus]) -> None:
        """Set what the workers do, given the status of each."""
        counts = Counts(statuses)
        for status in WorkerStatus:
            self._workers.labels(status.value).set(counts[status])

    def session_opened(self, mode: str) -> None:
        """A client connected."""
        self._sessions.labels(mode).inc()

    def session_closed(self, mode: str, duration_s: float) -> None:
        """It left."""
        self._sessions.labels(mode).dec()
        self._session_s.labels(mode).observe(duration_s)

    def relayed(self, mode: str, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """Count what was forwarded: up to the worker, down to the client."""
        self._bytes.labels(mode, "up").inc(up_bytes)
        self._bytes.labels(mode, "down").inc(down_bytes)

    def unit(self, mode: str, duration_ms: float) -> None:
        """Count a duplex unit whose result was passed on."""
        self._unit_s.labels(mode).observe(duration_ms / MS_PER_S)
        self._units_ms.append(duration_ms)

    def take_units(self) -> list[float]:
        """Return how long the units since the last time took, ms; the newest if too many."""
        taken = list(self._units_ms)
        self._units_ms.clear()
        return taken

    def error(self, code: ErrorCode) -> None:
        """Count an error that was sent to a client."""
        self._errors.labels(code.value).inc()
        self.refused += code in REFUSALS

    def answered(self, method: str, route: str, status: int) -> None:
        """Count an HTTP request.

        Args:
            method: such as "GET".
            route: the template, such as "/api/sessions/{sid}", never the path asked for.
            status: HTTP code.
        """
        self._requests.labels(method, route, str(status)).inc()
        self.refused += status in REFUSAL_STATUSES


class WorkerMetrics:
    """What a worker counts; what observers of its sessions call."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything.

        Args:
            registry: of the program; each name may be in it once.
        """
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
        }
        self._asked = [Gauge(name, text, registry=registry) for name, text in texts.items()]

    def ask(self, capacity: Callable[[], float], worked_s: Callable[[], float]) -> None:
        """Read these values whenever the metrics are read.

        Args:
            capacity: sessions the worker can serve in time now.
            worked_s: time the model's thread has worked.
        """
        for gauge, value in zip(self._asked, (capacity, worked_s), strict=True):
            gauge.set_function(value)

    def model_is_loaded(self, is_loaded: bool) -> None:
        """Set whether the model is ready."""
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
