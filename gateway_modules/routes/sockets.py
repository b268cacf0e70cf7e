"""The clients' WebSockets: admission, and starting or resuming a relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import structlog
from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from core import errors
from core.schemas import queue
from core.schemas.queue import SocketKind
from gateway_modules.administration import APP_OF_REQUEST
from gateway_modules.relay.link import Request
from gateway_modules.relay.relay import Relay
from gateway_modules.relay.telemetry import DiagnosticsLimit, RelayTelemetry
from gateway_modules.relay.traffic import ChatTraffic, LiveTraffic, Message, Traffic, TurnTraffic
from gateway_modules.service import Gateway, gateway_of
from gateway_modules.web.client_socket import ClientSocket
from gateway_modules.web.limits import SOCKET_BYTES
from gateway_modules.web.security import new_session_secret
from recording.names import generate_session_id

LOGGED_ID_CHARS: Final = 64  # longer ids are refused

router = APIRouter()


async def close_unaccepted(websocket: WebSocket, error: errors.OmniError) -> None:
    """Refuse a client; one that may retry is accepted first, to be sent the reason."""
    with suppress(WebSocketDisconnect, RuntimeError, OSError):  # it may be gone by now
        if isinstance(error, errors.RateLimitedError):
            await websocket.accept()
            await websocket.send_text(queue.ErrorMessage.of(error).to_json())
        await websocket.close(int(error.close_code), error.message)


async def serve(
    websocket: WebSocket,
    kind: SocketKind,
    session_id: str,
    *,
    subprotocol: str | None = None,
    query: Mapping[str, str] = MappingProxyType({}),
    deny: Callable[[WebSocket, errors.OmniError], Awaitable[None]] = close_unaccepted,
    traffic: Traffic | None = None,
    first: Message | None = None,
) -> None:
    """Serve a client with its own or the usual traffic of its kind.

    `query` is added to the worker's address; `deny` refuses the handshake with an error; `first` is
    an event sent to the worker before the client's.
    """
    gateway = gateway_of(websocket)
    client = gateway.access.limited_client(websocket)
    with structlog.contextvars.bound_contextvars(session_id=session_id[:LOGGED_ID_CHARS]):
        async with AsyncExitStack() as stack:
            try:
                gateway.check_open(APP_OF_REQUEST[kind.request_type(session_id)])
                params, last_seq = websocket.query_params, None
                if queue.RESUME_TOKEN in params:
                    last_seq = queue.read_seq(params.get(queue.LAST_SEQ, ""))
                earlier = None if last_seq is None else gateway.live.get(session_id)
                is_back = earlier is None and last_seq is not None
                if is_back and not gateway.relay_pool.directory.is_known:
                    raise errors.NoWorkerError()  # by the next attempt its worker may be known
                if earlier is None:  # else the session is already counted
                    stack.enter_context(gateway.sockets.lease(client)).add(1)
            except errors.OmniError as error:
                record_refusal(gateway, error)
                await deny(websocket, error)
                return
            await websocket.accept(subprotocol)
            lease = stack.enter_context(gateway.bytes_held.lease(client, SOCKET_BYTES))
            grace_s = _grace_s(gateway, kind, websocket)
            pace = gateway.timing.pace
            wire = ClientSocket(websocket, gateway.sizes_bytes(kind), pace, lease, grace_s)
            traffic = traffic or _traffic(gateway, kind)
            try:
                request = _request(gateway, kind, queue.check_session_id(session_id), websocket)
                if earlier is not None and last_seq is not None:
                    await _resume(earlier, request, websocket, last_seq)
                    return
                query = {**query, **({queue.RESUMABLE: "1"} if grace_s else {})}
                request = replace(request, query=query, last_seq=last_seq)
                mode = request.request_type.value
                telemetry = RelayTelemetry(gateway.metrics, mode, gateway.tracing)
                relay = Relay(wire, traffic, gateway.relay_pool, request, telemetry, first)
                await stack.enter_async_context(gateway.live.entered(relay))
                stack.callback(gateway.cleanup.request)
            except errors.OmniError as error:
                record_refusal(gateway, error)
                text = traffic.encoded(queue.ErrorMessage.of(error)) or ""
                await wire.refuse(text, error.close_code, error.code)
                return
            await relay.run()


async def _resume(earlier: Relay, request: Request, websocket: WebSocket, last_seq: int) -> None:
    is_owner = request.kind is earlier.request.kind and request.owner == earlier.request.owner
    if not (is_owner and earlier.may_resume):
        raise errors.SessionExpiredError()
    await earlier.resume(websocket, last_seq)


def _grace_s(gateway: Gateway, kind: SocketKind, websocket: WebSocket) -> float:
    asks = {queue.RESUMABLE, queue.RESUME_TOKEN} & websocket.query_params.keys()
    return gateway.settings.limits.resume_grace_s if asks and not kind.has_turns else 0.0


def _request(gateway: Gateway, kind: SocketKind, session_id: str, websocket: WebSocket) -> Request:
    timing = gateway.timing
    shown = websocket.query_params.get(queue.RESUME_TOKEN)
    ticket = websocket.query_params.get(queue.RETURN_TICKET, "")
    if shown is not None and queue.SECRET_PATTERN.fullmatch(shown) is None:
        raise errors.SessionExpiredError()
    return Request(
        kind=kind,
        request_type=kind.request_type(session_id),
        session_id=session_id,
        client=gateway.access.limited_client(websocket),
        address=gateway.access.client_address(websocket),
        session_secret=shown or new_session_secret(),
        order=gateway.relay_pool.tickets.read(ticket, session_id, kind),
        limits=timing.queueing,
        tries=timing.connect_tries,
        patience_s=timing.patience_s,
        max_wait_s=gateway.settings.openai.max_wait_s if kind.has_events else None,
    )


def _traffic(gateway: Gateway, kind: SocketKind) -> Traffic:
    if kind is SocketKind.STREAMING:
        return TurnTraffic(gateway.voices)
    if kind is SocketKind.CHAT:
        return ChatTraffic(gateway.voices)
    return LiveTraffic(kind, gateway.voices, DiagnosticsLimit(gateway.settings.limits))


def record_refusal(gateway: Gateway, error: errors.OmniError) -> None:
    gateway.metrics.error(error.code)
    gateway.refusals.warn("client refused", error_code=error.code.value)


@router.websocket(SocketKind.CHAT.path)
async def chat(websocket: WebSocket) -> None:
    await serve(websocket, SocketKind.CHAT, generate_session_id("chat"))


def _endpoint(kind: SocketKind) -> Callable[[WebSocket, str], Awaitable[None]]:
    async def endpoint(websocket: WebSocket, session_id: str) -> None:
        await serve(websocket, kind, session_id)

    return endpoint


for _kind in (SocketKind.STREAMING, SocketKind.HALF_DUPLEX, SocketKind.DUPLEX):
    router.add_api_websocket_route(f"{_kind.path}/{{session_id}}", _endpoint(_kind))
