"""A worker's routes: each validates, calls the host, answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response, WebSocket
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
from core.serving.host import WorkerHost
from core.serving.scheduling import end_task
from core.serving.session_kinds import SocketKind

CHAT_REQUEST: Final = TypeAdapter(ChatRequest)
STOP_REQUEST: Final = TypeAdapter(StopRequest)
STOP_LIMIT_BYTES: Final = 4_096
STOPS: Final = {
    "streaming": (SocketKind.STREAMING, SocketKind.CHAT),
    "half_duplex": (SocketKind.HALF_DUPLEX,),
    "duplex": (SocketKind.DUPLEX,),
}
"""Which sockets a stop route concerns."""

HostOf = Callable[[], WorkerHost]
"""Returns the host, which begins with the program."""


def worker_routes(
    host_of: HostOf, registry: CollectorRegistry, restart: Callable[[], None]
) -> APIRouter:
    """Return every route of a worker.

    Args:
        host_of: Returns the host.
        registry: What `/metrics` shows.
        restart: Ends the program so that it is started again, or raises an OmniError.
    """
    router = APIRouter()
    _add_state(router, host_of, registry)
    _add_restart(router, restart)
    _add_chat(router, host_of)
    for name, kinds in STOPS.items():
        _add_stop(router, host_of, name, kinds)
    for kind in SocketKind:
        _add_socket(router, host_of, kind)
    return router


async def tell_error(request: Request, error: Exception) -> Response:
    """Turn one of our errors into an HTTP answer."""
    assert isinstance(error, OmniError)
    content = {"detail": error.message, "code": error.code.value}
    return JSONResponse(content, error.http_status)


def _add_state(router: APIRouter, host_of: HostOf, registry: CollectorRegistry) -> None:
    @router.get("/health")
    async def health(request: Request) -> WorkerHealth:
        health = host_of().health()
        if GATEWAY_MARK in request.scope:
            return health
        return health.model_copy(update={"current_session_id": None})

    @router.get("/cache_info")
    async def cache_info() -> CacheStatus:
        return host_of().cache_info()

    @router.post("/clear_cache")
    async def clear_cache(response: Response) -> ActionResult:
        done = await host_of().clear_cache()
        if done is None:
            response.status_code = HTTPStatus.CONFLICT
            return ActionResult(success=False, message="Somebody is served now.")
        return done

    @router.get("/metrics")
    async def metrics() -> Response:
        return Response(exposition(registry), media_type=CONTENT_TYPE)


def _add_restart(router: APIRouter, restart: Callable[[], None]) -> None:
    @router.post("/restart")
    async def restart_worker() -> ActionResult:
        restart()
        return ActionResult(success=True, message="It ends when its sessions have ended.")


def _add_chat(router: APIRouter, host_of: HostOf) -> None:
    @router.post("/chat")
    async def chat(request: Request) -> ChatResponse:
        body = await _read(request, CHAT_SOCKET_LIMIT_BYTES)
        asked = await asyncio.to_thread(parse_message, CHAT_REQUEST, body)
        gone = asyncio.Event()
        watching = asyncio.create_task(_watch(request, gone))
        try:
            secret = request.headers.get(SESSION_SECRET_HEADER, "")
            return await host_of().chat(asked, gone, secret)
        finally:
            await end_task(watching)


def _add_stop(router: APIRouter, host_of: HostOf, name: str, kinds: tuple[SocketKind, ...]) -> None:
    @router.post(f"/{name}/stop")
    async def stop(request: Request) -> ActionResult:
        body = await _read(request, STOP_LIMIT_BYTES)
        asked = parse_message(STOP_REQUEST, body) if body else StopRequest()
        return host_of().stop(kinds, asked.session_id)


def _add_socket(router: APIRouter, host_of: HostOf, kind: SocketKind) -> None:
    @router.websocket(kind.path)
    async def socket(
        websocket: WebSocket, session_id: str | None = None, variant: str | None = None
    ) -> None:
        await host_of().serve(websocket, kind, session_id, variant)


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
    """Notice that nobody waits for the answer any more."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    gone.set()
