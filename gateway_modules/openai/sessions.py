"""OpenAI's sessions: WebSockets, WebRTC offers, and client secrets.

Events are handled by the protocol machine of the worker; queue and relay are those of all sockets.
The WebRTC process opens such a socket for each call with the client's own key, so that calls have
the same queue, limits and recordings.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Final, Literal
from urllib.parse import quote

import httpx
from fastapi import APIRouter, Request, WebSocket
from pydantic import Field
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, Response

from config import install_command
from core import errors
from core.protocols.realtime_session import OutputConfig, SessionConfig
from core.schemas.common import Id, WireModel, check_json_shape
from core.schemas.limits import EVENT_LIMIT_BYTES, MIB
from core.schemas.openai_errors import LAST_CODES, error_event, parse_body, socket_code
from core.schemas.queue import RESUME_TOKEN, ErrorMessage, SocketKind, WarningMessage
from core.schemas.realtime_session import SessionPatch
from core.schemas.webrtc import CALLS_PATH, CallAnswer, CallOffer
from core.schemas.worker import WORKER_SECRET_HEADER
from gateway_modules.openai import routes
from gateway_modules.openai.answer import ID_BYTES
from gateway_modules.openai.chat_request import Json, missing
from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.relay.traffic import Message, SendUp, Traffic, Verdict
from gateway_modules.routes.sockets import record_refusal, serve
from gateway_modules.service import ApiRouter, Gateway, GatewayHere, gateway_of
from gateway_modules.voices import VoiceLibrary
from gateway_modules.web import messages
from gateway_modules.web.responses import OPENAI_PREFIX, RETRY_AFTER_S, error_answer
from recording.names import generate_session_id

SUBPROTOCOL: Final = "realtime"
BETA_SUBPROTOCOL: Final = "openai-beta.realtime-v1"
BETA_HEADER: Final = "realtime=v1"
VENDOR_EVENTS: Final = "minicpmo_events"
SESSION_ID: Final = "session_id"
UNSUPPORTED: Final = ("call_id", "intent")  # query parameters of unsupported uses of the path

CODE: Final = re.compile(r'"code"\s*:\s*"(\w{1,64})"')
APPENDS: Final = frozenset({"input_audio_buffer.append", "session.input_audio.append"})
STARTS: Final = frozenset({"session.created", "session.started"})
VOICE: Final = '"voice"'
AUDIO, EVENT = "audio", "event"  # kinds of events

SDP: Final = "application/sdp"
INSTALL: Final = f"{install_command('webrtc')} and set webrtc.enabled"
OFF: Final = f"WebRTC is not served here: {INSTALL}, or use a WebSocket."
TIMEOUT_S: Final = 30.0  # of a response, besides the wait in the queue
PARTS_MAX: Final = 4
PASSED_HEADERS: Final = ("content-type", "retry-after")  # of the WebRTC process's answers

sockets = APIRouter(prefix="/v1")
calls = ApiRouter(prefix="/v1", tags=["openai"], dependencies=[routes.NeedsKey])


SECONDS_MIN, SECONDS_MAX, SECONDS_USUAL = 10, 7_200, 600  # Source: the API reference


class ExpiresAfter(WireModel):
    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(SECONDS_USUAL, ge=SECONDS_MIN, le=SECONDS_MAX)


class SecretSession(SessionPatch):
    model: Id | None = None  # of sessions whose address names none


class ClientSecretRequest(WireModel):
    """Body of the request; both fields are optional."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: SecretSession = SecretSession()


@sockets.websocket("/realtime")
async def realtime(websocket: WebSocket) -> None:
    """Serve OpenAI's Realtime protocol: items and responses, by turns or full duplex."""
    is_beta = websocket.headers.get("openai-beta", "").strip() == BETA_HEADER
    is_beta |= BETA_SUBPROTOCOL in websocket.scope.get("subprotocols", ())
    await _accept(websocket, SocketKind.REALTIME, {"beta": "1"} if is_beta else {})


@sockets.websocket("/live/sessions")
async def live(websocket: WebSocket) -> None:
    """Serve GPT-Live: one continuous stream each way over the duplex engine."""
    await _accept(websocket, SocketKind.LIVE, {})


async def _accept(websocket: WebSocket, kind: SocketKind, query: dict[str, str]) -> None:
    gateway = gateway_of(websocket)
    try:
        session = routes.check_key(websocket)
        for name in UNSUPPORTED:
            if name in websocket.query_params:
                raise errors.BadRequestError(f"{name}: this use of the path is not supported.")
        named = websocket.query_params.get("model") or (session or {}).get("model")
        requested = named or routes.served_model(gateway)
        routes.check_model(gateway, requested)
        if RESUME_TOKEN not in websocket.query_params:
            gateway.relay_pool.check_intake(gateway.access.limited_client(websocket))
            if gateway.relay_pool.longest_wait_s > gateway.settings.openai.max_wait_s:
                raise errors.RateLimitedError("The server is busy. Please try again later.")
    except errors.OmniError as error:
        record_refusal(gateway, error)
        await deny(websocket, error)
        return
    sends_queue = websocket.query_params.get(VENDOR_EVENTS) == "1"
    update = json.dumps({"type": "session.update", "session": session}) if session else None
    offers = SUBPROTOCOL in websocket.scope.get("subprotocols", ())
    is_returning = RESUME_TOKEN in websocket.query_params
    session_id = websocket.query_params.get(SESSION_ID, "") if is_returning else ""
    await serve(
        websocket,
        kind,
        session_id or generate_session_id(kind.value),
        subprotocol=SUBPROTOCOL if offers else None,
        query={**query, "model": routes.served_model(gateway, requested)},
        deny=deny,
        traffic=EventTraffic(gateway.voices, sends_queue),
        first=Message(EVENT, update) if update and kind is SocketKind.REALTIME else None,
    )


async def deny(websocket: WebSocket, error: errors.OmniError) -> None:
    answer = error_answer(error, OPENAI_PREFIX)
    if error.close_code is errors.CloseCode.TRY_LATER:
        answer.status_code = HTTPStatus.TOO_MANY_REQUESTS
        answer.headers["Retry-After"] = str(RETRY_AFTER_S)
    await websocket.send_denial_response(answer)


@dataclass(frozen=True)
class HoldLimits:
    """Limits of the events that arrive before there is a worker. Ours."""

    max_events: int = 64  # one more ends the connection; the oldest audio is dropped first
    max_audio_chars: int = MIB  # Base64; beyond it the oldest audio is dropped
    # Length of all events: that of the longest event; more ends the connection.
    max_chars: int = EVENT_LIMIT_BYTES


@dataclass(eq=False)
class EventTraffic(Traffic):
    voices: VoiceLibrary
    sends_queue: bool
    limits: HoldLimits = HoldLimits()

    def parse(self, text: str) -> Message:
        return Message(AUDIO if messages.peek_type(text) in APPENDS else EVENT, text)

    def hold(self, message: Message, held: list[Message]) -> None:
        """Hold all events in order, within the limits."""
        held.append(message)
        audio = [each for each in held if each.kind == AUDIO]
        limits = self.limits
        while audio and (_chars(audio) > limits.max_audio_chars or len(held) > limits.max_events):
            held.remove(audio.pop(0))
        if len(held) > limits.max_events or _chars(held) > limits.max_chars:
            raise errors.QueueFullError("Too many events came before the session began.")

    def is_warning(self, error: errors.OmniError) -> bool:
        """Whether an event is only invalid, and not too big."""
        is_invalid = isinstance(error, errors.BadPayloadError)
        return is_invalid and not isinstance(error, errors.TooBigError)

    async def upward(self, text: str) -> str | None:
        """Forward everything, with the audio of named voices added."""
        return await self.voices.run(with_voice, text, self.voices) if VOICE in text else text

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        kind = messages.peek_type(text)
        if kind in STARTS:
            ticket.has_started = True
        code = CODE.search(text) if kind == "error" else None
        is_last = kind == "session.closed" or (code is not None and code[1] in LAST_CODES)
        return Verdict.LAST if is_last else Verdict.PASS

    def encoded(self, message: WireModel) -> str | None:
        """Return errors in OpenAI's format; send queue messages only on request."""
        if isinstance(message, ErrorMessage | WarningMessage):
            return error_event(socket_code(message.code), message.message)
        return message.to_json() if self.sends_queue else None


def _chars(held: list[Message]) -> int:
    return sum(len(message.text) for message in held)


def with_voice(text: str, voices: VoiceLibrary) -> str:
    try:
        check_json_shape(text)
        event = messages.parse_object(text)
    except errors.OmniError:
        return text  # the worker reports the error
    for kind in ("session", "response"):
        settings = event.get(kind)
        if not isinstance(settings, dict):
            continue
        audio = settings.get("audio", {})
        output = audio.get("output", {}) if isinstance(audio, dict) else None
        if not isinstance(output, dict):
            continue
        voice = output.get("voice", settings.get("voice"))  # the beta's spelling is flat
        name = voice.get("id") if isinstance(voice, dict) else voice
        sample = voices.audio_of(name) if isinstance(name, str) else None
        if sample is not None:
            output |= {"voice": voice, "voice_sample": sample}
            settings["audio"] = audio | {"output": output}
            return messages.with_strings_of(text, json.dumps(event))
    return text


class Transport(WireModel):
    type: Literal["webrtc"]
    sdp: str


class LiveCall(WireModel):
    """Body of `POST /v1/live/sessions`."""

    transport: Transport
    session: Json = Field(default_factory=dict)


@calls.post("/realtime/calls")
async def create_call(request: Request, gateway: GatewayHere) -> Response:
    """Answer an offer: plain SDP, or multipart/form-data with session settings."""
    _check_enabled(gateway)
    sdp, session = await _offer(request)
    of_secret = routes.check_key(request) or {}
    named = [each.get("model") for each in (request.query_params, session, of_secret)]
    requested = next(filter(None, named), None)
    answered = await _begin(request, gateway, "realtime", sdp, session, requested)
    if isinstance(answered, Response):
        return answered
    headers = {"Location": f"/v1/realtime/calls/{answered.call_id}"}
    return Response(answered.sdp, int(HTTPStatus.CREATED), headers, media_type=SDP)


@calls.post("/live/sessions")
async def create_live_session(request: Request, gateway: GatewayHere) -> Response:
    """Start a GPT-Live session over WebRTC."""
    _check_enabled(gateway)
    body = parse_body(LiveCall, await request.body())
    requested = body.session.get("model")
    answered = await _begin(request, gateway, "live", body.transport.sdp, body.session, requested)
    if isinstance(answered, Response):
        return answered
    transport = {"type": "webrtc", "sdp": answered.sdp}
    return JSONResponse({"session": {"id": answered.call_id}, "transport": transport})


@calls.post("/realtime/calls/{call_id}/hangup", name="hang_up_call")
@calls.delete("/realtime/calls/{call_id}", name="delete_call")
@calls.post("/live/sessions/{call_id}/hangup", name="hang_up_live_session")
async def hang_up(call_id: str, gateway: GatewayHere) -> Response:
    """End a call; only its owner knows its id."""
    _check_enabled(gateway)
    return _passed_on(await _ask(gateway, "DELETE", f"{CALLS_PATH}/{quote(call_id, safe='')}"))


def _passed_on(answer: httpx.Response) -> Response:
    headers = {name: answer.headers[name] for name in PASSED_HEADERS if name in answer.headers}
    return Response(answer.content, answer.status_code, headers)


def _check_enabled(gateway: Gateway) -> None:
    if not gateway.settings.webrtc.enabled:
        raise errors.NotAvailableError(OFF)


async def _offer(request: Request) -> tuple[str, Json]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == SDP:
        sdp, session = (await request.body()).decode("utf-8", "replace"), "{}"
    elif kind == "multipart/form-data":
        async with request.form(max_files=PARTS_MAX, max_fields=PARTS_MAX) as form:
            sdp, session = await _part(form.get("sdp", "")), await _part(form.get("session", "{}"))
    else:
        raise errors.BadRequestError(f"content-type: send {SDP} or multipart/form-data.")
    if not sdp:
        raise missing("sdp", "missing.")
    check_json_shape(session)
    try:
        read = from_json(session)  # refuses what could not be sent on, as `json` does not
    except ValueError:
        raise errors.BadRequestError("session: not valid JSON.") from None
    if not isinstance(read, dict):
        raise errors.BadRequestError("session: not an object.")
    return sdp, read


async def _part(part: UploadFile | str) -> str:
    return part if isinstance(part, str) else (await part.read()).decode(errors="replace")


async def _begin(
    request: Request,
    gateway: Gateway,
    protocol: Literal["realtime", "live"],
    sdp: str,
    session: Json,
    requested: object,
) -> CallAnswer | Response:
    model = requested if isinstance(requested, str) and requested else routes.served_model(gateway)
    routes.check_model(gateway, model)
    offer = CallOffer(
        protocol=protocol,
        sdp=sdp,
        session=session,
        model=model,
        key=routes.shown_key(request),
        client=gateway.access.client_address(request),
    )
    answer = await messages.unless_disconnected(request, _ask(gateway, "POST", CALLS_PATH, offer))
    if answer.status_code != HTTPStatus.OK:
        return _passed_on(answer)
    return CallAnswer.model_validate_json(answer.content)


async def _ask(
    gateway: Gateway, method: str, path: str, offer: CallOffer | None = None
) -> httpx.Response:
    webrtc, secret = gateway.settings.webrtc, gateway.settings.security.worker_secret
    headers = {WORKER_SECRET_HEADER: secret.get_secret_value()} if secret else {}
    limit_s = TIMEOUT_S + gateway.settings.openai.max_wait_s
    async with httpx.AsyncClient(
        base_url=webrtc.url, trust_env=False, verify=False, timeout=limit_s
    ) as client:
        try:
            content = offer.to_json() if offer else None
            return await client.request(method, path, headers=headers, content=content)
        except httpx.HTTPError as error:
            raise errors.WorkerUnreachableError("The WebRTC process does not answer.") from error


@calls.post("/realtime/client_secrets", dependencies=[routes.NeedsApiKey])
async def create_client_secret(request: Request, gateway: GatewayHere) -> Response:
    """Create an expiring key for Realtime sessions with given settings."""
    params = parse_body(ClientSecretRequest, await request.body() or b"{}")
    secret, session = _prepared(request, gateway, params.session, params.expires_after.seconds)
    return JSONResponse({**secret, "session": session})


@calls.post("/realtime/sessions", dependencies=[routes.NeedsApiKey])
async def create_beta_session(request: Request, gateway: GatewayHere) -> Response:
    """Create such a key in the format of the protocol's beta."""
    given = parse_body(SecretSession, await request.body() or b"{}")
    secret, session = _prepared(request, gateway, given, SECONDS_USUAL)
    return JSONResponse({**session, "client_secret": secret})


def _prepared(
    request: Request, gateway: Gateway, settings: SecretSession, seconds: int
) -> tuple[Json, Json]:
    """Return a new client secret and its session, both as they are sent."""
    model = routes.served_model(gateway, settings.model or "")
    routes.check_model(gateway, settings.model or model)
    client, session_id = gateway.access.limited_client(request), secrets.token_hex(ID_BYTES)
    made = gateway.client_secrets.make(settings, seconds, client)
    config = SessionConfig(OutputConfig("")).patched(settings)
    session = config.wire(f"sess_{session_id}", model, made.expires_at)
    if settings.instructions is None:
        del session["instructions"]  # the worker's default applies
    return asdict(made), session
