"""HTTP between doors and their desk: who may ask a desk, and what a door passes on to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from hmac import compare_digest
from http import HTTPStatus
from typing import Final

import httpx
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from core.schemas.worker import WORKER_SECRET_HEADER
from core.worker_tls import SNI, client_context
from gateway_modules.desk.client import DeskAwayError
from gateway_modules.desk.link import DOOR_PATH
from gateway_modules.desk.server import Doors
from gateway_modules.queue.worker_client import HTTP_CONNECTIONS, OPEN_TIMEOUT_S
from gateway_modules.roles import shared_secret
from gateway_modules.routes import admin, pages, queue, sessions
from gateway_modules.routes.http_edge import SAFE_METHODS
from gateway_modules.service import Gateway
from gateway_modules.web.responses import error_answer
from settings.workers import worker_place

OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""What everybody may ask a desk, and a door answers itself."""

# Of one connection, not of the request. Source: RFC 9110, section 7.6.1.
HOP_HEADERS: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding "
    "upgrade date".split()
)
# What a door has checked, or says itself of its client.
CLIENT_HEADERS: Final = frozenset(
    "origin x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split()
) | {WORKER_SECRET_HEADER.lower()}


class DoorsOnly:
    """The layer around a desk: nobody asks it anything but its doors."""

    def __init__(self, app: ASGIApp, doors: Doors, secret: str) -> None:
        """Wrap an app; `secret` is what doors show."""
        self._app = app
        self._doors = doors
        self._secret = secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a door, or what it passes on; refuse others."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        shown = HTTPConnection(scope).headers.get(WORKER_SECRET_HEADER, "")
        is_door = compare_digest(shown.encode("utf-8", "surrogatepass"), self._secret)
        if scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            if is_door and scope["path"] == DOOR_PATH:
                await self._doors.serve(websocket)
            else:
                await websocket.close()
        elif is_door or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            text = "This is the desk: ask one of its doors."
            await PlainTextResponse(text, HTTPStatus.UNAUTHORIZED)(scope, receive, send)


def desk_routes() -> Sequence[Route]:
    """Return the routes that a door passes on: what needs the pool, or may need an administrator.

    Administrators who are logged in are known to the desk alone.
    """
    routers = (queue.router, sessions.router, admin.router, admin.admin_router, pages.assets)
    routes = [route for router in routers for route in router.routes if isinstance(route, Route)]
    files = [route for route in pages.assets.routes if isinstance(route, Route) and _reads(route)]
    return [route for route in routes if route.path not in OPEN_PATHS and route not in files]


def _reads(route: Route) -> bool:
    return SAFE_METHODS >= (route.methods or set())


class Forwarding:
    """The layer of a door that passes requests on to the desk."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        """Wrap an app; `gateway` is the door."""
        settings = gateway.settings
        assert settings.service.desk is not None, "a door has a desk"
        tls = client_context(settings)
        self._app = app
        self._access = gateway.access
        self._routes = desk_routes()
        place = worker_place(settings.service.desk)
        self._url = f"{'https' if tls else 'http'}://{place.netloc}"
        self._secret = shared_secret(settings)
        self._http = httpx.AsyncClient(
            verify=tls or False,
            trust_env=False,
            timeout=httpx.Timeout(settings.service.request_timeout, connect=OPEN_TIMEOUT_S),
            limits=httpx.Limits(max_connections=HTTP_CONNECTIONS),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or let the door answer."""
        route = self._route_of(scope) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # its template is what is counted
        answer = await self._answer(Request(scope, receive))
        await answer(scope, receive, send)

    def _route_of(self, scope: Scope) -> Route | None:
        matching = (route for route in self._routes if route.matches(scope)[0] is Match.FULL)
        return next(matching, None)

    async def _answer(self, request: Request) -> Response:
        has_body = request.method not in SAFE_METHODS
        asked = self._http.build_request(
            request.method,
            f"{self._url}{request.url.path}",
            params=request.url.query,
            headers=self._headers(request),
            content=request.stream() if has_body else None,
            extensions=SNI,
        )
        try:
            answer = await self._http.send(asked, stream=True)
        except httpx.HTTPError:
            return error_answer(DeskAwayError(), request.url.path)
        passed = StreamingResponse(_body(answer), answer.status_code)
        passed.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.decode("latin-1").lower() not in HOP_HEADERS
        ]
        return passed

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        kept = [
            (name, value)
            for name, value in request.headers.items()
            if name not in HOP_HEADERS | CLIENT_HEADERS
        ]
        return [
            *kept,
            (WORKER_SECRET_HEADER, self._secret),
            ("X-Forwarded-For", self._access.client_address(request) or "unknown"),
            ("X-Forwarded-Proto", "https" if self._access.is_secure(request) else "http"),
        ]


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()
