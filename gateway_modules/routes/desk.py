"""HTTP between doors and their desk: who may ask a desk, and what a door passes on to it."""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from http import HTTPStatus
from typing import Final

from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from core.schemas.worker import WORKER_SECRET_HEADER
from gateway_modules.desk.link import DOOR_PATH
from gateway_modules.desk.server import Doors
from gateway_modules.routes import admin, pages, queue, sessions
from gateway_modules.routes.http_edge import SAFE_METHODS
from gateway_modules.service import Gateway

OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
"""What everybody may ask a desk, and a door answers itself."""


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
        assert gateway.desk is not None, "a door has a desk"
        self._app = app
        self._desk = gateway.desk
        self._routes = desk_routes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or let the door answer."""
        route = self._route_of(scope) if scope["type"] == "http" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route  # its template is what is counted
        answer = await self._desk.answer(Request(scope, receive))
        await answer(scope, receive, send)

    def _route_of(self, scope: Scope) -> Route | None:
        matching = (route for route in self._routes if route.matches(scope)[0] is Match.FULL)
        return next(matching, None)
