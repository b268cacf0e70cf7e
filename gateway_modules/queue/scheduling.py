"""Models and rules of the queue: waiting requests, wait estimates, the choice of a slot.

Strictly first come, first served over all request types; caches only decide *which* slot the head
gets. No I/O, no clock: durations are measured elsewhere.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import ConfigDict, Field

from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus

OVERRUN_FLOOR_S = 15.0  # assumed of an overrun task; docs/specification/service.md#3.3
DEFAULT_EMA_ALPHA = 0.3  # docs/specification/service.md#3.3
DEFAULT_MIN_SAMPLES = 3  # docs/specification/service.md#3.3

STATUS_OF_REQUEST: Mapping[RequestType, WorkerStatus] = {
    RequestType.CHAT: WorkerStatus.BUSY_CHAT,
    RequestType.STREAMING: WorkerStatus.BUSY_STREAMING,
    RequestType.HALF_DUPLEX_AUDIO: WorkerStatus.BUSY_HALF_DUPLEX,
    RequestType.AUDIO_DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
    RequestType.OMNI_DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
    RequestType.DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
}
"""Status of a worker that serves a request of each type."""

OUT_OF_SERVICE = frozenset({WorkerStatus.LOADING, WorkerStatus.ERROR, WorkerStatus.OFFLINE})
DUPLEX_STATUSES = frozenset({WorkerStatus.DUPLEX_ACTIVE, WorkerStatus.DUPLEX_PAUSED})
LONG_REQUESTS = frozenset(RequestType) - {RequestType.CHAT, RequestType.STREAMING}
"""Requests that occupy a slot for a whole session, not for one reply."""

Seconds = Annotated[float, Field(gt=0, le=limits.DURATION_MAX_S)]


class TicketInfo(WireModel):
    """A ticket in the queue."""

    model_config = ConfigDict(from_attributes=True)

    ticket_id: str = Field(description="Ticket id.")
    request_type: RequestType = Field(description="Request type.")
    session_id: str | None = Field(None, description="Session.")
    enqueued_at: datetime = Field(description="When it entered the queue.")
    position: int = Field(ge=0, description="1 is next, 0 is assigned.")
    estimated_wait_s: float = Field(ge=0, description="Estimated wait, s.")
    cancelled: bool = Field(False, description="Cancelled.")


class QueueItem(WireModel):
    """One waiting request."""

    ticket_id: str = Field(description="Ticket id.")
    request_type: RequestType = Field(description="Request type.")
    session_id: str | None = Field(None, description="Session.")
    position: int = Field(ge=1, description="1 is next.")
    estimated_wait_s: float = Field(ge=0, description="Estimated wait, s.")
    enqueued_at: datetime = Field(description="When it entered the queue.")
    wait_elapsed_s: float = Field(ge=0, description="Time in the queue so far, s.")


class RunningTaskInfo(WireModel):
    """A request that a worker is serving."""

    worker_id: str = Field(description="The worker.")
    request_type: RequestType = Field(description="Request type.")
    session_id: str | None = Field(None, description="Session.")
    started_at: datetime = Field(description="When it was assigned.")
    elapsed_s: float = Field(ge=0, description="Time since then, s.")
    estimated_remaining_s: float = Field(ge=0, description="Estimated time left, s.")


class QueueStatus(WireModel):
    """Answer to `GET /api/queue`."""

    queue_length: int = Field(ge=0, description="Number of waiting requests.")
    max_queue_size: int = Field(ge=0, description="Maximum number of waiting requests.")
    items: list[QueueItem] = Field(description="Waiting requests, next first.")
    running_tasks: list[RunningTaskInfo] = Field(description="Requests being served.")


class EtaConfig(WireModel):
    """Expected duration of requests by type; in a patch, omitted fields are unchanged."""

    eta_chat_s: Seconds = Field(15.0, description="One chat reply, s.")
    eta_streaming_s: Seconds = Field(20.0, description="One streamed turn, s.")
    eta_half_duplex_s: Seconds = Field(180.0, description="A half-duplex session, s.")
    eta_audio_duplex_s: Seconds = Field(120.0, description="An audio duplex session, s.")
    eta_omni_duplex_s: Seconds = Field(90.0, description="An omni duplex session, s.")
    eta_duplex_s: Seconds | None = None
    """A duplex session of unspecified kind, s; null: as omni."""
    ema_alpha: float | None = Field(None, gt=0, le=1)
    """Weight of the newest duration; null: unchanged."""


class EtaStatus(WireModel):
    """Answer to `GET /api/config/eta`: settings and measurements."""

    config: EtaConfig = Field(description="Settings in force.")
    ema_alpha: float = Field(gt=0, le=1, description="Weight of the newest duration.")
    ema_chat_s: float | None = Field(None, description="Measured mean, s.")
    ema_chat_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_streaming_s: float | None = Field(None, description="Measured mean, s.")
    ema_streaming_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_half_duplex_s: float | None = Field(None, description="Measured mean, s.")
    ema_half_duplex_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_audio_duplex_s: float | None = Field(None, description="Measured mean, s.")
    ema_audio_duplex_samples: int = Field(0, ge=0, description="Durations measured.")
    ema_omni_duplex_s: float | None = Field(None, description="Measured mean, s.")
    ema_omni_duplex_samples: int = Field(0, ge=0, description="Durations measured.")


@dataclass
class ServiceState:
    """State of a worker, from its health answers; one requested in an earlier `epoch` is stale."""

    status: WorkerStatus = WorkerStatus.OFFLINE  # `IDLE` in service
    foreign_status: WorkerStatus = WorkerStatus.IDLE  # for sessions of other gateways
    foreign_sessions: int = 0  # their number; each makes one slot unusable
    announced_slots: int = 1
    capacity: int = 1  # how many of those it can serve in time
    missed_polls: int = 0  # consecutive ones
    epoch: int = 0  # counts assignments, releases and failures
    started_at: datetime | None = None
    last_heartbeat: datetime | None = None
    latest: WorkerHealth | None = None
    last_error: tuple[str, datetime] | None = None  # and its time; survives the worker's restart
    is_restarting: bool = False

    def record(self, sample: WorkerHealth, now: datetime) -> bool:
        """Record a health answer; return whether the worker's process was replaced."""
        self.missed_polls, self.last_heartbeat = 0, now
        before, self.latest = self.latest, sample
        if sample.error:
            self.record_error(sample.error, now)
        if "uptime_s" in sample.model_fields_set:
            self.started_at = now - timedelta(seconds=sample.uptime_s)
        is_another = before is not None and before.boot_id != sample.boot_id
        if is_another:
            self.is_restarting = False
        return is_another

    def record_error(self, text: str, now: datetime) -> bool:
        is_new = self.last_error is None or self.last_error[0] != text
        if is_new:
            self.last_error = text, now
        return is_new

    def update(self, sample: WorkerHealth, ours: int) -> None:
        """Apply a current answer; `ours` is the number of this gateway's sessions."""
        if sample.worker_status in OUT_OF_SERVICE:
            self.status, self.foreign_sessions = sample.worker_status, 0
            return
        self.status = WorkerStatus.IDLE
        self.announced_slots = self.capacity = sample.slots
        if sample.capacity is not None:
            self.capacity = min(sample.slots, sample.capacity)
        self.foreign_status = sample.worker_status
        if sample.active_sessions is not None:
            self.foreign_sessions = max(0, sample.active_sessions - ours)
        else:  # number unknown: assume all slots
            is_busy = sample.worker_status.is_busy and not ours
            self.foreign_sessions = sample.slots if is_busy else 0


def _field_part(kind: RequestType) -> str:
    """Return what stands for a request type in field names of `EtaConfig` and `EtaStatus`."""
    return kind.removesuffix("_audio")


class EtaTracker:
    """Expected duration of each request type: configured at first, then a moving average."""

    def __init__(
        self, eta_config: EtaConfig | None = None, min_samples: int = DEFAULT_MIN_SAMPLES
    ) -> None:
        self._config = eta_config or EtaConfig()
        self._alpha = self._config.ema_alpha or DEFAULT_EMA_ALPHA
        self._min_samples = min_samples
        self._averages: dict[RequestType, tuple[float, int]] = {}  # of how many durations

    def get_eta(self, request_type: str) -> float:
        kind, config, given = RequestType(request_type), self._config, self._config.model_fields_set
        average_s, samples = self._averages.get(kind, (0.0, 0))
        if samples >= max(1, self._min_samples):
            return average_s
        if kind is RequestType.STREAMING and "eta_streaming_s" not in given:
            if "eta_half_duplex_s" in given:  # older configurations set one value for both
                return config.eta_half_duplex_s
        expected_s: float | None = dict(config)[f"eta_{_field_part(kind)}_s"]
        return expected_s or config.eta_omni_duplex_s

    def record_duration(self, request_type: str, duration_s: float) -> None:
        if math.isfinite(duration_s) and duration_s > 0:
            kind = RequestType(request_type)
            before_s, samples = self._averages.get(kind, (duration_s, 0))
            self._averages[kind] = before_s + self._alpha * (duration_s - before_s), samples + 1

    def update_config(self, eta_config: EtaConfig) -> None:
        """Apply the fields that are set; the others and all measurements are retained."""
        given = {name: value for name, value in eta_config if name in eta_config.model_fields_set}
        alpha = given.pop("ema_alpha", None)
        self._alpha = alpha if alpha is not None else self._alpha
        self._config = self._config.model_copy(update=given)

    def get_status(self) -> EtaStatus:
        measured: dict[str, object] = {"config": self._config, "ema_alpha": self._alpha}
        for kind, (average_s, samples) in self._averages.items():
            if kind is not RequestType.DUPLEX:
                name = f"ema_{_field_part(kind)}"
                measured |= {f"{name}_s": average_s, f"{name}_samples": samples}
        return EtaStatus.model_validate(measured)


def remaining_s(eta_s: float, elapsed_s: float) -> float:
    left_s = eta_s - elapsed_s
    return left_s if left_s > 0 else OVERRUN_FLOOR_S


class Forecast:
    """Simulates the queue: each request takes the slot that becomes free first."""

    def __init__(self, free_at_s: Iterable[float], least_s: float = 0.0) -> None:
        """`free_at_s` are the times until slots become free; `least_s` is the shortest wait."""
        self._free_at_s = list(free_at_s)
        self._least_s = least_s
        heapq.heapify(self._free_at_s)

    def add(self, duration_s: float) -> float:
        """Add a request; return its estimated wait, s, to a tenth; `least_s` without any slot."""
        wait_s = self._least_s
        if self._free_at_s:
            wait_s = heapq.heapreplace(self._free_at_s, self._free_at_s[0] + duration_s)
        return round(max(0.0, wait_s), 1)


NEVER_S = float("-inf")


def slot_rank(
    history_hash: str, cached_hash: str | None, last_used_s: float, running: int
) -> tuple[int, float, int]:
    """Return the sort key of a free slot for a request; the lowest is assigned, then the first.

    In this order: (1) slots whose cache holds its history, the most recent first, (2) those
    without a cache, (3) the least recently used cache. Ties go to the worker with the fewest
    sessions, `running`. `history_hash` is "" if the request cannot use a cache.

    Source: docs/specification/service.md#3.4.
    """
    if history_hash and cached_hash == history_hash:
        return 0, -last_used_s, 0
    return (1, 0.0, running) if cached_hash is None else (2, last_used_s, running)
