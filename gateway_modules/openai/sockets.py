"""OpenAI's sockets: who may come in, and what the worker learns of the address.

What passes on them is a machine's business at the worker; waiting and relaying are those of every
other socket.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, WebSocket
from starlette.responses import JSONResponse

from core.errors import BadRequestError, CloseCode, OmniError, RateLimitedError
from core.schemas.queue import RESUME_TOKEN
from gateway_modules.openai.routes import Grant, check_key, check_model, served_model
from gateway_modules.routes.sockets import Entrance, serve
from gateway_modules.service import Gateway, gateway_of
from gateway_modules.web.kinds import SocketKind
from gateway_modules.web.responses import OPENAI_PREFIX, RETRY_AFTER_S, error_answer, openai_error
from recording.names import generate_session_id

SUBPROTOCOL: Final = "realtime"
BETA_SUBPROTOCOL: Final = "openai-beta.realtime-v1"
BETA_HEADER: Final = "realtime=v1"
VENDOR_EVENTS: Final = "minicpmo_events"
SESSION_ID: Final = "session_id"
UNSUPPORTED: Final = ("call_id", "intent")  # queries of other uses of the path

router = APIRouter()


@router.websocket("/v1/realtime")
@router.websocket("/realtime")
async def realtime(websocket: WebSocket) -> None:
    """Speak OpenAI's Realtime protocol: items and responses, by turns or full duplex."""
    query = {"beta": "1"} if _is_beta(websocket) else {}
    await _accept(websocket, SocketKind.REALTIME, query)


@router.websocket("/v1/live/sessions")
@router.websocket("/live/sessions")
async def live(websocket: WebSocket) -> None:
    """Speak GPT-Live: one continuous stream each way over the duplex engine."""
    await _accept(websocket, SocketKind.LIVE, {})


async def _accept(websocket: WebSocket, kind: SocketKind, query: dict[str, str]) -> None:
    gateway = gateway_of(websocket)
    try:
        grant = check_key(websocket)
        _check_use(websocket)
        asked = websocket.query_params.get("model", served_model(gateway))
        check_model(gateway, asked)
        if RESUME_TOKEN not in websocket.query_params:
            _check_wait(gateway, websocket)
    except OmniError as error:
        await deny(websocket, error)
        return
    offers = SUBPROTOCOL in websocket.scope.get("subprotocols", ())
    entrance = Entrance(
        subprotocol=SUBPROTOCOL if offers else None,
        query={**query, "model": served_model(gateway, asked)},
        deny=deny,
        sends_queue=websocket.query_params.get(VENDOR_EVENTS) == "1",
        first=_settings(grant) if kind is SocketKind.REALTIME else None,
    )
    is_returning = RESUME_TOKEN in websocket.query_params
    session_id = websocket.query_params.get(SESSION_ID, "") if is_returning else ""
    await serve(websocket, kind, session_id or generate_session_id(kind.value), entrance)


def _settings(grant: Grant) -> str | None:
    """Return the event with the settings of the client secret."""
    if not grant.session:
        return None
    return json.dumps({"type": "session.update", "session": grant.session})


async def deny(websocket: WebSocket, error: OmniError) -> None:
    """Refuse the handshake; a full server says when to retry."""
    if error.close_code is CloseCode.TRY_LATER:
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        body = openai_error(error)
        answer = JSONResponse(body, HTTPStatus.TOO_MANY_REQUESTS, headers)
        await websocket.send_denial_response(answer)
    else:
        await websocket.send_denial_response(error_answer(error, OPENAI_PREFIX))


def _is_beta(websocket: WebSocket) -> bool:
    return websocket.headers.get(
        "openai-beta", ""
    ).strip() == BETA_HEADER or BETA_SUBPROTOCOL in websocket.scope.get("subprotocols", ())


def _check_use(websocket: WebSocket) -> None:
    for name in UNSUPPORTED:
        if name in websocket.query_params:
            raise BadRequestError(f"{name}: this use of the address is not served.")


def _check_wait(gateway: Gateway, websocket: WebSocket) -> None:
    """Refuse clients whose expected wait is too long."""
    pool = gateway.relay_pool
    pool.check_intake(gateway.access.limited_client(websocket))
    if pool.longest_wait_s > gateway.settings.openai.max_wait_s:
        raise RateLimitedError("The server is busy. Please try again later.")
