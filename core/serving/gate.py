"""Lets in only the gateway; in front of every route of a worker but the harmless ones."""

from __future__ import annotations

import hmac
import ipaddress
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from core.errors import CloseCode, UnauthorizedError
from core.schemas.worker import WORKER_SECRET_HEADER
from settings.sections import SecuritySettings

OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""What starts and watches workers has no secret, and nothing about a conversation is told there."""

GATEWAY_MARK: Final = "the gateway asked"  # key in a request's scope
LOCAL_NAME: Final = "localhost"
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
        if "origin" in headers:  # a page in somebody's browser; no page is made for workers
            return False
        if self._secret is None:
            is_gateway = is_loopback(_host_of(headers.get("host", "")))
        else:
            given = headers.get(WORKER_SECRET_HEADER, "")
            is_gateway = hmac.compare_digest(given.encode(), self._secret)
        if is_gateway:
            scope[GATEWAY_MARK] = True
        return is_gateway or scope["path"] in OPEN_PATHS


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, which no other machine reaches."""
    try:
        return host == LOCAL_NAME or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
