"""Prometheus metrics of the gateway and of a worker; the registry is passed in, nothing is global.

Labels take few values: modes, stages, error codes and route templates, never anything a client
chooses. Times are in seconds and sizes in bytes.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
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
)

from core.errors import ErrorCode
from core.schemas.common import MS_PER_S
from core.schemas.worker import WorkerStatus

MODE: Final = ("mode",)  # the label of most metrics

# Fine around one second, the length of a unit, above which a unit is late.
UNIT_BUCKETS_S: Final = (
    0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0,
)  # fmt: skip
WAIT_BUCKETS_S: Final = (0.1, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1_800)
SESSION_BUCKETS_S: Final = (1, 5, 15, 30, 60, 120, 300, 600, 1_800, 3_600)
REPLY_BUCKETS_S: Final = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)

REFUSALS: Final = frozenset({ErrorCode.QUEUE_FULL, ErrorCode.NO_WORKER, ErrorCode.RATE_LIMITED})
REFUSAL_STATUSES: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
UNITS_KEPT: Final = 50_000  # ours: between two readings; enough for a thousand sessions


def new_registry() -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, namespace="omni_gateway", registry=registry)
        counter = partial(Counter, namespace="omni_gateway", registry=registry)
        histogram = partial(Histogram, namespace="omni_gateway", registry=registry)
        self.queue = gauge("queue_length", "Requests that wait.")
        self._wait = histogram(
            "queue_wait_seconds",
            "Time from asking for a worker to getting one, or to giving up.",
            ("mode", "outcome"),
            buckets=WAIT_BUCKETS_S,
        )
        self._workers = gauge("workers", "Workers by what they do.", ("status",))
        self.doors = gauge("doors", "Doors connected to this desk.")
        self._sessions = gauge("sessions", "Clients connected now.", MODE)
        self._session_s = histogram(
            "session_seconds", "Length of finished connections.", MODE, buckets=SESSION_BUCKETS_S
        )
        self._bytes = counter("bytes", "Payload forwarded.", ("mode", "direction"))
        # Those of HTTP have a status, which `requests` counts.
        self._errors = counter("errors", "Errors sent over WebSockets.", ("code",))
        self._requests = counter(
            "requests", "HTTP requests answered.", ("method", "route", "status")
        )
        self._unit_s = histogram(
            "unit_seconds",
            "From a chunk's arrival at the worker to its result, of what was passed on.",
            MODE,
            buckets=UNIT_BUCKETS_S,
        )
        self.refused = 0  # requests, for lack of capacity, since `take_refused`
        self._units_ms: deque[float] = deque(maxlen=UNITS_KEPT)

    def waited(self, mode: str, wait_s: float, outcome: str) -> None:
        """Count a request that no longer waits: "assigned", "cancelled", "gone" or "refused"."""
        self._wait.labels(mode, outcome).observe(wait_s)

    def workers_are(self, statuses: Iterable[WorkerStatus]) -> None:
        counts = Counts(statuses)
        for status in WorkerStatus:
            self._workers.labels(status.value).set(counts[status])

    def session_opened(self, mode: str) -> None:
        self._sessions.labels(mode).inc()

    def session_closed(self, mode: str, duration_s: float) -> None:
        self._sessions.labels(mode).dec()
        self._session_s.labels(mode).observe(duration_s)

    def relayed(self, mode: str, *, up_bytes: int = 0, down_bytes: int = 0) -> None:
        """Count payload: up to the worker, down to the client."""
        self._bytes.labels(mode, "up").inc(up_bytes)
        self._bytes.labels(mode, "down").inc(down_bytes)

    def unit(self, mode: str, duration_ms: float) -> None:
        self._unit_s.labels(mode).observe(duration_ms / MS_PER_S)
        self._units_ms.append(duration_ms)

    def take_units(self) -> list[float]:
        """Return the durations of the units since the last call, ms; the newest `UNITS_KEPT`."""
        taken = list(self._units_ms)
        self._units_ms.clear()
        return taken

    def take_refused(self) -> int:
        """Return how many requests were refused for lack of capacity since the last call."""
        taken, self.refused = self.refused, 0
        return taken

    def add_load(self, units_ms: Iterable[float], refused: int) -> None:
        """Add what a door has taken; its other metrics are read at the door."""
        self._units_ms.extend(units_ms)
        self.refused += refused

    def error(self, code: ErrorCode) -> None:
        self._errors.labels(code.value).inc()
        self.refused += code in REFUSALS

    def answered(self, method: str, route: str, status: int) -> None:
        """Count an HTTP request by its route's template, never by the requested path."""
        self._requests.labels(method, route, str(status)).inc()
        self.refused += status in REFUSAL_STATUSES


class WorkerMetrics:
    def __init__(self, registry: CollectorRegistry, worker_id: str = "") -> None:
        gauge = partial(Gauge, namespace="omni_worker", registry=registry)
        counter = partial(Counter, namespace="omni_worker", registry=registry)
        histogram = partial(Histogram, namespace="omni_worker", registry=registry)
        gauge("info", "1; its label names the worker.", ("worker",)).labels(worker_id).set(1)
        self.loaded = gauge("model_loaded", "1 when ready.")
        self.sessions = gauge("sessions", "Sessions held now.", MODE)
        self.session_s = histogram(
            "session_seconds", "Length of finished sessions.", MODE, buckets=SESSION_BUCKETS_S
        )
        self.received = counter("received_bytes", "Messages received.", MODE)
        self.problems = counter(
            "problems", "Warnings and errors sent to clients.", ("mode", "code", "fatal")
        )
        self.stage_s = histogram(
            "unit_stage_seconds",
            "One duplex unit by stage; `wall` is from the chunk's arrival to its result.",
            ("mode", "stage"),
            buckets=UNIT_BUCKETS_S,
        )
        self.late = counter("late_units", "Units that took longer than they lasted.", MODE)
        self.kv = gauge("kv_tokens", "KV cache at the last unit.", MODE)
        self.first_s = histogram(
            "first_chunk_seconds",
            "Until the first chunk of a reply was sent.",
            MODE,
            buckets=REPLY_BUCKETS_S,
        )
        self.turn_s = histogram(
            "turn_seconds", "Until a reply was complete.", MODE, buckets=REPLY_BUCKETS_S
        )
        self.tokens = counter("generated_tokens", "Tokens drawn.", MODE)
        texts = {
            "capacity": "Sessions it can serve in time now, as measured.",
            "window_tokens": "A conversation's limit while the card is short of time; 0 if none.",
            "engine_seconds": "Time the model's thread has worked since the start.",
            "recordings_unsealed": "Complete recordings that the object store lacks.",
            "recordings_unsealed_bytes": "Their size.",
            "recordings_unsealed_age_seconds": "Since the oldest of them ended.",
        }
        self._watched = {name: gauge(name, text) for name, text in texts.items()}

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Set the gauge `omni_worker_NAME` from `read` whenever the metrics are read."""
        self._watched[name].set_function(read)
