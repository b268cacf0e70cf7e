"""One-shot chat over HTTP, and the stop buttons of the sockets, at whichever door these are."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter
from starlette.responses import JSONResponse, Response

from core.errors import (
    AppDisabledError,
    NotFoundError,
    NoWorkerError,
)
from core.schemas import limits
from core.schemas.chat import ChatRequest, GatewayChatResponse
from core.schemas.common import WireModel, parse_message
from core.schemas.queue import SESSION_SECRET_HEADER, RequestType
from gateway_modules.admin.kept_settings import TURN_BASED
from gateway_modules.admin.security import mark_admin
from gateway_modules.desk.server import DoorSession
from gateway_modules.queue.ticket import hash_of, new_session_secret
from gateway_modules.relay.relay import Relay
from gateway_modules.relay.turns import confined_tts
from gateway_modules.service import Gateway, GatewayHere, only_admins
from gateway_modules.single_request import Assignment, replies
from gateway_modules.voices.voice_library import VoiceLibrary
from gateway_modules.web.client_request import ClientDisconnectedError, text_of, unless_disconnected
from gateway_modules.web.kinds import SocketKind
from gateway_modules.web.long_text import with_strings_of
from gateway_modules.web.responses import CLIENT_LEFT, problems

CHAT_REQUEST: Final[TypeAdapter[ChatRequest]] = TypeAdapter(ChatRequest)
MS_PER_S: Final = 1_000

router = APIRouter(tags=["inference"])
stops = APIRouter(tags=["inference"])


class StopOne(WireModel):
    """Body of a stop button."""

    session_id: str = Field(max_length=limits.ID_MAX_CHARS, description="Whose reply to stop.")


class StopSome(WireModel):
    """Body of the stop button of streaming."""

    session_id: str | None = Field(
        None, max_length=limits.ID_MAX_CHARS, description="Whose reply to stop."
    )
    all: bool = Field(False, description="Stop everybody's; administrators only.")


class StopAnswer(WireModel):
    """What became of a stop."""

    success: bool = Field(description="It was stopped.")
    session_id: str = Field(description="Whose.")
    message: str = Field("", description="What happened, for a person to read.")


class StoppedReply(WireModel):
    """One reply that was, or was not, stopped."""

    session_id: str = Field(description="Whose.")
    worker_id: str | None = Field(None, description="Where.")
    success: bool = Field(description="It was stopped.")
    message: str = Field("", description="What happened, for a person to read.")


class StopSomeAnswer(WireModel):
    """What became of a stop of streaming."""

    success: bool = Field(description="Everything that was asked for was stopped.")
    stopped: list[StoppedReply] = Field(default_factory=list, description="One by one.")
    message: str = Field("", description="What happened, for a person to read.")


@router.post(
    "/api/chat",
    response_model=GatewayChatResponse,
    responses=problems(403, 413, 422, 429, 502, 503, 504),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/ChatRequest"}}
            },
        }
    },
)
async def chat(request: Request, gateway: GatewayHere) -> Response:
    """Answer one request, waiting for a worker if need be; disconnecting cancels it."""
    if not gateway.apps.is_enabled(TURN_BASED):
        raise AppDisabledError(f"{gateway.apps.name_of(TURN_BASED)} is currently disabled.")
    if not gateway.is_open:
        raise NoWorkerError()
    text = await text_of(request)
    prepared = await gateway.voices.run(_prepared, text, gateway.voices)
    client = gateway.access.limited_client(request)
    try:
        answer = await unless_disconnected(request, _answer(gateway, prepared, client))
    except ClientDisconnectedError:
        return Response(status_code=CLIENT_LEFT)
    return JSONResponse(answer.model_dump(mode="json"))


def _prepared(text: str, voices: VoiceLibrary) -> str:
    request = parse_message(CHAT_REQUEST, text)
    if not request.tts.server_paths:
        return text
    changed = request.model_copy(update={"tts": confined_tts(request.tts, voices)})
    return with_strings_of(text, changed.model_dump_json(exclude_unset=True))


async def _answer(gateway: Gateway, body: str, client: str) -> GatewayChatResponse:
    secret = new_session_secret()

    async def work(assignment: Assignment) -> AsyncGenerator[GatewayChatResponse]:
        ticket = assignment.ticket
        reply = await gateway.relay_pool.client.chat(ticket.worker, body, secret)
        ticket.note_started()
        yield GatewayChatResponse(
            **dict(reply),
            queue_wait_ms=round(assignment.waited_s * MS_PER_S),
            estimated_queue_wait_s=assignment.estimated_s,
            session_secret=secret,
        )

    async with aclosing(replies(gateway, client, work)) as answers:
        return [answer async for answer in answers][0]


@stops.post(
    "/api/streaming/stop",
    response_model=StopSomeAnswer,
    responses=problems(401, 403, 404, 422),
)
async def stop_streaming(
    request: Request, body: StopSome, gateway: GatewayHere
) -> StopSomeAnswer | Response:
    """Stop the reply of one session of one's own, or of all; the sessions continue."""
    if not (body.all or body.session_id):
        return StopSomeAnswer(success=False, message="Say which session_id, or all.")
    if gateway.desk is not None and (body.all or gateway.live.get(body.session_id or "") is None):
        return await gateway.desk.answer(request)
    kind = SocketKind.STREAMING
    if body.all:
        only_admins(request)
        relays = [relay for relay in gateway.live.relays() if relay.request.kind is kind]
        at_doors = gateway.doors.of_type(RequestType.STREAMING) if gateway.doors else []
        chosen: list[Relay | DoorSession] = [*relays, *at_doors]
    else:
        chosen = [_own(gateway, request, kind, body.session_id or "")]
    stopped = []
    for session in chosen:
        session_id, worker_id = session.session_id, session.worker_id
        result = await session.request_stop()
        stopped.append(
            StoppedReply(
                session_id=session_id,
                worker_id=worker_id,
                success=result.success,
                message=result.message,
            )
        )
    return StopSomeAnswer(success=all(one.success for one in stopped), stopped=stopped)


@stops.post(
    "/api/half_duplex/stop",
    response_model=StopAnswer,
    responses=problems(404, 422, 502, 504),
)
async def stop_half_duplex(
    request: Request, body: StopOne, gateway: GatewayHere
) -> StopAnswer | Response:
    """Stop the reply of one session of one's own; the session continues."""
    return await _stop(gateway, request, SocketKind.HALF_DUPLEX, body.session_id)


@stops.post("/api/duplex/stop", response_model=StopAnswer, responses=problems(404, 422))
async def stop_duplex(
    request: Request, body: StopOne, gateway: GatewayHere
) -> StopAnswer | Response:
    """End one full-duplex session of one's own."""
    return await _stop(gateway, request, SocketKind.DUPLEX, body.session_id)


async def _stop(
    gateway: Gateway, request: Request, kind: SocketKind, session_id: str
) -> StopAnswer | Response:
    if gateway.desk is not None and gateway.live.get(session_id) is None:
        return await gateway.desk.answer(request)  # another door may have it
    result = await _own(gateway, request, kind, session_id).request_stop()
    return StopAnswer(success=result.success, session_id=session_id, message=result.message)


def _own(
    gateway: Gateway, request: Request, kind: SocketKind, session_id: str
) -> Relay | DoorSession:
    """Return a session that the caller may stop.

    Its owner has its secret, or knows its id and calls from the address of its socket, as clients
    without secrets do; a desk knows no addresses. NotFoundError also for others' sessions, so that
    ids cannot be probed.
    """
    shown = request.headers.get(SESSION_SECRET_HEADER)
    found: Relay | DoorSession | None = None
    is_own = False
    if gateway.doors is not None:
        session = gateway.doors.find(session_id, kind.request_type(session_id))
        if session is not None:
            found, is_own = session, session.ticket.owner == hash_of(shown or "")
    else:
        relay = gateway.live.get(session_id)
        if relay is not None and relay.request.kind is kind:
            address = gateway.access.client_address(request)
            found, is_own = relay, relay.request.is_owned_by(shown, address)
    if found is not None and not is_own and gateway.access.is_admin(request):
        mark_admin(request.scope)
        is_own = True
    if found is None or not is_own:
        raise NotFoundError("You have no such session: send its secret if it is yours.")
    return found


router.include_router(stops)
