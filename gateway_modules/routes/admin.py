"""Routes of administration."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Path, Query, Request, Response
from pydantic import Field, SecretStr

from core.errors import (
    BadPayloadError,
    NotFoundError,
    WorkerBusyError,
    WorkerUnreachableError,
)
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.worker import ActionResult
from gateway_modules import administration
from gateway_modules.administration import DRAINED, INTAKE_PAUSED, Switches
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.relay.telemetry import History
from gateway_modules.routes.queue import WorkerInfo, worker_info
from gateway_modules.service import AdminOnly, ApiRouter, Gateway, GatewayHere
from gateway_modules.web.responses import json_answer, problems
from gateway_modules.web.security import ADMIN_MARK, SESSION_AGE_S
from recording.listing import CleanupReport, Order, RecordingPage, page_of
from settings.fields import DAYS_MAX, GIGABYTES_MAX
from settings.workers import WorkerAddress

PAGE_MAX = 200  # recordings in one answer
PAGE_DEFAULT = 50
OFFSET_MAX = 10_000_000  # more recordings than any disk holds
AUDIT_MAX = 500  # entries in one answer
AUDIT_DEFAULT = 100

Name = Annotated[str, Path(max_length=limits.ID_MAX_CHARS)]

router = ApiRouter(tags=["administration"])
admin_router = ApiRouter(
    prefix="/api/admin",
    tags=["administration"],
    dependencies=[AdminOnly],
    responses=problems(401, 403),
)


class AppList(WireModel):
    """The enabled apps."""

    apps: list[administration.AppInfo] = Field(description="In the order they are shown.")


class AppStateList(WireModel):
    """All apps."""

    apps: list[administration.AppState] = Field(description="In the order they are shown.")


class Enabled(WireModel):
    """On or off."""

    enabled: bool = Field(description="The app is enabled.")


class NamedEnabled(Enabled):
    """On or off, for a named app."""

    app_id: str = Field(max_length=limits.ID_MAX_CHARS, description="The app.")


class AppChanged(WireModel):
    """An app after a change."""

    success: bool = Field(True, description="It was changed.")
    app: administration.AppState = Field(description="The app.")


class Intake(WireModel):
    """Whether new requests are accepted."""

    paused: bool = Field(description="New requests are refused; waiting and running ones continue.")


class Draining(WireModel):
    """Whether a worker is drained."""

    draining: bool = Field(description="It finishes its sessions and gets no new ones.")


class WorkersListed(WireModel):
    """The configured workers."""

    workers: list[WorkerAddress] = Field(max_length=limits.WORKERS_MAX)
    """host:port, or dns:NAME:PORT for one at each address of the name."""


class CleanupRequest(WireModel):
    """Limits of a cleanup; omitted ones are as configured."""

    dry_run: bool = Field(False, description="Only report what would be deleted.")
    retention_days: float | None = Field(None, ge=-1, le=DAYS_MAX)
    """Oldest age kept, days; -1: any."""
    max_storage_gb: float | None = Field(None, ge=-1, le=GIGABYTES_MAX)
    """Most storage used, GB; -1: any."""


class Login(WireModel):
    """The administrator's token."""

    token: SecretStr = Field(max_length=limits.PATH_MAX_CHARS)
    """Of the configuration or the data folder."""


class AdminState(WireModel):
    """Access to administration."""

    needs_token: bool = Field(description="Administration requires a token.")
    is_admin: bool = Field(description="This client is an administrator.")


@router.get("/api/apps")
async def apps(gateway: GatewayHere) -> AppList:
    """List the enabled apps."""
    return AppList(apps=gateway.apps.get_enabled_apps())


@router.get("/api/admin/state")
async def state(request: Request, gateway: GatewayHere) -> AdminState:
    """Report whether this client is an administrator, and whether that requires a token."""
    access = gateway.access
    return AdminState(needs_token=access.needs_token, is_admin=access.is_admin(request))


@router.post("/api/admin/login", responses=problems(401, 429))
async def login(
    body: Login, request: Request, response: Response, gateway: GatewayHere
) -> ActionResult:
    """Exchange the token for an HTTP-only session cookie."""
    access = gateway.access
    access.check_token(body.token.get_secret_value(), access.client_address(request))
    request.scope[ADMIN_MARK] = True
    response.set_cookie(
        access.cookie_name(request),
        access.sessions.begin(),
        max_age=SESSION_AGE_S,
        httponly=True,
        samesite="strict",
        secure=access.is_secure(request),
    )
    return ActionResult(success=True)


@router.post("/api/admin/logout")
async def logout(request: Request, response: Response, gateway: GatewayHere) -> ActionResult:
    """End the cookie's session on the server."""
    access = gateway.access
    access.sessions.end(access.admin_cookie(request))
    response.delete_cookie(
        access.cookie_name(request),
        httponly=True,
        samesite="strict",
        secure=access.is_secure(request),
    )
    return ActionResult(success=True)


@admin_router.get("/apps")
async def all_apps(gateway: GatewayHere) -> AppStateList:
    """List all apps and whether they are enabled."""
    return AppStateList(apps=gateway.apps.get_all_apps())


@admin_router.put("/apps/{app_id}", responses=problems(404, 422, 507))
def set_app(app_id: Name, body: Enabled, gateway: GatewayHere) -> AppChanged:
    """Switch an app on or off; running sessions continue."""
    return AppChanged(app=gateway.apps.set_enabled(app_id, body.enabled))


@admin_router.put("/apps", responses=problems(404, 422, 507))
def set_named_app(body: NamedEnabled, gateway: GatewayHere) -> AppChanged:
    """Switch the app named in the body on or off."""
    return set_app(body.app_id, body, gateway)


@admin_router.get("/intake")
async def intake(gateway: GatewayHere) -> Intake:
    """Report whether new requests are accepted."""
    return Intake(paused=gateway.pool.is_intake_paused)


@admin_router.put("/intake", responses=problems(507))
async def set_intake(body: Intake, gateway: GatewayHere) -> Intake:
    """Refuse new requests, or accept them again."""
    await asyncio.to_thread(Switches(gateway.store).set, INTAKE_PAUSED, body.paused)
    gateway.pool.is_intake_paused = body.paused
    return body


@admin_router.get("/workers")
async def listed_workers(gateway: GatewayHere) -> WorkersListed:
    """List the configured workers; `/workers` lists those that were found."""
    return WorkersListed(workers=gateway.pool.directory.listed)


@admin_router.put("/workers", responses=problems(422))
async def list_workers(body: WorkersListed, gateway: GatewayHere) -> WorkersListed:
    """Replace the configured list of workers until the gateway ends.

    A worker that is no longer listed is drained and then removed.
    """
    try:
        await gateway.pool.directory.replace(body.workers)
    except ValueError as error:
        raise BadPayloadError(str(error)) from error
    return WorkersListed(workers=gateway.pool.directory.listed)


@admin_router.put("/workers/{worker_id}", responses=problems(404, 422, 502, 507))
async def set_worker(worker_id: Name, body: Draining, gateway: GatewayHere) -> WorkerInfo:
    """Drain a worker, or stop draining it."""
    worker = _worker(gateway, worker_id)
    if worker.service.latest is None:  # its name is only its place in the list
        raise WorkerUnreachableError("This worker has not answered yet, so its name is not known.")
    name = DRAINED + worker.worker_id
    await asyncio.to_thread(Switches(gateway.store).set, name, body.draining)
    gateway.pool.drain_worker(worker, is_draining=body.draining)
    return worker_info(worker, datetime.now(UTC))


def _worker(gateway: Gateway, worker_id: str) -> WorkerConnection:
    worker = gateway.pool.workers.get(worker_id)
    if worker is None:
        raise NotFoundError("There is no such worker.")
    return worker


@admin_router.post("/workers/{worker_id}/restart", responses=problems(404, 409, 429, 502, 503, 504))
async def restart(worker_id: Name, gateway: GatewayHere) -> WorkerInfo:
    """Drain a worker and have its launcher restart it."""
    pool, worker = gateway.pool, _worker(gateway, worker_id)
    if worker.service.is_restarting:
        raise WorkerBusyError("A restart has already been requested.")
    worker.service.is_restarting = True
    is_asked = False
    try:
        await pool.client.restart(worker)
        is_asked = True
    finally:
        worker.service.is_restarting = is_asked
        pool.directory.recheck(worker)
    return worker_info(worker, datetime.now(UTC))


@admin_router.post("/sessions/{session_id}/stop", responses=problems(404))
async def end_session(session_id: Name, gateway: GatewayHere) -> ActionResult:
    """End a session in any state."""
    found = [one for one in gateway.sessions.all() if one.request.session_id == session_id]
    if not found:
        raise NotFoundError("There is no such session.")
    for session in found:
        session.end()
    return ActionResult(success=True)


@admin_router.post("/cleanup")
def cleanup(body: CleanupRequest, gateway: GatewayHere) -> CleanupReport:
    """Delete recordings by age and by least recent use, or report what would be deleted."""
    recording = gateway.settings.recording
    days, gigabytes = body.retention_days, body.max_storage_gb
    return gateway.recordings.clean(
        recording.session_retention_days if days is None else days,
        recording.max_storage_gb if gigabytes is None else gigabytes,
        dry_run=body.dry_run,
    )


@admin_router.get("/recordings", response_model=RecordingPage, responses=problems(422, 502))
def recordings(
    request: Request,
    gateway: GatewayHere,
    offset: Annotated[int, Query(ge=0, le=OFFSET_MAX)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_DEFAULT,
    sort: Order = Order.NEWEST,
) -> Response:
    """List recordings with their sizes, including running ones."""
    return json_answer(page_of(gateway.recordings.listed(), offset, limit, sort), request.headers)


@admin_router.get("/history", response_model=History)
async def history(request: Request, gateway: GatewayHere) -> Response:
    """Return the last hour as columns: sessions, queue, units, memory, refusals."""
    assert gateway.trends is not None, "a door asks its desk"
    return await asyncio.to_thread(json_answer, gateway.trends.history(), request.headers)


@admin_router.get("/logs", response_model=administration.LogPart, responses=problems(400, 404, 422))
def logs(
    request: Request,
    gateway: GatewayHere,
    source: Annotated[str, Query(max_length=limits.ID_MAX_CHARS)] = "",
    after: Annotated[str | None, Query(max_length=limits.ID_MAX_CHARS)] = None,
    limit: Annotated[int, Query(ge=1, le=administration.LINES_MAX)] = administration.LINES_MAX,
) -> Response:
    """Return the end of a program's log, or what follows an earlier response's cursor.

    Without a source it is the gateway's, or the desk's.
    """
    data_dir = gateway.settings.service.data_dir
    part = administration.read_log(data_dir, source or None, after, limit)
    return json_answer(part, request.headers)


@admin_router.get("/audit", responses=problems(422))
def audit(
    gateway: GatewayHere, limit: Annotated[int, Query(ge=1, le=AUDIT_MAX)] = AUDIT_DEFAULT
) -> administration.AuditList:
    """List the actions of administrators, newest first."""
    return administration.AuditList(entries=administration.newest_entries(gateway.store, limit))
