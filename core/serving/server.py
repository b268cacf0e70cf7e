"""A worker's HTTP server: authentication of the gateway, and shutdown."""

from __future__ import annotations

import hmac
import socket
import time
from types import FrameType
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from config import Settings
from core.addresses import is_loopback
from core.errors import CloseCode, OmniError, ShuttingDownError, UnauthorizedError
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB
from core.schemas.worker import RESTART_EXIT_CODE, WORKER_SECRET_HEADER
from core.serving.session_server import SessionServer
from core.stop_signals import StopSignals
from core.worker_tls import server_context
from settings.sections import SecuritySettings

OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""The launcher has no secret; these paths reveal nothing about conversations."""

GATEWAY_MARK: Final = "minicpmo.from_gateway"  # key in a request's scope
REFUSAL: Final = "The worker's secret is missing or wrong."


async def error_response(request: object, error: Exception) -> Response:
    assert isinstance(error, OmniError)
    content = {"detail": error.message, "code": error.code.value}
    return JSONResponse(content, error.http_status)


class SecretGate:
    """ASGI middleware that admits requests with the worker's secret.

    Without a secret, it admits requests to a loopback host name.
    """

    def __init__(self, app: ASGIApp, secret: str | None) -> None:
        self._app = app
        self._secret = secret.encode() if secret else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._is_allowed(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": int(CloseCode.POLICY)})
        else:
            response = await error_response(None, UnauthorizedError(REFUSAL))
            await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        if "origin" in headers:  # sent by a browser; no page uses workers
            return False
        if self._secret is None:
            try:
                host = urlsplit(f"//{headers.get('host', '')}").hostname
            except ValueError:
                host = None
            is_gateway = is_loopback(host or "")
        else:
            given = headers.get(WORKER_SECRET_HEADER, "")
            is_gateway = hmac.compare_digest(given.encode(), self._secret)
        if is_gateway:
            scope[GATEWAY_MARK] = True
        if WORKER_SECRET_HEADER in headers:  # a wrong secret must fail
            return is_gateway
        return is_gateway or scope["path"] in OPEN_PATHS


def check_exposure(host: str, security: SecuritySettings) -> None:
    """Raise `ValueError` if other machines could reach the worker without a secret."""
    if security.worker_secret is None and not is_loopback(host):
        raise ValueError(
            f"The worker would accept anyone on {host}. Set security.worker_secret to the "
            "same value here and at the gateway, or bind the worker to 127.0.0.1."
        )


# Messages slightly above the limit are read, so that the sender receives an error.
SOCKET_LIMIT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
SHUTDOWN_LIMIT_S: Final = 5  # for the last answers to be sent


class DrainingServer(uvicorn.Server):
    """Lets running sessions end before it closes their sockets."""

    def __init__(self, app: FastAPI, settings: Settings, host: str, port: int) -> None:
        """Raises `OSError` or `ValueError` if the certificate cannot be read, created or signed."""
        heartbeat_s, tls = settings.limits.heartbeat_s, server_context(settings)
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            ws="websockets-sansio",  # uvicorn's only implementation with backpressure
            ws_max_size=SOCKET_LIMIT_BYTES,
            ws_ping_interval=heartbeat_s,
            ws_ping_timeout=heartbeat_s,
            ws_per_message_deflate=False,  # between our own processes it costs more than it saves
            timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
            ssl_context_factory=(lambda *_: tls) if tls else None,
        )
        super().__init__(config)
        self._app = app
        self._drain_limit_s = settings.service.drain_timeout_s
        self._signals = StopSignals()
        self.exit_code = 0

    @property
    def sessions(self) -> SessionServer:
        sessions: SessionServer = self._app.state.sessions
        return sessions

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.sessions.begin_restart = self.begin_restart

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.sessions.drain(self._drain_limit_s)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; end the sessions at a later one."""
        is_hurry = self._signals.is_hurry(time.monotonic())
        if is_hurry or not self.should_exit:
            self.begin_drain()

    def begin_drain(self) -> None:
        """Begin to shut down; a second call ends the sessions that are waited for."""
        if self.should_exit and self.started:
            self.sessions.stop_waiting()
        self.should_exit = True

    def begin_restart(self) -> None:
        """Shut down as after a signal, to be restarted; raises `ShuttingDownError` if it does."""
        if self.should_exit:
            raise ShuttingDownError()
        self.exit_code = RESTART_EXIT_CODE
        self.begin_drain()
