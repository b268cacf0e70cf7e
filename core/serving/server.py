"""The HTTP side of a worker: who is let in, its routes, and the server that drains.

Before it closes their sockets the server lets running sessions end. A route validates, calls the
sessions or the runtime, and answers.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from http import HTTPStatus
from types import FrameType
from typing import Annotated, Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Request, Response, WebSocket
from fastapi.requests import HTTPConnection
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry
from pydantic import TypeAdapter
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from config import Settings
from core.errors import CloseCode, OmniError, ShuttingDownError, TooBigError, UnauthorizedError
from core.metrics import CONTENT_TYPE, exposition
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import parse_message
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB
from core.schemas.queue import SESSION_SECRET_HEADER
from core.schemas.worker import (
    RESTART_EXIT_CODE,
    WORKER_SECRET_HEADER,
    ActionResult,
    CacheStatus,
    KeptSession,
    StopRequest,
    WorkerHealth,
)
from core.serving.names import is_loopback
from core.serving.queues import end_task
from core.serving.recording_routes import add_recordings
from core.serving.session_kinds import SocketKind
from core.serving.session_server import SessionServer
from core.serving.transcription_route import SOUND_MAX_BYTES, written_down
from core.stop_signals import StopSignals
from core.transcription import TranscriptionOptions
from core.worker_tls import server_context
from settings.sections import SecuritySettings

OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""A launcher has no secret, and nothing about a conversation is shown there."""

GATEWAY_MARK: Final = "the gateway asked"  # key in a request's scope
REFUSAL: Final = "The worker's secret is missing or wrong."


class SecretGate:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, secret: str | None) -> None:
        """Guard an application.

        Args:
            app: What is guarded.
            secret: Shared with the gateway; None lets in what calls this machine by its own name.
        """
        self._app = app
        self._secret = secret.encode() if secret else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": int(CloseCode.POLICY)})
        else:
            error = UnauthorizedError(REFUSAL)
            content = {"detail": error.message, "code": error.code.value}
            response = JSONResponse(content, HTTPStatus.UNAUTHORIZED)
            await response(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        if "origin" in headers:  # a page in a browser; no page is made for workers
            return False
        if self._secret is None:
            is_gateway = is_loopback(_host_of(headers.get("host", "")))
        else:
            given = headers.get(WORKER_SECRET_HEADER, "")
            is_gateway = hmac.compare_digest(given.encode(), self._secret)
        if is_gateway:
            scope[GATEWAY_MARK] = True
        if WORKER_SECRET_HEADER in headers:  # another secret: its gateway is to hear of that
            return is_gateway
        return is_gateway or scope["path"] in OPEN_PATHS


def _host_of(netloc: str) -> str:
    try:
        return urlsplit(f"//{netloc}").hostname or ""
    except ValueError:
        return ""


def check_exposure(host: str, security: SecuritySettings) -> None:
    """Refuse to listen to other machines without a secret: a worker obeys every request.

    Raises:
        ValueError: Other machines reach the address, and there is no secret.
    """
    if security.worker_secret is None and not is_loopback(host):
        raise ValueError(
            f"The worker would listen on {host} to everybody. Set security.worker_secret to the "
            "same value here and at the gateway, or bind the worker to 127.0.0.1."
        )


CHAT_REQUEST: Final = TypeAdapter(ChatRequest)
STOP_REQUEST: Final = TypeAdapter(StopRequest)
KEPT_SESSION: Final = TypeAdapter(KeptSession)
STOP_LIMIT_BYTES: Final = 4_096
STOPS: Final = {
    "streaming": (SocketKind.STREAMING, SocketKind.CHAT),
    "half_duplex": (SocketKind.HALF_DUPLEX, SocketKind.REALTIME),
    "duplex": (SocketKind.DUPLEX, SocketKind.LIVE),
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
    _add_transcription(router)
    _add_keeps(router)
    add_recordings(router)
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
            return ActionResult(success=False, message="A session is served now.")
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


def _add_transcription(router: APIRouter) -> None:
    @router.post("/transcribe")
    async def transcribe(
        request: Request,
        sessions: Sessions,
        language: str | None = None,
        prompt: str = "",
        temperature: float = 0.0,
    ) -> Response:
        sound = await _read(request, SOUND_MAX_BYTES)
        options = TranscriptionOptions(language, prompt, temperature)
        return await written_down(sessions.runtime, sound, options)


def _add_stop(router: APIRouter, name: str, kinds: tuple[SocketKind, ...]) -> None:
    @router.post(f"/{name}/stop")
    async def stop(request: Request, sessions: Sessions) -> ActionResult:
        body = await _read(request, STOP_LIMIT_BYTES)
        asked = parse_message(STOP_REQUEST, body) if body else StopRequest()
        return sessions.stop(kinds, asked.session_id)


def _add_keeps(router: APIRouter) -> None:
    @router.post("/keeps")
    async def keeps(request: Request, sessions: Sessions) -> ActionResult:
        body = await _read(request, STOP_LIMIT_BYTES)
        return ActionResult(success=sessions.keeps(parse_message(KEPT_SESSION, body)))


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


# A message a little too big is still read, so that its sender gets the reason.
SOCKET_LIMIT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
SHUTDOWN_LIMIT_S: Final = 5  # for the last answers to be sent


class DrainingServer(uvicorn.Server):
    """Lets running sessions end before it closes their sockets."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_limit_s: float) -> None:
        """Serve by a configuration.

        Args:
            config: uvicorn's.
            app: The application.
            drain_limit_s: How long sessions may go on after a stop was asked for.
        """
        super().__init__(config)
        self._app = app
        self._drain_limit_s = drain_limit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._signals = StopSignals()
        self.exit_code = 0

    @property
    def sessions(self) -> SessionServer:
        """The application's sessions; there are some while it runs."""
        sessions: SessionServer = self._app.state.sessions
        return sessions

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self.sessions.begin_restart = self.begin_restart

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is left."""
        if self._draining is not None:
            await self._draining
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at once at one that is sent later."""
        is_hurry = self._signals.is_hurry(time.monotonic())
        if self._loop is not None and (is_hurry or self._draining is None):
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Begin to end; asked again, do not wait any longer."""
        if self._draining is not None or not self.started:
            self.should_exit = True
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    def begin_restart(self) -> None:
        """Begin to end as at a signal, and have the launcher start the program again.

        Raises:
            ShuttingDownError: It is ending already.
        """
        if self._draining is not None or self.should_exit:
            raise ShuttingDownError()
        self.exit_code = RESTART_EXIT_CODE
        self.begin_drain()

    async def _drain(self) -> None:
        try:
            await self.sessions.drain(self._drain_limit_s)
        finally:
            self.should_exit = True


def make_server(app: FastAPI, settings: Settings, host: str, port: int) -> DrainingServer:
    """Return what serves a worker's application.

    Raises:
        OSError: The certificate can be neither read nor made.
        ValueError: There is none, and no key to sign one with.
    """
    heartbeat_s, tls = settings.limits.heartbeat_s, server_context(settings)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        ws="websockets-sansio",  # the one of uvicorn's that holds back too fast a sender
        ws_max_size=SOCKET_LIMIT_BYTES,
        ws_ping_interval=heartbeat_s,
        ws_ping_timeout=heartbeat_s,
        ws_per_message_deflate=False,  # between processes of ours it costs more than it saves
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
        ssl_context_factory=(lambda *_: tls) if tls else None,
    )
    return DrainingServer(config, app, settings.service.drain_timeout_s)
