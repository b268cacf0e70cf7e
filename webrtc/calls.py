"""Starts and ends the calls of this process, over HTTP."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

import structlog
from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from config import Settings
from core import errors
from core.schemas.limits import MIB
from core.schemas.openai_errors import parse_body
from core.schemas.webrtc import CALLS_PATH, CallAnswer, CallOffer
from core.serving.server import SecretGate
from gateway_modules.web import responses
from gateway_modules.web.messages import unless_disconnected
from settings.webrtc import WebRtcSettings
from webrtc.call import Call, check_offer
from webrtc.dialect import Dialect, Live, Realtime, read
from webrtc.playout import Playout

ID_BYTES: Final = 12
OPEN_TIMEOUT_S: Final = 10.0  # of the WebSocket, in addition to the time in the queue
CLOSE_TIMEOUT_S: Final = 1.0
EVENT_MAX_BYTES: Final = MIB  # upper bound of the server's events
REPLY_BUFFER_MS: Final = 120_000  # replies arrive faster than they are played; 5.8 MB
LIVE_BUFFER_MS: Final = 400  # the audio is already paced
LIVE_LEAD_MS: Final = 40  # jitter that causes no gap


# HTTP statuses by type of an `error` event; all other types are errors of the client.
STATUSES: Final = {
    "rate_limit_error": HTTPStatus.TOO_MANY_REQUESTS,
    "server_error": HTTPStatus.SERVICE_UNAVAILABLE,
}


class RefusedError(Exception):
    """The gateway refused the session; status and body are passed on to the client."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.body = status, body


@dataclass(frozen=True)
class GatewayAddress:
    """The gateway's ws: or wss: URL, and the context that verifies its certificate."""

    url: str
    tls: ssl.SSLContext | None = None


class Calls:
    """Owns the tasks of all calls."""

    def __init__(self, gateway: GatewayAddress, settings: WebRtcSettings, wait_s: float) -> None:
        """Create it without calls; a session may wait `wait_s` in the gateway's queue."""
        self._gateway, self._settings, self._wait_s = gateway, settings, wait_s
        self._calls: dict[str, tuple[Call, asyncio.Task[None]]] = {}
        self._beginning = 0
        self._log = structlog.get_logger("webrtc")

    def __len__(self) -> int:
        return len(self._calls) + self._beginning

    async def begin(self, offer: CallOffer) -> CallAnswer:
        """Answer an offer and start the call.

        Raises:
            OmniError: The offer is invalid, there are too many calls, or the session fails.
            RefusedError: The gateway refused the session.
        """
        check_offer(offer.sdp)
        peers_max = self._settings.max_peers
        if len(self) >= peers_max:
            raise errors.QueueFullError(
                f"There are {peers_max} calls over WebRTC; please try again later."
            )
        self._beginning += 1
        try:
            async with AsyncExitStack() as stack:
                call_id, call, sdp = await self._opened(offer, stack)
                self._calls[call_id] = call, asyncio.create_task(self._serve(call_id, call))
                stack.pop_all()  # now closed by the task
        finally:
            self._beginning -= 1
        return CallAnswer(call_id=call_id, sdp=sdp)

    async def hang_up(self, call_id: str) -> None:
        """End a call; a NotFoundError if there is none."""
        if call_id not in self._calls:
            raise errors.NotFoundError("There is no such call.")
        call, task = self._calls[call_id]
        call.hang_up()
        await asyncio.wait([task])

    async def close(self) -> None:
        calls = list(self._calls.values())
        for call, _ in calls:
            call.hang_up()
        await asyncio.gather(*(task for _, task in calls), return_exceptions=True)

    async def _opened(self, offer: CallOffer, stack: AsyncExitStack) -> tuple[str, Call, str]:
        dialect: Dialect = Realtime() if offer.protocol == "realtime" else Live()
        socket = await self._connect(offer, dialect)
        stack.push_async_callback(socket.close)
        playout = Playout(REPLY_BUFFER_MS)
        first, call_id = "", f"rtc_{secrets.token_hex(ID_BYTES)}"
        try:
            await socket.send(dialect.opening(offer.session))
            if offer.protocol == "live":
                playout = Playout(LIVE_BUFFER_MS, LIVE_LEAD_MS, drops_oldest=True)
                first = await self._first(socket)
                call_id = read(first)["session"]["id"]
        except ConnectionClosed as closed:
            raise errors.WorkerUnreachableError(f"The session ended at once: {closed}") from closed
        call = Call(socket, dialect, playout, self._settings)
        stack.push_async_callback(call.close)
        if first:
            call.apply(dialect.from_server(first))
        return call_id, call, await call.answer(offer.sdp)

    async def _connect(self, offer: CallOffer, dialect: Dialect) -> ClientConnection:
        query = f"?{urlencode({'model': offer.model})}" if offer.model else ""
        headers = {"Authorization": f"Bearer {offer.key}"} if offer.key else {}
        if offer.client:
            headers["X-Forwarded-For"] = offer.client  # rate limits apply to the client's address
        try:
            return await connect(
                f"{self._gateway.url}{dialect.path}{query}",
                ssl=self._gateway.tls,
                additional_headers=headers,
                compression=None,
                proxy=None,
                max_size=EVENT_MAX_BYTES,
                open_timeout=OPEN_TIMEOUT_S,
                close_timeout=CLOSE_TIMEOUT_S,
            )
        except InvalidStatus as refused:
            answer = refused.response
            raise RefusedError(answer.status_code, answer.body.decode("utf-8", "replace")) from None
        except (OSError, WebSocketException) as error:
            raise errors.WorkerUnreachableError(
                f"The gateway cannot be reached: {error}"
            ) from error

    async def _first(self, socket: ClientConnection) -> str:
        """Wait for the first event of a GPT-Live session.

        Raises:
            OmniError: The session does not start.
            RefusedError: Its settings are invalid.
        """
        try:
            async with asyncio.timeout(self._wait_s + OPEN_TIMEOUT_S):
                async for text in socket:
                    assert isinstance(text, str)
                    event = read(text)
                    if event.get("type") == "session.started":
                        return text
                    if event.get("type") == "error":
                        status = STATUSES.get(event["error"]["type"], HTTPStatus.BAD_REQUEST)
                        raise RefusedError(status, json.dumps({"error": event["error"]}))
        except TimeoutError:
            raise errors.QueueFullError() from None
        raise errors.WorkerUnreachableError("The session ended before it began.")

    async def _serve(self, call_id: str, call: Call) -> None:
        try:
            await call.run()
        except Exception:
            self._log.exception(
                "call failed", call_id=call_id, error_code=errors.ErrorCode.INTERNAL
            )
        finally:
            try:
                await call.close()
            finally:
                del self._calls[call_id]


def create_app(settings: Settings, gateway: GatewayAddress) -> FastAPI:
    """Build the HTTP API of the process, used by the gateway only."""
    calls = Calls(gateway, settings.webrtc, settings.openai.max_wait_s)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await calls.close()

    app = FastAPI(title="WebRTC", lifespan=lifespan, openapi_url=None)
    app.state.calls = calls
    app.add_exception_handler(errors.OmniError, _on_omni_error)
    app.add_exception_handler(RefusedError, _on_refused)
    app.add_exception_handler(ClientDisconnect, responses.on_client_gone)
    secret = settings.security.worker_secret
    app.add_middleware(SecretGate, secret=secret.get_secret_value() if secret else None)

    @app.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "healthy", "ready": True, "calls": len(calls)})

    @app.post(CALLS_PATH)
    async def begin(request: Request) -> Response:
        offer = parse_body(CallOffer, await request.body())
        answer = await unless_disconnected(request, calls.begin(offer))
        return JSONResponse(answer.model_dump())

    @app.delete(CALLS_PATH + "/{call_id}")
    async def hang_up(call_id: str) -> Response:
        await calls.hang_up(call_id)
        return Response()

    return app


async def _on_omni_error(request: Request, error: Exception) -> Response:
    # Passed on by the gateway unchanged.
    return responses.error_answer(error, responses.OPENAI_PREFIX)


async def _on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    may_retry = error.status in responses.RETRY_STATUSES
    headers = {"Retry-After": str(responses.RETRY_AFTER_S)} if may_retry else {}
    return Response(error.body, error.status, headers, media_type="application/json")
