"""What administrators look at: recordings, charts, logs, what was done. Changes nothing."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from core.schemas import limits
from gateway_modules.admin.audit import AuditList
from gateway_modules.admin.log_tail import LINES_MAX, LogPart
from gateway_modules.admin.trends import History
from gateway_modules.service import AdminOnly, GatewayHere
from gateway_modules.web.answers import problems
from gateway_modules.web.files import NO_STORE, json_answer
from recording.listing import Order, RecordingPage

PAGE_MAX = 200  # recordings in one answer
PAGE_USUAL = 50
OFFSET_MAX = 10_000_000  # more recordings than any disk holds
AUDIT_MAX = 500  # entries in one answer
AUDIT_USUAL = 100

router = APIRouter(
    prefix="/api/admin",
    tags=["administration"],
    dependencies=[AdminOnly],
    responses=problems(401, 403),
)


@router.get("/recordings", response_model=RecordingPage, responses=problems(422))
async def recordings(
    request: Request,
    gateway: GatewayHere,
    offset: Annotated[int, Query(ge=0, le=OFFSET_MAX)] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = PAGE_USUAL,
    sort: Order = Order.NEWEST,
) -> Response:
    """List recordings with their sizes, also those that are still being written."""
    page = await asyncio.to_thread(gateway.recordings.page, offset, limit, sort)
    return await json_answer(page.model_dump_json().encode(), request.headers, NO_STORE)


@router.get("/history", response_model=History)
async def history(request: Request, gateway: GatewayHere) -> Response:
    """Show the last hour as columns: sessions, queue, units, memory, refusals."""
    body = gateway.trends.history().model_dump_json().encode()
    return await json_answer(body, request.headers, NO_STORE)


@router.get("/logs", response_model=LogPart, responses=problems(400, 404, 422))
async def logs(
    request: Request,
    gateway: GatewayHere,
    source: Annotated[str, Query(max_length=limits.ID_MAX_CHARS)] = "gateway",
    after: Annotated[str | None, Query(max_length=limits.ID_MAX_CHARS)] = None,
    limit: Annotated[int, Query(ge=1, le=LINES_MAX)] = LINES_MAX,
) -> Response:
    """Return the end of a program's log, or what came after an earlier answer's cursor."""
    part = await asyncio.to_thread(gateway.logs.read, source, after, limit)
    return await json_answer(part.model_dump_json().encode(), request.headers, NO_STORE)


@router.get("/audit", responses=problems(422))
async def audit(
    gateway: GatewayHere,
    limit: Annotated[int, Query(ge=1, le=AUDIT_MAX)] = AUDIT_USUAL,
) -> AuditList:
    """List what administrators did, newest first."""
    return AuditList(entries=await asyncio.to_thread(gateway.audit.newest, limit))
