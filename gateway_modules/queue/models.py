"""Records of the queue: wait estimates, a worker's health, and what is shown of both.

Nothing here may do I/O, read a clock or import more than the schemas.
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
"""What a worker is doing while it serves a request of each type."""

OUT_OF_SERVICE = frozenset({WorkerStatus.LOADING, WorkerStatus.ERROR, WorkerStatus.OFFLINE})
DUPLEX_STATUSES = frozenset({WorkerStatus.DUPLEX_ACTIVE, WorkerStatus.DUPLEX_PAUSED})
LONG_REQUESTS = frozenset(RequestType) - {RequestType.CHAT, RequestType.STREAMING}
"""Requests that hold their worker for a whole session, not for one reply."""

Seconds = Annotated[float, Field(gt=0, le=limits.DURATION_MAX_S)]


class TicketInfo(WireModel):
    """A ticket as the queue administration shows it."""

    model_config = ConfigDict(from_attributes=True)

    ticket_id: str = Field(description="Its id.")
    request_type: RequestType = Field(description="What it is for.")
    session_id: str | None = Field(None, description="Whose it is.")
    enqueued_at: datetime = Field(description="When it was drawn.")
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

    ticket_id: str = Field(description="Its id.")
    request_type: RequestType = Field(description="What it is for.")
    session_id: str | None = Field(None, description="Whose it is.")
    position: int = Field(ge=1, description="1 is next.")
    estimated_wait_s: float = Field(ge=0, description="Estimated wait, s.")
    enqueued_at: datetime = Field(description="When it was drawn.")
    wait_elapsed_s: float = Field(ge=0, description="How long it has waited, s.")


class RunningTaskInfo(WireModel):
    """One request a worker is serving."""

    worker_id: str = Field(description="The worker.")
    request_type: RequestType = Field(description="What it serves.")
    session_id: str | None = Field(None, description="Whose it is.")
    started_at: datetime = Field(description="When it was assigned.")
    elapsed_s: float = Field(ge=0, description="Time since then, s.")
    estimated_remaining_s: float = Field(ge=0, description="Estimated time left, s.")


class QueueStatus(WireModel):
    """Answer to `GET /api/queue`."""

    queue_length: int = Field(ge=0, description="How many requests wait.")
    max_queue_size: int = Field(ge=0, description="How many may wait.")
    items: list[QueueItem] = Field(description="Who waits, next first.")
    running_tasks: list[RunningTaskInfo] = Field(description="What is being served.")


class WorkerSession(WireModel):
    """One session a worker serves."""

    session_id: str | None = Field(None, description="Whose it is.")
    request_type: RequestType = Field(description="What it is.")
    started_at: datetime = Field(description="When it was assigned.")


class LoadState(WireModel):
    """How far the loading of a model has come."""

    worker_id: str = Field(description="The worker.")
    stage: str = Field(description="What loading does now, for a person.")
    progress: float | None = Field(None, ge=0, le=1, description="How much is loaded, 0 to 1.")


class WorkerInfo(WireModel):
    """One worker as the gateway sees it."""

    worker_id: str = Field(description="worker_0, worker_1, ...")
    host: str = Field(description="Where it listens.")
    port: int = Field(description="Where it listens.")
    gpu_id: int | None = Field(None, description="Its GPU.")
    status: WorkerStatus = Field(description="What it is doing.")
    current_session_id: str | None = Field(None, description="Session it has served longest.")
    total_requests: int = Field(0, ge=0, description="Requests since it started.")
    avg_inference_time_ms: float = Field(0.0, ge=0, description="Mean time of a request, ms.")
    last_heartbeat: datetime | None = Field(None, description="When it last answered.")
    current_request_type: RequestType | None = Field(None, description="What that session is.")
    task_started_at: datetime | None = Field(None, description="When it was assigned.")
    cached_hash: str | None = Field(None, description="History its cache holds.")
    last_cache_used_at: datetime | None = Field(None, description="When that was last used.")
    slots: int = Field(1, ge=1, description="Sessions it takes at once.")
    free_slots: int = Field(0, ge=0, description="Sessions it could take now.")
    is_draining: bool = Field(False, description="It finishes what it has and gets nothing new.")
    error: str | None = Field(None, description="What it says is wrong.")
    last_error: str | None = Field(None, description="What was wrong last, also if it is mended.")
    last_error_at: datetime | None = Field(None, description="When that was.")
    vram_used_mb: float | None = Field(None, ge=0, description="GPU memory in use, MB.")
    vram_total_mb: float | None = Field(None, ge=0, description="GPU memory, MB.")
    kv_cache_tokens: int = Field(0, ge=0, description="Tokens in its caches.")
    uptime_s: float | None = Field(None, ge=0, description="Time since its process began, s.")
    sessions: list[WorkerSession] = Field(default_factory=list, description="Oldest first.")
    model: ModelFacts | None = Field(None, description="What it has loaded.")
    loading: LoadState | None = Field(None, description="How far loading has come.")
    can_restart: bool = Field(False, description="A launcher starts it again when it ends.")
    is_restarting: bool = Field(False, description="It was asked to end and to start again.")


class WorkerList(WireModel):
    """Answer to `GET /workers`."""

    total: int = Field(ge=0, description="How many there are.")
    workers: list[WorkerInfo] = Field(description="All of them.")


class WorkerCache(WireModel):
    """What one worker's cache holds."""

    worker_id: str = Field(description="The worker.")
    status: WorkerStatus = Field(description="What it is doing.")
    cached_hash: str | None = Field(None, description="Start of the history's hash.")
    last_cache_used_at: datetime | None = Field(None, description="When it was last used.")


class CacheList(WireModel):
    """Answer to `GET /cache`."""

    workers: list[WorkerCache] = Field(description="One entry a slot.")


class ServiceStatus(WireModel):
    """Answer to `GET /status`."""

    gateway_healthy: bool = Field(True, description="Always true in an answer.")
    total_workers: int = Field(ge=0, description="All workers.")
    idle_workers: int = Field(ge=0, description="Ready workers without a session.")
    busy_workers: int = Field(ge=0, description="Workers that serve somebody, duplex included.")
    free_slots: int = Field(0, ge=0, description="Sessions that could begin now.")
    duplex_workers: int = Field(ge=0, description="Workers in a duplex session.")
    loading_workers: int = Field(ge=0, description="Workers that load their model.")
    error_workers: int = Field(ge=0, description="Workers that failed.")
    offline_workers: int = Field(ge=0, description="Workers out of reach.")
    queue_length: int = Field(ge=0, description="How many requests wait.")
    max_queue_size: int = Field(ge=0, description="How many may wait.")
    running_tasks: list[RunningTaskInfo] = Field(description="What is being served.")
    is_intake_paused: bool = Field(False, description="New requests are refused.")
    model: ModelFacts | None = Field(None, description="What is loaded; null until it is.")
    loading: LoadState | None = Field(None, description="How far the first loading worker is.")
    fetch: FetchProgress | None = Field(
        None, description="How far the fetch of the embedded cascade is; null: there is none."
    )


class EtaConfig(WireModel):
    """How long requests usually take, by type; as a patch, what is left out stays as it is."""

    eta_chat_s: Seconds = Field(15.0, description="One chat reply, s.")
    eta_streaming_s: Seconds = Field(20.0, description="One streamed turn, s.")
    eta_half_duplex_s: Seconds = Field(180.0, description="A half-duplex session, s.")
    eta_audio_duplex_s: Seconds = Field(120.0, description="An audio duplex session, s.")
    eta_omni_duplex_s: Seconds = Field(90.0, description="An omni duplex session, s.")
    eta_duplex_s: Seconds | None = Field(
        None, description="A duplex session of unnamed kind, s; null: as omni."
    )
    ema_alpha: float | None = Field(
        None, gt=0, le=1, description="Weight of the newest duration; null leaves it."
    )


class EtaStatus(WireModel):
    """Answer to `GET /api/config/eta`: the settings and what was measured."""

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
    """What the worker's health answers add up to.

    Attributes:
        status: `IDLE` in service; `LOADING`, `ERROR` or `OFFLINE` out of it.
        other_status: What the worker says it does for sessions that are not ours.
        other_sessions: How many of those there are; each makes one slot unusable.
        capacity: Of `announced_slots` those that it can serve in time.
        misses: Polls in a row without an answer.
        epoch: Counts assignments, releases and suspicions; an answer asked for in an earlier
            epoch is stale.
        last_error: What was wrong last, and when; it outlives the worker's process.
    """

    status: WorkerStatus = WorkerStatus.OFFLINE
    other_status: WorkerStatus = WorkerStatus.IDLE
    other_sessions: int = 0
    announced_slots: int = 1
    capacity: int = 1
    misses: int = 0
    epoch: int = 0
    started_at: datetime | None = None
    last_heartbeat: datetime | None = None
    latest: WorkerHealth | None = None
    last_error: tuple[str, datetime] | None = None
    is_restarting: bool = False

    def record(self, sample: WorkerHealth, now: datetime) -> bool:
        """Record an answer of the worker; return whether its process is another one than before."""
        self.misses = 0
        self.last_heartbeat = now
        before, self.latest = self.latest, sample
        if sample.error:
            self.note_error(sample.error, now)
        if "uptime_s" in sample.model_fields_set:
            self.started_at = now - timedelta(seconds=sample.uptime_s)
        is_another = before is not None and before.boot_id != sample.boot_id
        if is_another:
            self.is_restarting = False
        return is_another

    def note_error(self, text: str, now: datetime) -> bool:
        is_new = self.last_error is None or self.last_error[0] != text
        if is_new:
            self.last_error = text, now
        return is_new

    def update(self, sample: WorkerHealth, ours: int) -> None:
        """Follow a current answer; `ours` counts the sessions of this gateway."""
        if sample.worker_status in OUT_OF_SERVICE:
            self.status, self.other_sessions = sample.worker_status, 0
            return
        self.status = WorkerStatus.IDLE
        self.announced_slots = self.capacity = sample.slots
        if sample.capacity is not None:
            self.capacity = min(sample.slots, sample.capacity)
        self.other_status = sample.worker_status
        if sample.active_sessions is not None:
            self.other_sessions = max(0, sample.active_sessions - ours)
        else:  # it does not say how many: all of them, to be safe
            is_busy = sample.worker_status.is_busy and not ours
            self.other_sessions = sample.slots if is_busy else 0
