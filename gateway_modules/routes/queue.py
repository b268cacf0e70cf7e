"""How the service is: health, workers, caches, sessions, the queue and its estimates, metrics."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import AwareDatetime, Field
from starlette.responses import Response

from core.errors import NoWorkerError
from core.metrics import CONTENT_TYPE, exposition
from core.schemas.common import WireModel
from gateway_modules.queue import models, worker_view
from gateway_modules.relay.live_sessions import SessionInfo, SessionList
from gateway_modules.roles import Role
from gateway_modules.service import AdminOnly, Gateway, GatewayHere, ViewHere
from gateway_modules.web.responses import problems
from settings.embedded import read_progress

router = APIRouter(tags=["status"])


class HealthAnswer(WireModel):
    """Answer to `GET /health`: that there is one says that the gateway lives."""

    status: Literal["healthy"] = Field("healthy", description="Always this.")
    timestamp: AwareDatetime = Field(description="The gateway's clock, UTC.")
    ready: bool = Field(description="New requests are accepted and some worker can serve them.")
    workers_ready: int = Field(ge=0, description="Workers that serve a request or could.")
    workers_total: int = Field(ge=0, description="All workers.")


class Cancelled(WireModel):
    """Whether a place in the queue was cancelled."""

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
    counts = worker_view.service_status(workers, queue, is_intake_paused=pool.is_intake_paused)
    return view.of(counts.model_copy(update={"fetch": fetch}))


@router.get("/workers", responses=problems(503))
async def workers(gateway: GatewayHere, view: ViewHere) -> models.WorkerList:
    """Describe every worker."""
    check_open(gateway)
    now = datetime.now(UTC)
    infos = [worker_view.worker_info(worker, now) for worker in gateway.pool.workers.values()]
    return view.of(models.WorkerList(total=len(infos), workers=infos))


@router.get("/cache", responses=problems(503))
@router.get("/api/cache", name="api_cache", responses=problems(503))
async def cache(gateway: GatewayHere, view: ViewHere) -> models.CacheList:
    """List which histories the workers' caches hold; only administrators see their hashes."""
    check_open(gateway)
    return view.of(worker_view.caches(gateway.pool.workers.values()))


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
        for one in worker_view.caches(gateway.pool.workers.values()).workers
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
    """Look up one place in the queue."""
    check_open(gateway)
    found = gateway.pool.get_ticket(ticket_id)
    if found is None:
        return models.TicketLookup(found=False, message="This ticket does not wait.")
    return view.of(models.TicketLookup(found=True, ticket=models.TicketInfo.model_validate(found)))


@router.delete(
    "/api/queue/{ticket_id}", dependencies=[AdminOnly], responses=problems(401, 403, 503)
)
async def cancel(ticket_id: str, gateway: GatewayHere) -> Cancelled:
    """Cancel a place in the queue; its client gets an error."""
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
