"""How the service is: health, workers, caches, sessions, the queue and its estimates, metrics."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Final, Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from core.errors import NoWorkerError
from core.metrics import CONTENT_TYPE, exposition
from core.schemas.common import WireModel
from core.schemas.worker import WorkerStatus
from gateway_modules.queue import models
from gateway_modules.queue.directory import loaded_model
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.relay.live_sessions import SessionInfo, SessionList
from gateway_modules.service import AdminOnly, Gateway, GatewayHere, Role, ViewHere
from gateway_modules.web.responses import problems
from settings.embedded import read_progress

HASH_SHOWN_CHARS: Final = 12  # of a history hash; docs/specification/service.md#1.1
STARTING: Final = "starting"

router = APIRouter(tags=["status"])


class HealthAnswer(WireModel):
    """Answer to `GET /health`: that there is one says that the gateway lives."""

    status: Literal["healthy"] = Field("healthy", description="Always this.")
    timestamp: AwareDatetime = Field(description="The gateway's clock, UTC.")
    ready: bool = Field(description="New requests are accepted and some worker can serve them.")
    workers_ready: int = Field(ge=0, description="Workers that serve a request or could.")
    workers_total: int = Field(ge=0, description="All workers.")


class Cancelled(WireModel):
    """Whether a waiting request was cancelled."""

    success: bool = Field(description="It was waiting and is not any more.")


def check_open(gateway: Gateway) -> None:
    if not gateway.is_open:
        raise NoWorkerError("The gateway is starting or stopping. Please try again later.")


@router.get("/health")
async def health(gateway: GatewayHere) -> HealthAnswer:
    """Report that the gateway runs, and whether it has a ready worker."""
    ready = gateway.relay_pool.ready_count
    return HealthAnswer(
        timestamp=datetime.now(UTC),
        ready=gateway.is_open and ready > 0,
        workers_ready=ready,
        workers_total=len(gateway.relay_pool.directory.workers),
    )


@router.get("/metrics", include_in_schema=False)
async def metrics(gateway: GatewayHere) -> Response:
    """Return the metrics for Prometheus."""
    if gateway.role is not Role.DOOR:
        gateway.metrics.queue_is(gateway.pool.queue_length)
        gateway.metrics.workers_are([worker.status for worker in gateway.pool.workers.values()])
    if gateway.doors is not None:
        gateway.metrics.doors_are(len(gateway.doors))
    return Response(exposition(gateway.registry), media_type=CONTENT_TYPE)


@router.get("/status", responses=problems(503))
async def status(gateway: GatewayHere, view: ViewHere) -> models.ServiceStatus:
    """Count workers, requests that wait, and requests that are served."""
    check_open(gateway)
    fetch = await asyncio.to_thread(read_progress, gateway.settings.service.data_dir)
    if fetch and view.masks is not None:
        fetch = fetch.model_copy(update={"problem": None})  # it names folders of this machine
    pool = gateway.pool
    workers, queue = pool.workers.values(), pool.get_queue_status()
    counts = service_status(workers, queue, is_intake_paused=pool.is_intake_paused)
    return view.of(counts.model_copy(update={"fetch": fetch}))


@router.get("/workers", responses=problems(503))
async def workers(gateway: GatewayHere, view: ViewHere) -> models.WorkerList:
    """Describe every worker."""
    check_open(gateway)
    now = datetime.now(UTC)
    infos = [worker_info(worker, now) for worker in gateway.pool.workers.values()]
    return view.of(models.WorkerList(total=len(infos), workers=infos))


@router.get("/cache", responses=problems(503))
@router.get("/api/cache", name="api_cache", responses=problems(503))
async def cache(gateway: GatewayHere, view: ViewHere) -> models.CacheList:
    """List which histories the workers' caches hold; only administrators see their hashes."""
    check_open(gateway)
    return view.of(caches(gateway.pool.workers.values()))


@router.get("/sessions", responses=problems(503))
@router.get("/api/sessions", name="api_sessions", responses=problems(503))
async def sessions(gateway: GatewayHere, view: ViewHere) -> SessionList:
    """List who is connected, and the conversations that workers still remember.

    Ids are masked for everybody but administrators and, with `X-Session-Secret`, the owner.
    """
    check_open(gateway)
    remembered = [
        SessionInfo(
            session_id="",
            worker_id=one.worker_id,
            messages_hash=one.cached_hash,
            last_active=one.last_cache_used_at,
        )
        for one in caches(gateway.pool.workers.values()).workers
        if one.cached_hash is not None
    ]
    at_doors = [] if gateway.doors is None else gateway.doors.infos()
    everything = [*gateway.live.infos(), *at_doors, *remembered]
    return view.of(SessionList(total=len(everything), sessions=everything))


@router.get("/api/queue", responses=problems(503))
async def queue(gateway: GatewayHere, view: ViewHere) -> models.QueueStatus:
    """List who waits, next first, and what is being served; ids are masked as in `/sessions`."""
    check_open(gateway)
    return view.of(gateway.pool.get_queue_status())


@router.get("/api/queue/{ticket_id}", responses=problems(503))
async def ticket(ticket_id: str, gateway: GatewayHere, view: ViewHere) -> models.TicketLookup:
    """Look up one waiting request."""
    check_open(gateway)
    found = gateway.pool.get_ticket(ticket_id)
    if found is None:
        return models.TicketLookup(found=False, message="This ticket does not wait.")
    return view.of(models.TicketLookup(found=True, ticket=models.TicketInfo.model_validate(found)))


@router.delete(
    "/api/queue/{ticket_id}", dependencies=[AdminOnly], responses=problems(401, 403, 503)
)
async def cancel(ticket_id: str, gateway: GatewayHere) -> Cancelled:
    """Cancel a waiting request; its client gets an error."""
    check_open(gateway)
    return Cancelled(success=gateway.pool.cancel(ticket_id))


@router.get("/api/config/eta")
async def eta(gateway: GatewayHere) -> models.EtaStatus:
    """Show expected and measured durations."""
    return gateway.pool.eta_tracker.get_status()


@router.put("/api/config/eta", dependencies=[AdminOnly], responses=problems(401, 403, 422))
async def set_eta(change: models.EtaConfig, gateway: GatewayHere) -> models.EtaStatus:
    """Change expected durations; what is left out stays, and estimates follow at once."""
    await asyncio.to_thread(gateway.eta.save, change)
    return gateway.pool.update_eta_config(change)


def worker_info(worker: WorkerConnection, now: datetime) -> models.WorkerInfo:
    service, oldest = worker.service, worker.oldest_task
    freshest = max(worker.slots, key=lambda slot: slot.worth)
    latest, (error, error_at) = service.latest, service.last_error or (None, None)
    is_known = latest is not None and worker.status is not WorkerStatus.OFFLINE
    started_at = service.started_at if is_known else None
    return models.WorkerInfo(
        worker_id=worker.worker_id,
        host=worker.place.host,
        port=worker.place.port,
        gpu_id=latest.gpu_id if latest else None,
        status=worker.status,
        current_session_id=oldest.session_id if oldest else None,
        total_requests=latest.total_requests if latest else 0,
        avg_inference_time_ms=latest.avg_inference_time_ms if latest else 0.0,
        last_heartbeat=service.last_heartbeat,
        current_request_type=oldest.request_type if oldest else None,
        task_started_at=oldest.started_at if oldest else None,
        cached_hash=freshest.cached_hash,
        last_cache_used_at=freshest.last_cache_used_at,
        slots=service.announced_slots,
        free_slots=worker.room,
        is_draining=worker.is_retiring,
        error=latest.error if latest else None,
        last_error=error,
        last_error_at=error_at,
        vram_used_mb=latest.vram_used_mb if latest and is_known else None,
        vram_total_mb=latest.vram_total_mb if latest and is_known else None,
        kv_cache_tokens=latest.kv_cache_length if latest and is_known else 0,
        uptime_s=max(0.0, (now - started_at).total_seconds()) if started_at else None,
        sessions=worker_sessions(worker),
        model=latest.model if latest and is_known else None,
        loading=load_state(worker),
        can_restart=bool(latest and latest.is_supervised and is_known),
        is_restarting=service.is_restarting,
    )


def worker_sessions(worker: WorkerConnection) -> list[models.WorkerSession]:
    return [
        models.WorkerSession(
            session_id=task.session_id, request_type=task.request_type, started_at=task.started_at
        )
        for task in sorted(worker.tasks, key=lambda task: task.started_at)
    ]


def caches(workers: Iterable[WorkerConnection]) -> models.CacheList:
    found = [
        models.WorkerCache(
            worker_id=worker.worker_id,
            status=worker.status,
            cached_hash=f"{slot.cached_hash[:HASH_SHOWN_CHARS]}…" if slot.cached_hash else None,
            last_cache_used_at=slot.last_cache_used_at,
        )
        for worker in workers
        for slot in worker.slots
    ]
    return models.CacheList(workers=found)


def service_status(
    workers: Collection[WorkerConnection], queue: models.QueueStatus, *, is_intake_paused: bool
) -> models.ServiceStatus:
    statuses = Counter(worker.status for worker in workers)
    return models.ServiceStatus(
        total_workers=len(workers),
        idle_workers=statuses[WorkerStatus.IDLE],
        busy_workers=sum(worker.is_busy for worker in workers),
        free_slots=sum(worker.room for worker in workers),
        duplex_workers=sum(statuses[status] for status in models.DUPLEX_STATUSES),
        loading_workers=statuses[WorkerStatus.LOADING],
        error_workers=statuses[WorkerStatus.ERROR],
        offline_workers=statuses[WorkerStatus.OFFLINE],
        queue_length=queue.queue_length,
        max_queue_size=queue.max_queue_size,
        running_tasks=queue.running_tasks,
        is_intake_paused=is_intake_paused,
        model=loaded_model(workers),
        loading=first_loading(workers),
    )


def load_state(worker: WorkerConnection) -> models.LoadState | None:
    latest = worker.service.latest
    if worker.status is not WorkerStatus.LOADING or latest is None:
        return None
    stage, progress = latest.load_stage or STARTING, latest.load_progress
    return models.LoadState(worker_id=worker.worker_id, stage=stage, progress=progress)


def first_loading(workers: Iterable[WorkerConnection]) -> models.LoadState | None:
    return next((state for worker in workers if (state := load_state(worker))), None)
