"""Chat requests over HTTP, and stopping the replies of sockets.

A request waits in the queue, and is retried on another worker if the first cannot be reached.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from fastapi import Request
from pydantic import Field, TypeAdapter, ValidationError
from starlette.responses import JSONResponse, Response
from websockets.exceptions import ConnectionClosed

from core import errors
from core.metrics import GatewayMetrics
from core.protocols.events import MS_PER_S
from core.schemas import chat as wire
from core.schemas import limits, queue
from core.schemas.common import WireModel, parse_message
from core.schemas.queue import RequestType, SocketKind
from gateway_modules.administration import TURN_BASED
from gateway_modules.queue.worker_client import WORKER_BUSY, WorkerSocket
from gateway_modules.queue.worker_connection import UPDATE_PERIOD_S, Ticket
from gateway_modules.relay.link import NoWorkerTimeout, in_parts
from gateway_modules.relay.live_sessions import DoorSession
from gateway_modules.relay.relay import STOP, Relay
from gateway_modules.relay.telemetry import outcome_of
from gateway_modules.relay.traffic import parse_apart
from gateway_modules.service import ApiRouter, Gateway, GatewayHere, only_admins
from gateway_modules.voices import VoiceLibrary, with_confined_tts
from gateway_modules.web.messages import text_of, unless_disconnected
from gateway_modules.web.responses import ERROR_OF_CODE, problems
from gateway_modules.web.security import ADMIN_MARK, new_session_secret
from recording.names import generate_session_id

CHAT_REQUEST: Final[TypeAdapter[wire.ChatRequest]] = TypeAdapter(wire.ChatRequest)
CHAT: Final = RequestType.CHAT
MESSAGE: Final[TypeAdapter[wire.ServerMessage]] = TypeAdapter(wire.ServerMessage)
ReplyMessage = wire.ChatPrefillDone | wire.ChatChunk | wire.ChatDone
Reply = TypeVar("Reply")

router = ApiRouter(tags=["inference"])
stops = ApiRouter(tags=["inference"])


class StopOne(WireModel):
    """Request to stop a session's reply."""

    session_id: str = Field(max_length=limits.ID_MAX_CHARS, description="Session id.")


class StopSome(WireModel):
    """Request to stop replies of streaming sessions."""

    session_id: str | None = Field(None, max_length=limits.ID_MAX_CHARS, description="Session id.")
    all: bool = Field(False, description="Stop all sessions; administrators only.")


class StopAnswer(WireModel):
    """Result of a stop."""

    success: bool = Field(description="Stopped.")
    session_id: str = Field(description="Session id.")
    message: str = Field("", description="Result as text for people.")


class StoppedReply(WireModel):
    """Result for one session."""

    session_id: str = Field(description="Session id.")
    worker_id: str | None = Field(None, description="Its worker.")
    success: bool = Field(description="Stopped.")
    message: str = Field("", description="Result as text for people.")


class StopSomeAnswer(WireModel):
    """Result of stopping streaming replies."""

    success: bool = Field(description="All requested replies were stopped.")
    stopped: list[StoppedReply] = Field(default_factory=list, description="One result per session.")
    message: str = Field("", description="Result as text for people.")


@router.post(
    "/api/chat",
    response_model=wire.GatewayChatResponse,
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
    """Answer one request, waiting for a worker if necessary; disconnecting cancels it."""
    gateway.check_open(TURN_BASED)
    text = await text_of(request)
    prepared = await parse_apart(partial(_prepared, gateway.voices), text, gateway.voices)
    client = gateway.access.limited_client(request)
    answer = await unless_disconnected(request, _answer(gateway, prepared, client))
    return JSONResponse(answer.model_dump(mode="json"))


def _prepared(voices: VoiceLibrary, text: str) -> str:
    return with_confined_tts(parse_message(CHAT_REQUEST, text), text, voices)


@dataclass(frozen=True)
class Assignment:
    """A request with its worker, its actual wait, and the wait estimated at first."""

    ticket: Ticket
    waited_s: float
    estimated_s: float


@contextmanager
def _wait_counted(metrics: GatewayMetrics) -> Iterator[None]:
    clock = asyncio.get_running_loop().time
    began_s, outcome = clock(), "gone"
    try:
        yield
        outcome = "assigned"
    except errors.OmniError as error:
        outcome = outcome_of(error)
        raise
    finally:
        metrics.waited(CHAT.value, clock() - began_s, outcome)


async def replies(
    gateway: Gateway, client: str, work: Callable[[Assignment], AsyncGenerator[Reply]]
) -> AsyncGenerator[Reply]:
    """Wait for a worker and yield from `work`.

    Until the first item, an unreachable or busy worker is replaced. Closing the generator, or
    cancelling the task that awaits it, leaves the queue or ends the work.
    """
    pool, clock = gateway.relay_pool, asyncio.get_running_loop().time
    began_s, patience_s = clock(), gateway.timing.patience_s
    timeout = NoWorkerTimeout(pool, patience_s)
    session_id, estimated_s = generate_session_id("chat"), 0.0
    order = 0  # of a ticket whose worker was lost

    async def check(_: Ticket) -> None:
        timeout.check()

    for moves in itertools.count():
        async with AsyncExitStack() as stack:
            ticket = Ticket(CHAT, session_id, client=client, order=order)
            with nullcontext() if moves else _wait_counted(gateway.metrics):
                stack.enter_context(pool.enqueue(ticket))
                estimated_s = estimated_s if moves else ticket.estimated_wait_s
                worker = await ticket.wait(check, min(UPDATE_PERIOD_S, patience_s))
            order = ticket.order  # at a door, its desk draws it
            assignment = Assignment(ticket, clock() - began_s, estimated_s)
            stream = await stack.enter_async_context(aclosing(work(assignment)))
            may_move = moves < gateway.timing.queueing.max_moves
            try:
                async for reply in stream:
                    may_move = False
                    yield reply
                break
            except (errors.WorkerUnreachableError, errors.NoWorkerError) as error:
                may_move = may_move and pool.directory.is_other_in_service(worker)
                if may_move or isinstance(error, errors.WorkerUnreachableError):
                    pool.directory.report_unreachable(worker)
                if not may_move:
                    raise
    gateway.cleanup.request()


def reply(
    gateway: Gateway,
    body: str,
    client: str,
    is_over: Callable[[], bool] = lambda: False,
    *,
    is_recorded: bool = True,
) -> AsyncGenerator[ReplyMessage]:
    """Return a worker's reply to a `ChatSocketRequest`, ending with `ChatDone`; see `replies`.

    `is_over` is called after each message; once it returns true, the worker is asked to stop.
    """
    query = {} if is_recorded else {queue.UNRECORDED: "1"}
    return replies(gateway, client, partial(_served, gateway, body, query, is_over))


async def _served(
    gateway: Gateway,
    body: str,
    query: Mapping[str, str],
    is_over: Callable[[], bool],
    assignment: Assignment,
) -> AsyncGenerator[ReplyMessage]:
    ticket = assignment.ticket
    async with gateway.relay_pool.client.connected(
        ticket.worker,
        SocketKind.CHAT.path,
        {**ticket.query, **query},
        session_secret=new_session_secret(),
        tries=gateway.timing.connect_tries,
    ) as socket:
        ticket.has_started = True
        try:
            await socket.send(in_parts(body))
            has_stopped = False
            while True:
                message = MESSAGE.validate_json(await socket.recv(decode=False))
                if isinstance(message, queue.ErrorMessage):
                    raise ERROR_OF_CODE[message.code](message.message)
                if isinstance(message, ReplyMessage):
                    yield message
                if isinstance(message, wire.ChatDone):
                    return
                if is_over() and not has_stopped:
                    has_stopped = True
                    await _ask_to_stop(socket)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == errors.CloseCode.TRY_LATER:
                raise errors.NoWorkerError(WORKER_BUSY) from closed
            raise errors.WorkerLostError() from closed
        except ValidationError as error:
            raise errors.WorkerLostError("The worker returned an invalid answer.") from error


async def _ask_to_stop(socket: WorkerSocket) -> None:
    with suppress(ConnectionClosed):  # the end of the reply may still be unread
        await socket.send(STOP)


async def _answer(gateway: Gateway, body: str, client: str) -> wire.GatewayChatResponse:
    secret = new_session_secret()

    async def work(assignment: Assignment) -> AsyncGenerator[wire.GatewayChatResponse]:
        ticket = assignment.ticket
        reply = await gateway.relay_pool.client.chat(ticket.worker, body, secret)
        ticket.has_started = True
        yield wire.GatewayChatResponse(
            **dict(reply),
            queue_wait_ms=round(assignment.waited_s * MS_PER_S),
            estimated_queue_wait_s=assignment.estimated_s,
            session_secret=secret,
        )

    async with aclosing(replies(gateway, client, work)) as answers:
        return [answer async for answer in answers][0]


@stops.post(
    "/api/streaming/stop", response_model=StopSomeAnswer, responses=problems(401, 403, 404, 422)
)
async def stop_streaming(
    request: Request, body: StopSome, gateway: GatewayHere
) -> StopSomeAnswer | Response:
    """Stop the reply of one's own session, or all replies; the sessions continue."""
    if not (body.all or body.session_id):
        return StopSomeAnswer(success=False, message="Give a session_id, or all.")
    if gateway.desk is not None and (body.all or gateway.live.get(body.session_id or "") is None):
        return await gateway.desk.answer(request)
    kind = SocketKind.STREAMING
    if body.all:
        only_admins(request)
        chosen = [one for one in gateway.sessions.all() if one.request.kind is kind]
    else:
        chosen = [_own(gateway, request, kind, body.session_id or "")]
    stopped = []
    for session in chosen:
        session_id, worker_id = session.request.session_id or "", session.worker_id
        result = dict(await session.request_stop())
        stopped.append(StoppedReply(session_id=session_id, worker_id=worker_id, **result))
    return StopSomeAnswer(success=all(one.success for one in stopped), stopped=stopped)


@stops.post(
    "/api/half_duplex/stop", response_model=StopAnswer, responses=problems(404, 422, 502, 504)
)
async def stop_half_duplex(
    request: Request, body: StopOne, gateway: GatewayHere
) -> StopAnswer | Response:
    """Stop the reply of one's own session; the session continues."""
    return await _stop(gateway, request, SocketKind.HALF_DUPLEX, body.session_id)


@stops.post("/api/duplex/stop", response_model=StopAnswer, responses=problems(404, 422, 502, 504))
async def stop_duplex(
    request: Request, body: StopOne, gateway: GatewayHere
) -> StopAnswer | Response:
    """End one's own full-duplex session."""
    return await _stop(gateway, request, SocketKind.DUPLEX, body.session_id)


async def _stop(
    gateway: Gateway, request: Request, kind: SocketKind, session_id: str
) -> StopAnswer | Response:
    if gateway.desk is not None and gateway.live.get(session_id) is None:
        return await gateway.desk.answer(request)  # another door may have it
    result = dict(await _own(gateway, request, kind, session_id).request_stop())
    return StopAnswer(session_id=session_id, **result)


def _own(
    gateway: Gateway, request: Request, kind: SocketKind, session_id: str
) -> Relay | DoorSession:
    """Return a session that the caller may stop.

    An owner presents the secret, or knows the id and has the address of the session's socket.
    NotFoundError also for others' sessions, so that ids cannot be probed.
    """
    shown = request.headers.get(queue.SESSION_SECRET_HEADER)
    address = gateway.access.client_address(request)
    of_kind = (one for one in gateway.sessions.all() if one.request.kind is kind)
    found = next((one for one in of_kind if one.request.session_id == session_id), None)
    if found is not None:
        if found.is_owned_by(shown, address):
            return found
        if gateway.access.is_admin(request):
            request.scope[ADMIN_MARK] = True
            return found
    raise errors.NotFoundError("You have no such session: send its secret if it is yours.")
