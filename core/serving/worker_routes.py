"""A worker's routes: each validates, calls the sessions or the runtime, answers."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response, WebSocket
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter

from core.errors import OmniError, TooBigError
from core.metrics import CONTENT_TYPE, exposition
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES
from core.schemas.parsing import parse_message
from core.schemas.queue import SESSION_SECRET_HEADER
from core.schemas.worker import ActionResult, CacheStatus, StopRequest, WorkerHealth
from core.serving.gate import GATEWAY_MARK
from core.serving.scheduling import end_task
from core.serving.session_kinds import SocketKind
from core.serving.session_server import SessionServer

CHAT_REQUEST: Final = TypeAdapter(ChatRequest)
STOP_REQUEST: Final = TypeAdapter(StopRequest)
STOP_LIMIT_BYTES: Final = 4_096
STOPS: Final = {
    "streaming": (SocketKind.STREAMING, SocketKind.CHAT),
    "half_duplex": (SocketKind.HALF_DUPLEX,),
    "duplex": (SocketKind.DUPLEX,),
}
"""Which sockets a stop route concerns."""


def _sessions_of(connection: HTTPConnection) -> SessionServer:
    """Return what the application serves sessions by."""
    sessions: SessionServer = connection.app.state.sessions
    return sessions


Sessions = Annotated[SessionServer, Depends(_sessions_of)]


def worker_routes(registry: CollectorRegistry) -> APIRouter:
    """Return every route of a worker whose sessions are in its application's state.

    Args:
        registry: What `/metrics` shows.
    """
    router = APIRouter()
    _add_state(router, registry)
    _add_chat(router)
    for name, kinds in STOPS.items():
        _add_stop(router, name, kinds)
    for kind in SocketKind:
        _add_socket(router, kind)
    return router


async def tell_error(request: Request, error: Exception) -> Response:
    """Turn one of our errors into an HTTP answer."""
    assert isinstance(error, OmniError)
    content = {"detail": error.message, "code": error.code.value}
    return JSONResponse(content, error.http_status)


def _add_state(router: APIRouter, registry: CollectorRegistry) -> None:
    @router.get("/health")
    async def health(request: Request, sessions: Sessions) -> WorkerHealth:
        health = sessions.runtime.health()
        if GATEWAY_MARK in request.scope:
            return health
        return health.model_copy(update={"current_session_id": None})

    @router.get("/cache_info")
    async def cache_info(sessions: Sessions) -> CacheStatus:
        return sessions.runtime.cache_info()

    @router.post("/clear_cache")
    async def clear_cache(response: Response, sessions: Sessions) -> ActionResult:
        done = await sessions.runtime.clear_cache()
        if done is None:
            response.status_code = HTTPStatus.CONFLICT
            return ActionResult(success=False, message="Somebody is served now.")
        return done

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition(registry), media_type=CONTENT_TYPE)

    @router.post("/restart")
    async def restart(sessions: Sessions) -> ActionResult:
        sessions.restart()
        return ActionResult(success=True, message="It ends when its sessions have ended.")


def _add_chat(router: APIRouter) -> None:
    @router.post("/chat")
    async def chat(request: Request, sessions: Sessions) -> ChatResponse:
        body = await _read(request, CHAT_SOCKET_LIMIT_BYTES)
        asked = await asyncio.to_thread(parse_message, CHAT_REQUEST, body)
        gone = asyncio.Event()
        watching = asyncio.create_task(_watch(request, gone))
        try:
            secret = request.headers.get(SESSION_SECRET_HEADER, "")
            return await sessions.chat(asked, gone, secret)
        finally:
            await end_task(watching)


def _add_stop(router: APIRouter, name: str, kinds: tuple[SocketKind, ...]) -> None:
    @router.post(f"/{name}/stop")
    async def stop(request: Request, sessions: Sessions) -> ActionResult:
        body = await _read(request, STOP_LIMIT_BYTES)
        asked = parse_message(STOP_REQUEST, body) if body else StopRequest()
        return sessions.stop(kinds, asked.session_id)


def _add_socket(router: APIRouter, kind: SocketKind) -> None:
    @router.websocket(kind.path)
    async def socket(
        websocket: WebSocket,
        sessions: Sessions,
        session_id: str | None = None,
        variant: str | None = None,
    ) -> None:
        await sessions.serve(websocket, kind, session_id, variant)


async def _read(request: Request, limit_bytes: int) -> bytes:
    """Read a body no further than the limit.

    Raises:
        TooBigError: It is longer.
    """
    parts, size_bytes = [], 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise TooBigError()
        parts.append(part)
    return b"".join(parts)


async def _watch(request: Request, gone: asyncio.Event) -> None:
    """Set `gone` when the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
