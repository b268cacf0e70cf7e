"""Routes of the service's state: health, metrics, workers, caches, sessions, queue, estimates."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal

from fastapi import Depends
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import AwareDatetime, ConfigDict, Field
from starlette.responses import Response

from core.errors import NoWorkerError
from core.schemas.common import WireModel
from core.schemas.queue import QueueingPhase, RequestType
from core.schemas.worker import ModelFacts, WorkerHealth, WorkerStatus
from gateway_modules.administration import save_eta
from gateway_modules.queue import estimates
from gateway_modules.queue.directory import loaded_model
from gateway_modules.queue.worker_connection import DUPLEX_STATUSES, LONG_AGO, WorkerConnection
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.service import AdminOnly, ApiRouter, GatewayHere, Role, ViewHere
from gateway_modules.web.responses import problems
from settings.embedded import FetchProgress, read_progress

HASH_SHOWN_CHARS: Final = 12  # of a history hash; docs/specification/service.md#1.1
NO_HEALTH: Final = WorkerHealth(status="error", worker_status=WorkerStatus.OFFLINE)


def check_open(gateway: GatewayHere) -> None:
    if not gateway.relay_pool.is_open:
        raise NoWorkerError("The gateway is starting or stopping. Please try again later.")


router = ApiRouter(tags=["status"])
pool_router = ApiRouter(
    tags=["status"], dependencies=[Depends(check_open)], responses=problems(503)
)


class TicketLookup(WireModel):
    """Answer to `GET /api/queue/{ticket_id}`."""

    found: bool = Field(description="The ticket waits.")
    ticket: estimates.TicketInfo | None = Field(None, description="The ticket.")
    message: str | None = Field(None, description="Why it was not found.")


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
    running_tasks: list[estimates.RunningTaskInfo] = Field(description="Requests being served.")
    is_intake_paused: bool = Field(False, description="New requests are refused.")
    model: ModelFacts | None = Field(None, description="The loaded model; null until there is one.")
    loading: LoadState | None = Field(None, description="Progress of the first worker loading.")
    fetch: FetchProgress | None = None
    """Progress of downloading the embedded cascade; null: no download."""


class HealthAnswer(WireModel):
    """Answer to `GET /health`."""

    status: Literal["healthy"] = Field("healthy", description="Always this.")
    timestamp: AwareDatetime = Field(description="Current time, UTC.")
    ready: bool = Field(description="The gateway runs, and a worker is in service.")
    workers_ready: int = Field(ge=0, description="Workers in service.")
    workers_total: int = Field(ge=0, description="All workers.")


class SessionInfo(WireModel):
    """A connected session, or a conversation in a worker's cache."""

    session_id: str = Field(description="Session id; empty for a cached conversation.")
    request_type: RequestType | None = Field(None, description="Request type.")
    worker_id: str | None = Field(None, description="Its worker, if assigned.")
    phase: QueueingPhase | None = Field(None, description="Its phase.")
    messages_hash: str | None = Field(None, description="Prefix of its history's hash.")
    last_active: AwareDatetime | None = Field(None, description="When it began, or was last used.")


class SessionList(WireModel):
    """Answer to `GET /sessions`."""

    total: int = Field(ge=0, description="Number of sessions.")
    sessions: list[SessionInfo] = Field(description="All sessions.")


class Cancelled(WireModel):
    """Result of cancelling a waiting request."""

    success: bool = Field(description="It was waiting and has been cancelled.")


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(gateway: GatewayHere) -> HealthAnswer:
    """Report that the gateway is running, and whether a worker is ready."""
    ready = gateway.relay_pool.ready_count
    return HealthAnswer(
        timestamp=datetime.now(UTC),
        ready=gateway.relay_pool.is_open and ready > 0,
        workers_ready=ready,
        workers_total=len(gateway.relay_pool.directory.workers),
    )


@router.get("/metrics", include_in_schema=False)
async def metrics(gateway: GatewayHere) -> Response:
    """Return the metrics for Prometheus."""
    if gateway.role is not Role.DOOR:
        gateway.metrics.queue.set(gateway.pool.queue_length)
        gateway.metrics.workers_are([worker.status for worker in gateway.pool.workers.values()])
    if gateway.doors is not None:
        gateway.metrics.doors.set(len(gateway.doors.doors))
    return Response(generate_latest(gateway.registry), media_type=CONTENT_TYPE_LATEST)


@pool_router.get("/status")
async def status(gateway: GatewayHere, view: ViewHere) -> ServiceStatus:
    """Count workers, waiting requests and running requests."""
    fetch = await asyncio.to_thread(read_progress, gateway.settings.service.data_dir)
    return view.of(service_status(gateway.pool, fetch))


@pool_router.get("/workers")
async def workers(gateway: GatewayHere, view: ViewHere) -> WorkerList:
    """Describe every worker; only administrators see the texts of errors."""
    now = datetime.now(UTC)
    infos = [worker_info(worker, now) for worker in gateway.pool.workers.values()]
    return view.of(WorkerList(total=len(infos), workers=infos))


@pool_router.get("/cache")
@pool_router.get("/api/cache", name="api_cache")
async def cache(gateway: GatewayHere, view: ViewHere) -> CacheList:
    """List the histories in the workers' caches; only administrators see the hashes."""
    return view.of(caches(gateway.pool.workers.values()))


@pool_router.get("/sessions")
@pool_router.get("/api/sessions", name="api_sessions")
async def sessions(gateway: GatewayHere, view: ViewHere) -> SessionList:
    """List connected sessions and cached conversations.

    Ids are masked for everybody but administrators and, with `X-Session-Secret`, the owner.
    """
    cached = [
        SessionInfo(
            session_id="",
            worker_id=one.worker_id,
            messages_hash=one.cached_hash,
            last_active=one.last_cache_used_at,
        )
        for one in caches(gateway.pool.workers.values()).workers
        if one.cached_hash is not None
    ]
    connected = [
        SessionInfo(
            session_id=one.request.session_id or "",
            request_type=one.request.request_type,
            worker_id=one.worker_id,
            phase=one.phase,
            last_active=one.request.enqueued_at,
        )
        for one in gateway.sessions.all()
    ]
    everything = [*connected, *cached]
    return view.of(SessionList(total=len(everything), sessions=everything))


@pool_router.get("/api/queue")
async def queue(gateway: GatewayHere, view: ViewHere) -> estimates.QueueStatus:
    """List waiting requests, next first, and running ones; ids are masked as in `/sessions`."""
    return view.of(gateway.pool.get_queue_status())


@pool_router.get("/api/queue/{ticket_id}")
async def ticket(ticket_id: str, gateway: GatewayHere, view: ViewHere) -> TicketLookup:
    """Look up one waiting request."""
    found = gateway.pool.get_ticket(ticket_id)
    if found is None:
        return TicketLookup(found=False, message="This ticket is not in the queue.")
    return view.of(TicketLookup(found=True, ticket=estimates.TicketInfo.model_validate(found)))


@pool_router.delete(
    "/api/queue/{ticket_id}", dependencies=[AdminOnly], responses=problems(401, 403)
)
async def cancel(ticket_id: str, gateway: GatewayHere) -> Cancelled:
    """Cancel a waiting request; its client gets an error."""
    return Cancelled(success=gateway.pool.cancel(ticket_id))


@router.get("/api/config/eta")
async def eta(gateway: GatewayHere) -> estimates.EtaStatus:
    """Show expected and measured durations."""
    return gateway.pool.eta_tracker.get_status()


@router.put("/api/config/eta", dependencies=[AdminOnly], responses=problems(401, 403, 422, 507))
async def set_eta(change: estimates.EtaConfig, gateway: GatewayHere) -> estimates.EtaStatus:
    """Change expected durations; omitted ones are unchanged; estimates follow at once."""
    await asyncio.to_thread(save_eta, gateway.store, change)
    return gateway.pool.update_eta_config(change)


def worker_info(worker: WorkerConnection, now: datetime) -> WorkerInfo:
    service, oldest = worker.service, worker.oldest_task
    cached_hash, used_at = max(worker.slot_caches, key=lambda one: one[1] or LONG_AGO)
    error, error_at = service.last_error or (None, None)
    latest, is_online = service.latest or NO_HEALTH, worker.status is not WorkerStatus.OFFLINE
    current = latest if is_online else NO_HEALTH
    started_at = service.started_at if is_online and service.latest else None
    return WorkerInfo(
        worker_id=worker.worker_id,
        host=worker.place.host,
        port=worker.place.port,
        gpu_id=latest.gpu_id,
        status=worker.status,
        current_session_id=oldest.session_id if oldest else None,
        total_requests=latest.total_requests,
        avg_inference_time_ms=latest.avg_inference_time_ms,
        last_heartbeat=service.last_heartbeat,
        current_request_type=oldest.request_type if oldest else None,
        task_started_at=oldest.started_at if oldest else None,
        cached_hash=cached_hash,
        last_cache_used_at=used_at,
        slots=service.announced_slots,
        free_slots=worker.available_slots,
        is_draining=worker.is_retiring,
        error=latest.error,
        last_error=error,
        last_error_at=error_at,
        vram_used_mb=current.vram_used_mb,
        vram_total_mb=current.vram_total_mb,
        kv_cache_tokens=current.kv_cache_length,
        uptime_s=max(0.0, (now - started_at).total_seconds()) if started_at else None,
        sessions=[
            WorkerSession.model_validate(task)
            for task in sorted(worker.tasks, key=lambda task: task.started_at)
        ],
        model=current.model,
        loading=load_state(worker),
        can_restart=current.is_supervised,
        is_restarting=service.is_restarting,
    )


def caches(workers: Iterable[WorkerConnection]) -> CacheList:
    found = [
        WorkerCache(
            worker_id=worker.worker_id,
            status=worker.status,
            cached_hash=f"{cached_hash[:HASH_SHOWN_CHARS]}…" if cached_hash else None,
            last_cache_used_at=used_at,
        )
        for worker in workers
        for cached_hash, used_at in worker.slot_caches
    ]
    return CacheList(workers=found)


def service_status(pool: WorkerPool, fetch: FetchProgress | None = None) -> ServiceStatus:
    workers, queue = pool.workers.values(), pool.get_queue_status()
    statuses = Counter(worker.status for worker in workers)
    return ServiceStatus(
        total_workers=len(workers),
        idle_workers=statuses[WorkerStatus.IDLE],
        busy_workers=sum(worker.status.is_busy for worker in workers),
        free_slots=sum(worker.available_slots for worker in workers),
        duplex_workers=sum(statuses[status] for status in DUPLEX_STATUSES),
        loading_workers=statuses[WorkerStatus.LOADING],
        error_workers=statuses[WorkerStatus.ERROR],
        offline_workers=statuses[WorkerStatus.OFFLINE],
        queue_length=queue.queue_length,
        max_queue_size=queue.max_queue_size,
        running_tasks=queue.running_tasks,
        is_intake_paused=pool.is_intake_paused,
        model=loaded_model(workers),
        loading=next(filter(None, map(load_state, workers)), None),
        fetch=fetch,
    )


def load_state(worker: WorkerConnection) -> LoadState | None:
    latest = worker.service.latest
    if worker.status is not WorkerStatus.LOADING or latest is None:
        return None
    stage, progress = latest.load_stage or "starting", latest.load_progress
    return LoadState(worker_id=worker.worker_id, stage=stage, progress=progress)
