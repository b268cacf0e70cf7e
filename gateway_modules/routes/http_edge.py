"""Middleware for all HTTP requests and new sockets, and between doors and their desk.

Request ids, logs, metrics, rate limits, origin checks, body limits, security headers and the
audit; access to a desk, and forwarding to it. Pure ASGI: streams and disconnects pass unchanged.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import APIRouter
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from core.errors import BadRequestError, OmniError, RateLimitedError, TooBigError
from core.protocols.events import MS_PER_S
from core.schemas.common import count_values
from core.schemas.limits import JSON_VALUES_MAX, MIB, base64_chars
from core.schemas.worker import WORKER_SECRET_HEADER
from gateway_modules.administration import BodyStart, append_entry, entry_of
from gateway_modules.queue.desk_link import DOOR_PATH
from gateway_modules.relay.live_sessions import Doors
from gateway_modules.routes import admin, pages, queue, sessions
from gateway_modules.service import Gateway
from gateway_modules.web.limits import LEASE_MARK, SOCKET_BYTES, AddressBuckets, Lease
from gateway_modules.web.messages import PARTS_MARK
from gateway_modules.web.responses import IMMUTABLE_MARK, NO_STORE, content_policy, error_answer
from gateway_modules.web.security import ADMIN_MARK, SECONDS_PER_MINUTE, is_same_secret

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS: Final = SAFE_METHODS | {"POST", "PUT", "PATCH", "DELETE"}
OTHER: Final = "other"  # label of unknown methods and paths
# Public at a desk, and answered by a door itself.
OPEN_PATHS: Final = frozenset({"/health", "/metrics"})
QUIET_PATHS: Final = OPEN_PATHS | {"/status"}  # polled every few seconds

ADMIN_PREFIX: Final = "/api/admin/"
LOGIN_PATH: Final = "/api/admin/login"

# OpenAI's routes, for clients whose base URL has no path.
OPENAI_BARE: Final = re.compile(r"/(?:models|(?:chat|audio|live)/|realtime(?:/|$))")
TRANSCRIPTION_FORM: Final = "/v1/audio/transcriptions"
CHAT_PATHS: Final = frozenset({"/api/chat", "/v1/chat/completions", TRANSCRIPTION_FORM})
VOICE_FORM: Final = "/v1/audio/voices"
UPLOAD_PATH: Final = re.compile(r"/api/sessions/[^/]+/upload-recording")
BODY_MAX_BYTES: Final = MIB  # of a request without a limit of its own
BODY_SLACK_BYTES: Final = 64 * 1024  # for the form around a file
# Forms are decoded on the event loop, and some of Python's codecs take minutes for a field.
OTHER_CHARSET: Final = re.compile(r'\s*multipart/.*charset(?!="?utf-?8"?\s*(?:;|$))', re.I | re.S)
# A proxy may see another end of the body than we do; the next request could be part of it.
# Source: RFC 9112, section 6.1.
TWO_LENGTHS: Final = frozenset({"transfer-encoding", "content-length"})
REQUEST_ID_BYTES: Final = 8
LOGGED_CHARS: Final = 300  # of a path, so that long ones do not fill the disk

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(self)",
}


class HttpEdge:
    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        per_minute = gateway.settings.limits.requests_per_minute
        self._app = app
        self._gateway = gateway
        self._rates = AddressBuckets(per_minute, per_minute / SECONDS_PER_MINUTE, time.monotonic)
        policy = content_policy(gateway.recordings.media_origin)
        self._security_headers = {**SECURITY_HEADERS, "Content-Security-Policy": policy}
        self._log = structlog.get_logger("http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if OPENAI_BARE.match(scope["path"]):
            scope["path"] = f"/v1{scope['path']}"
        request_id = secrets.token_hex(REQUEST_ID_BYTES)
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            if scope["type"] == "websocket":
                await self._socket(scope, receive, send)
            else:
                await self._request(self._gateway.pages.resolved(scope), receive, send, request_id)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            connection = HTTPConnection(scope)
            self._check(connection)
            client = self._gateway.access.limited_client(connection)
            scope[PARTS_MARK] = True
            scope[LEASE_MARK] = self._gateway.bytes_held.lease(client, SOCKET_BYTES)
        except OmniError as error:
            self._gateway.metrics.error(error.code)
            path, code = scope["path"][:LOGGED_CHARS], error.code.value
            self._gateway.refusals.warn("socket refused", path=path, error_code=code)
            await receive()
            await send(
                {"type": "websocket.close", "code": int(error.close_code), "reason": error.code}
            )
            return
        await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        status, body, began_s = 0, BodyStart(), time.monotonic()

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in {"X-Request-Id": request_id, **self._security_headers}.items():
                    headers.setdefault(name, value)
                if headers.get("content-type", "").startswith("text/html"):
                    headers.setdefault("Cache-Control", "no-cache")
                if scope["path"].startswith(ADMIN_PREFIX):
                    headers.setdefault("Cache-Control", NO_STORE)
                if set(Headers(scope=scope)) >= TWO_LENGTHS:
                    headers["Connection"] = "close"
                # Before the response, so that its reader finds the entry.
                await self._audit(scope, body, status)
            await send(message)

        try:
            await self._answer(scope, receive, send_on, body.saw)
        except Exception as error:
            self._log.exception("request failed")
            if status:
                raise  # the response has begun: the server closes the connection
            await error_answer(error, scope["path"])(scope, receive, send_on)
        finally:
            self._log_request(scope, status, time.monotonic() - began_s)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, saw: Callable[[bytes], None]
    ) -> None:
        connection, path = HTTPConnection(scope), scope["path"]
        try:
            self._check(connection)
        except OmniError as error:
            await error_answer(error, path)(scope, receive, send)
            return
        gateway, is_file = self._gateway, is_upload(path)
        budget = gateway.bytes_uploaded if is_file else gateway.bytes_held
        values_max = None if is_file or path == TRANSCRIPTION_FORM else JSON_VALUES_MAX
        with budget.lease(gateway.access.limited_client(connection)) as lease:
            body = limited(receive, body_limit_bytes(gateway, path), saw, lease, values_max)
            await self._app(scope, body, send)

    def _check(self, connection: HTTPConnection) -> None:
        """Immutable files do not count: many people may share an address."""
        scope, access = connection.scope, self._gateway.access
        client = "" if IMMUTABLE_MARK in scope else access.limited_client(connection)
        if client and not self._rates.take(client):
            raise RateLimitedError()
        access.check_host(connection)
        if scope.get("method") not in SAFE_METHODS:  # a socket has none
            access.check_origin(connection)
        if OTHER_CHARSET.match(connection.headers.get("content-type", "")):
            raise BadRequestError("content-type: a form has to be UTF-8.")
        length = connection.headers.get("content-length", "")
        limit = body_limit_bytes(self._gateway, scope["path"])
        if length.isdecimal() and int(length) > limit:
            raise TooBigError(f"The request has {length} bytes; {limit} are allowed.")

    def _log_request(self, scope: Scope, status: int, duration_s: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._gateway.metrics.answered(method, route_template(scope), status)
        # The administration page polls every few seconds.
        is_polled = ADMIN_MARK in scope and method in SAFE_METHODS
        is_routine = IMMUTABLE_MARK in scope or is_polled
        is_failure = status >= HTTPStatus.BAD_REQUEST
        if scope["path"] not in QUIET_PATHS and (is_failure or not is_routine):
            self._log.info(
                "request",
                method=method,
                path=scope["path"][:LOGGED_CHARS],
                status=status,
                duration_ms=round(duration_s * MS_PER_S, 1),
            )

    async def _audit(self, scope: Scope, body: BodyStart, status: int) -> None:
        if ADMIN_MARK not in scope or scope["method"] in SAFE_METHODS:
            return
        address = self._gateway.access.client_address(HTTPConnection(scope))
        action = f"{scope['method']} {route_template(scope)}"
        target = ", ".join(str(value) for value in scope.get("path_params", {}).values())
        shown = BodyStart() if scope["path"] == LOGIN_PATH else body  # no token is logged
        entry = entry_of(datetime.now(UTC), address, action, target, shown, status)
        try:
            await asyncio.to_thread(append_entry, self._gateway.store, entry)
        except OSError as error:
            self._log.warning("audit not written", action=entry.action, reason=str(error))


def route_template(scope: Scope) -> str:
    route = scope.get("route")
    return route.path if isinstance(route, Route) else OTHER


def body_limit_bytes(gateway: Gateway, path: str) -> int:
    limits = gateway.settings.limits
    if path in CHAT_PATHS:
        return limits.chat_message_bytes
    if path == "/api/assets/ref_audio":
        return base64_chars(limits.reference_upload_bytes) + BODY_SLACK_BYTES
    if path == VOICE_FORM:
        return limits.reference_upload_bytes + BODY_SLACK_BYTES
    if is_upload(path):
        return limits.recording_upload_bytes + BODY_SLACK_BYTES
    return BODY_MAX_BYTES


def is_upload(path: str) -> bool:
    return UPLOAD_PATH.fullmatch(path) is not None or path == VOICE_FORM


def limited(
    receive: Receive,
    limit_bytes: int,
    saw: Callable[[bytes], None],
    lease: Lease,
    values_max: int | None,
) -> Receive:
    """Return a `receive` that raises HTTP 413 for a body that is too large, and 429 without memory.

    FastAPI would answer an `OmniError` of a body that it reads with HTTP 400.

    At most `values_max` values may be in a body that may be JSON, counted as by `check_json_shape`;
    None for a form, whose bytes mean nothing to that count.
    """
    received = values = 0
    too_large = partial(HTTPException, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    async def receive_on() -> Message:
        nonlocal received, values
        message = await receive()
        if message["type"] == "http.request":
            part = message.get("body", b"")
            received += len(part)
            saw(part)
            if received > limit_bytes:
                raise too_large(f"The request is longer than {limit_bytes} bytes.")
            try:
                lease.add(len(part))
            except RateLimitedError as error:
                raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, error.message) from error
            values += count_values(part) if values_max is not None else 0
            if values_max is not None and values > values_max:
                raise too_large(f"The request has more than {values_max} values.")
        return message

    return receive_on


@dataclass(frozen=True)
class DoorsOnly:
    app: ASGIApp
    doors: Doors
    secret: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        shown = HTTPConnection(scope).headers.get(WORKER_SECRET_HEADER, "")
        is_door = is_same_secret(shown, self.secret)
        if scope["type"] == "websocket":
            websocket = WebSocket(scope, receive, send)
            if is_door and scope["path"] == DOOR_PATH:
                await self.doors.serve(websocket)
            else:
                await websocket.close()
        elif is_door or scope["path"] in OPEN_PATHS:
            await self.app(scope, receive, send)
        else:
            text = "This is a desk: use one of its doors."
            await PlainTextResponse(text, HTTPStatus.UNAUTHORIZED)(scope, receive, send)


def forwarding(gateway: Gateway) -> APIRouter:
    """Build a door's routes of what its desk answers: all about the pool, and administration.

    The sessions of administrators exist at the desk only.
    """
    desk = gateway.desk
    assert desk is not None, "a door has a desk"
    router = APIRouter(include_in_schema=False)
    parts = queue.router, queue.pool_router, sessions.router, admin.router, admin.admin_router
    routes = [one for part in parts for one in part.routes if isinstance(one, Route)]
    files = [one for one in pages.assets.routes if isinstance(one, Route)]
    routes += [one for one in files if not SAFE_METHODS >= (one.methods or set())]
    for one in routes:
        if one.path not in OPEN_PATHS:
            router.add_api_route(one.path, desk.answer, methods=sorted(one.methods or ()))
    return router
