"""Chat completions, models, speech, voices and client secrets below /v1, and who may use them."""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
from dataclasses import asdict, dataclass
from typing import Final, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import Field, TypeAdapter, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response, StreamingResponse

from core.errors import BadRequestError, NoWorkerError, UnauthorizedError
from core.protocols.realtime_session import ENGINES, OutputConfig, SessionConfig
from core.schemas.common import WireModel, explain
from core.schemas.openai_errors import ModelNotFoundError, parse_body
from core.schemas.realtime_session import SessionPatch
from core.schemas.worker import ModelKind
from gateway_modules.openai.answer import Answer, Json
from gateway_modules.openai.chat_request import CompletionRequest
from gateway_modules.openai.speech import Speech, SpeechRequest, Streamed
from gateway_modules.openai.speech import worker_request as speech_request
from gateway_modules.openai.worker_request import Transcripts, WorkerRequest, worker_request
from gateway_modules.queue.directory import loaded_model
from gateway_modules.routes.chat import check_chat, reply
from gateway_modules.service import AdminOnly, Gateway, GatewayHere, gateway_of
from gateway_modules.voices import (
    NAME_MAX_CHARS,
    RefAudio,
    RefAudioRegistry,
    VoiceLibrary,
)
from gateway_modules.web.messages import text_of, unless_disconnected

BEARER = "bearer "
SUBPROTOCOL_KEY = "openai-insecure-api-key."


@dataclass(frozen=True)
class Grant:
    """`session` has the settings of a client secret's sessions; None with an API key."""

    session: Json | None = None


def check_key(connection: HTTPConnection) -> Grant:
    """Accept an API key or an unexpired client secret, and anything where no key is configured."""
    gateway, key = gateway_of(connection), shown_key(connection)
    session = gateway.client_secrets.find(key)
    if session is not None:
        return Grant(session)
    keys, shown = gateway.settings.security.api_keys, key.encode("utf-8", "surrogatepass")
    known = [hmac.compare_digest(shown, one.get_secret_value().encode()) for one in keys]
    if keys and not any(known):
        raise UnauthorizedError("Incorrect API key provided.")
    return Grant()


def check_api_key(connection: HTTPConnection) -> None:
    if check_key(connection).session is not None:
        raise UnauthorizedError("A client secret cannot make another; an API key is needed.")


def shown_key(connection: HTTPConnection) -> str:
    """A page cannot set headers of a WebSocket: it names its key among the subprotocols."""
    header = connection.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    offered = connection.scope.get("subprotocols", ())
    keys = [name[len(SUBPROTOCOL_KEY) :] for name in offered if name.startswith(SUBPROTOCOL_KEY)]
    return connection.headers.get("api-key", keys[0] if keys else "")


NeedsKey = Depends(check_key)
"""Marks a router whose routes take an API key or a client secret."""

NeedsApiKey = Depends(check_api_key)
"""Marks a route that takes an API key only."""


SECONDS_MIN, SECONDS_MAX, SECONDS_USUAL = 10, 7_200, 600  # Source: the API reference
SESSION_ID_BYTES: Final = 12


class ExpiresAfter(WireModel):
    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(SECONDS_USUAL, ge=SECONDS_MIN, le=SECONDS_MAX)


class ClientSecretRequest(WireModel):
    """The body of a request; both may be left out."""

    expires_after: ExpiresAfter = ExpiresAfter()
    session: SessionPatch = SessionPatch()


REQUEST: Final[TypeAdapter[CompletionRequest]] = TypeAdapter(CompletionRequest)
SPEECH: Final[TypeAdapter[SpeechRequest]] = TypeAdapter(SpeechRequest)
CLIENT_SECRET: Final[TypeAdapter[ClientSecretRequest]] = TypeAdapter(ClientSecretRequest)
SETTINGS: Final[TypeAdapter[SessionPatch]] = TypeAdapter(SessionPatch)
PUBLISHED: Final = "minicpm-o-4.5"
OWNER: Final = "openbmb"


router = APIRouter(tags=["openai"], dependencies=[NeedsKey])


@router.get("/models")
async def models(gateway: GatewayHere) -> Response:
    """List the model that is served, and under the names that choose an engine."""
    data = [_model(name) for name in served_models(gateway)]
    return JSONResponse({"object": "list", "data": data})


@router.get("/models/{model_id}")
async def model(model_id: str, gateway: GatewayHere) -> Response:
    """Describe the model that is served."""
    if model_id not in served_models(gateway):
        raise ModelNotFoundError(model_id)
    return JSONResponse(_model(model_id))


@router.post("/chat/completions")
async def create(request: Request, gateway: GatewayHere) -> Response:
    """Answer a conversation: whole, or in server-sent events; disconnecting ends it."""
    check_chat(gateway)
    text, voices, transcripts = await text_of(request), gateway.voices, gateway.transcripts
    params, sent = await voices.run(_parsed, text, voices, transcripts)
    check_model(gateway, params.model)
    answer = Answer(params, served_model(gateway), voices, transcripts, sent.audio_s)
    client = gateway.access.limited_client(request)
    messages = reply(gateway, sent.text, client, lambda: answer.is_over)
    if not params.stream:
        return JSONResponse(await unless_disconnected(request, answer.whole(messages)))
    # Until the first message an error is an HTTP status, which clients know how to retry.
    first = await unless_disconnected(request, anext(messages))
    return Streamed(answer.events(first, messages), messages)


@router.post("/audio/speech", response_class=StreamingResponse)
async def speech(request: Request, gateway: GatewayHere) -> Response:
    """Speak a text as it stands, piece by piece as it is made; disconnecting ends it."""
    if not gateway.is_open:
        raise NoWorkerError()
    params = parse_body(SPEECH, await text_of(request))
    check_model(gateway, params.model)
    params.check()
    worker_text = await gateway.voices.run(speech_request, params, gateway.voices)
    client = gateway.access.limited_client(request)
    messages = reply(gateway, worker_text, client, lambda: False)
    made = Speech(params, messages)
    await unless_disconnected(request, made.begin())
    return Streamed(made.body(), messages, params.media_type)


@router.get("/audio/voices")
async def voices(gateway: GatewayHere) -> Response:
    """List the uploaded voices."""
    return JSONResponse(await asyncio.to_thread(voice_list, gateway.voices.registry))


@router.post("/audio/voices", dependencies=[AdminOnly])
async def create_voice(request: Request, gateway: GatewayHere) -> Response:
    """Keep a voice: half a second to 30 s of audio in any file format."""
    name, audio_base64 = await uploaded_voice(request)
    voice = await gateway.voices.run(gateway.voices.registry.upload, name, audio_base64)
    return JSONResponse(voice_object(voice))


@router.post("/realtime/client_secrets", dependencies=[NeedsApiKey])
async def create_client_secret(request: Request, gateway: GatewayHere) -> Response:
    """Make a key that expires and opens Realtime sessions with settings of their own."""
    body = await request.body()
    params = parse_body(CLIENT_SECRET, body or b"{}")
    made = gateway.client_secrets.make(params.session, params.expires_after.seconds)
    session = session_object(params.session, served_model(gateway), made.expires_at)
    return JSONResponse({**asdict(made), "session": session})


@router.post("/realtime/sessions", dependencies=[NeedsApiKey])
async def create_beta_session(request: Request, gateway: GatewayHere) -> Response:
    """Make such a key as the protocol's beta had it: the settings stand alone."""
    given = parse_body(SETTINGS, await request.body() or b"{}")
    made = gateway.client_secrets.make(given, SECONDS_USUAL)
    session = session_object(given, served_model(gateway), made.expires_at)
    return JSONResponse({**session, "client_secret": asdict(made)})


def session_object(settings: SessionPatch, model: str, expires_at: int) -> Json:
    config = SessionConfig(OutputConfig("")).patched(settings)
    session = config.wire(f"sess_{secrets.token_hex(SESSION_ID_BYTES)}", model, expires_at)
    if settings.instructions is None:
        del session["instructions"]  # those of the worker
    return session


def served_models(gateway: Gateway) -> tuple[str, ...]:
    """Return the id of the model that the workers have loaded, then those that select an engine."""
    facts = loaded_model(gateway.relay_pool.directory.workers.values())
    name = PUBLISHED if facts is None or facts.kind is ModelKind.FULL else facts.kind.value
    return name, *(f"{name}-{engine}" for engine in ENGINES)


def served_model(gateway: Gateway, requested: str = "") -> str:
    names = served_models(gateway)
    return requested if requested in names else names[0]


def check_model(gateway: Gateway, name: str) -> None:
    """Raises ModelNotFoundError for other names, unless `openai.accept_any_model`."""
    if not gateway.settings.openai.accept_any_model and name not in served_models(gateway):
        raise ModelNotFoundError(name)


def _model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


def _parsed(
    text: str, voices: VoiceLibrary, transcripts: Transcripts
) -> tuple[CompletionRequest, WorkerRequest]:
    params = parse_body(REQUEST, text)
    params.check()
    try:
        return params, worker_request(params, text, voices, transcripts)
    except ValidationError as error:  # it fits here and, with what the server adds, not there
        raise explain(error) from error


FIELDS_MAX: Final = 16  # ours: parts of a form beside the file


async def uploaded_voice(request: Request) -> tuple[str, str]:
    async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
        if form.get("type", "audio_sample") != "audio_sample":
            raise BadRequestError("type: voices are made from an audio_sample only.")
        name, sample = form.get("name"), form.get("audio_sample")
        if not isinstance(name, str) or not 0 < len(name.strip()) <= NAME_MAX_CHARS:
            raise BadRequestError(f"name: a text of 1 to {NAME_MAX_CHARS} characters is needed.")
        if not isinstance(sample, UploadFile):
            raise BadRequestError("audio_sample: an audio file is needed.")
        return name, base64.b64encode(await sample.read()).decode("ascii")


def voice_object(voice: RefAudio) -> Json:
    return {
        "id": voice.id,
        "object": "audio.voice",
        "type": "audio_sample",
        "name": voice.name,
        "created_at": int(voice.created_at.timestamp()),
    }


def voice_list(registry: RefAudioRegistry) -> Json:
    found = [voice_object(voice) for voice in registry.list_all()]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
    return {"object": "list", "data": found, "has_more": False, **ends}
