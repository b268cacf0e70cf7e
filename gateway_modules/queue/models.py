"""Models of the queue: responses of its routes, wait estimates, and a worker's health.

No I/O, no clock, no imports beyond the schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated

from pydantic import ConfigDict, Field

from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.schemas.worker import ModelFacts, WorkerHealth, WorkerStatus
from settings.embedded import FetchProgress

STATUS_OF_REQUEST: Mapping[RequestType, WorkerStatus] = MappingProxyType(
    {
        RequestType.CHAT: WorkerStatus.BUSY_CHAT,
        RequestType.STREAMING: WorkerStatus.BUSY_STREAMING,
        RequestType.HALF_DUPLEX_AUDIO: WorkerStatus.BUSY_HALF_DUPLEX,
        RequestType.AUDIO_DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
        RequestType.OMNI_DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
        RequestType.DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
    }
)
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


class TicketLookup(WireModel):
    """Answer to `GET /api/queue/{ticket_id}`."""

    found: bool = Field(description="The ticket waits.")
    ticket: TicketInfo | None = Field(None, description="The ticket.")
    message: str | None = Field(None, description="Why it was not found.")


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


class WorkerSession(WireModel):
    """A session on a worker."""

    model_config = ConfigDict(from_attributes=True)

    session_id: str | None = Field(None, description="Session.")
    request_type: RequestType = Field(description="Request type.")
    started_at: datetime = Field(description="When it was assigned.")


class LoadState(WireModel):
    """Progress of loading a model."""

    worker_id: str = Field(description="The worker.")
    stage: str = Field(description="Current stage, as text for people.")
    progress: float | None = Field(None, ge=0, le=1, description="Loaded fraction, 0 to 1.")


class WorkerInfo(WireModel):
    """A worker as seen by the gateway."""

    worker_id: str = Field(description="worker_0, worker_1, ...")
    host: str = Field(description="Its host.")
    port: int = Field(description="Its port.")
    gpu_id: int | None = Field(None, description="Its GPU.")
    status: WorkerStatus = Field(description="Its status.")
    current_session_id: str | None = Field(None, description="Oldest session on it.")
    total_requests: int = Field(0, ge=0, description="Requests since it started.")
    avg_inference_time_ms: float = Field(0.0, ge=0, description="Mean time of a request, ms.")
    last_heartbeat: datetime | None = Field(None, description="When it last answered.")
    current_request_type: RequestType | None = Field(None, description="Type of that session.")
    task_started_at: datetime | None = Field(None, description="When it was assigned.")
    cached_hash: str | None = Field(None, description="Hash of the history in its cache.")
    last_cache_used_at: datetime | None = Field(None, description="When that cache was last used.")
    slots: int = Field(1, ge=1, description="Number of concurrent sessions.")
    free_slots: int = Field(0, ge=0, description="Sessions it could accept now.")
    is_draining: bool = Field(False, description="It finishes its sessions and gets no new ones.")
    error: str | None = Field(None, description="The error it reports.")
    last_error: str | None = Field(None, description="The latest error, even if resolved.")
    last_error_at: datetime | None = Field(None, description="When that was.")
    vram_used_mb: float | None = Field(None, ge=0, description="GPU memory in use, MB.")
    vram_total_mb: float | None = Field(None, ge=0, description="GPU memory, MB.")
    kv_cache_tokens: int = Field(0, ge=0, description="Tokens in its caches.")
    uptime_s: float | None = Field(None, ge=0, description="Uptime of its process, s.")
    sessions: list[WorkerSession] = Field(default_factory=list, description="Oldest first.")
    model: ModelFacts | None = Field(None, description="The model it has loaded.")
    loading: LoadState | None = Field(None, description="Progress of loading.")
    can_restart: bool = Field(False, description="A launcher restarts it when it exits.")
    is_restarting: bool = Field(False, description="A restart was requested.")


class WorkerList(WireModel):
    """Answer to `GET /workers`."""

    total: int = Field(ge=0, description="Number of workers.")
    workers: list[WorkerInfo] = Field(description="All workers.")


class WorkerCache(WireModel):
    """The cache of one slot."""

    worker_id: str = Field(description="The worker.")
    status: WorkerStatus = Field(description="Its status.")
    cached_hash: str | None = Field(None, description="Prefix of the history's hash.")
    last_cache_used_at: datetime | None = Field(None, description="Last use of the cache.")


class CacheList(WireModel):
    """Answer to `GET /cache`."""

    workers: list[WorkerCache] = Field(description="One entry a slot.")


class ServiceStatus(WireModel):
    """Answer to `GET /status`."""

    gateway_healthy: bool = Field(True, description="Always true in an answer.")
    total_workers: int = Field(ge=0, description="All workers.")
    idle_workers: int = Field(ge=0, description="Ready workers without a session.")
    busy_workers: int = Field(ge=0, description="Workers with a session, duplex included.")
    free_slots: int = Field(0, ge=0, description="Sessions that could start now.")
    duplex_workers: int = Field(ge=0, description="Workers in a duplex session.")
    loading_workers: int = Field(ge=0, description="Workers loading their model.")
    error_workers: int = Field(ge=0, description="Workers that failed.")
    offline_workers: int = Field(ge=0, description="Unreachable workers.")
    queue_length: int = Field(ge=0, description="Number of waiting requests.")
    max_queue_size: int = Field(ge=0, description="Maximum number of waiting requests.")
    running_tasks: list[RunningTaskInfo] = Field(description="Requests being served.")
    is_intake_paused: bool = Field(False, description="New requests are refused.")
    model: ModelFacts | None = Field(None, description="The loaded model; null until there is one.")
    loading: LoadState | None = Field(None, description="Progress of the first worker loading.")
    fetch: FetchProgress | None = Field(
        None, description="Progress of downloading the embedded cascade; null: no download."
    )


class EtaConfig(WireModel):
    """Expected duration of requests by type; in a patch, omitted fields are unchanged."""

    eta_chat_s: Seconds = Field(15.0, description="One chat reply, s.")
    eta_streaming_s: Seconds = Field(20.0, description="One streamed turn, s.")
    eta_half_duplex_s: Seconds = Field(180.0, description="A half-duplex session, s.")
    eta_audio_duplex_s: Seconds = Field(120.0, description="An audio duplex session, s.")
    eta_omni_duplex_s: Seconds = Field(90.0, description="An omni duplex session, s.")
    eta_duplex_s: Seconds | None = Field(
        None, description="A duplex session of unspecified kind, s; null: as omni."
    )
    ema_alpha: float | None = Field(
        None, gt=0, le=1, description="Weight of the newest duration; null: unchanged."
    )


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
    """State of a worker, accumulated from its health answers.

    Attributes:
        status: `IDLE` in service; `LOADING`, `ERROR` or `OFFLINE` out of it.
        foreign_status: The worker's status for sessions of other gateways.
        foreign_sessions: Number of those; each makes one slot unusable.
        capacity: How many of the `announced_slots` it can serve in time.
        missed_polls: Consecutive polls without an answer.
        epoch: Counts assignments, releases and failures; an answer requested in an earlier epoch
            is stale.
        last_error: The most recent error and its time; survives a restart of the worker.
    """

    status: WorkerStatus = WorkerStatus.OFFLINE
    foreign_status: WorkerStatus = WorkerStatus.IDLE
    foreign_sessions: int = 0
    announced_slots: int = 1
    capacity: int = 1
    missed_polls: int = 0
    epoch: int = 0
    started_at: datetime | None = None
    last_heartbeat: datetime | None = None
    latest: WorkerHealth | None = None
    last_error: tuple[str, datetime] | None = None
    is_restarting: bool = False

    def record(self, sample: WorkerHealth, now: datetime) -> bool:
        """Record a health answer; return whether the worker's process was replaced."""
        self.missed_polls = 0
        self.last_heartbeat = now
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
