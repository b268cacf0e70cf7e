"""Lets in only who knows the shared secret; in front of every route but the harmless ones."""

from __future__ import annotations

import hmac
import ipaddress
from http import HTTPStatus
from typing import Final

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from core.errors import CloseCode, UnauthorizedError
from core.schemas.worker import WORKER_SECRET_HEADER

OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""Whoever starts and watches workers has no secret, and nothing anybody said is told there."""

LOCAL_PATHS: Final = frozenset({"/restart"})
"""Without a secret, only this machine may ask for these."""

REFUSAL: Final = "The worker's secret is missing or wrong."


class SecretGate:
    """Wraps an application."""

    def __init__(self, app: ASGIApp, secret: str | None) -> None:
        """Guard an application.

        Args:
            app: What is guarded.
            secret: Shared with the gateway; None lets everybody in.
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
        if self._secret is None:
            return scope["path"] not in LOCAL_PATHS or _is_local(scope)
        if scope["path"] in OPEN_PATHS:
            return True
        wanted = WORKER_SECRET_HEADER.lower().encode()
        given = next((value for name, value in scope["headers"] if name.lower() == wanted), b"")
        return hmac.compare_digest(given, self._secret)


def _is_local(scope: Scope) -> bool:
    host, _ = scope.get("client") or ("", 0)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
