"""OpenAI's REST interface: keys, models, chat, speech, voices and transcriptions.

Whisper transcribes on a worker's CPU concurrently with its sessions; such requests bypass the
queue, and the transcriber's own queue is bounded. If the model itself transcribes, requests queue.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Final, Literal, TypeVar

from fastapi import Depends, Request
from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from core import errors
from core.protocols.events import MS_PER_S
from core.protocols.realtime_session import ENGINES
from core.schemas import limits
from core.schemas.common import WireModel, explain
from core.schemas.openai_errors import ModelNotFoundError, parse_body
from core.schemas.worker import ModelKind, TranscriptPassage
from gateway_modules.administration import TURN_BASED
from gateway_modules.openai.answer import Answer
from gateway_modules.openai.chat_request import CompletionRequest, Json, missing
from gateway_modules.openai.speech import Speech, SpeechRequest, server_event, streamed
from gateway_modules.openai.speech import worker_request as speech_request
from gateway_modules.openai.worker_request import audio_in, worker_request
from gateway_modules.queue.directory import loaded_model
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.routes.chat import Assignment, replies, reply
from gateway_modules.service import AdminOnly, ApiRouter, Gateway, GatewayHere, gateway_of
from gateway_modules.voices import NAME_MAX_CHARS, Audio, RefAudio
from gateway_modules.web.limits import Lease
from gateway_modules.web.messages import text_of, unless_disconnected
from gateway_modules.web.responses import openai_error
from gateway_modules.web.security import hash_of, is_same_secret
from recording.replay_plan import Cue, subrip, webvtt

BEARER = "bearer "
Decoded = TypeVar("Decoded")
SUBPROTOCOL_KEY = "openai-insecure-api-key."


def check_key(connection: HTTPConnection) -> Json | None:
    """Accept an API key or a valid client secret; anything if no key is configured.

    Return the settings of a client secret's sessions.
    """
    gateway, key = gateway_of(connection), shown_key(connection)
    session = gateway.client_secrets.find(key)
    if session is not None:
        return session
    keys = gateway.settings.security.api_keys
    known = [is_same_secret(key, one.get_secret_value()) for one in keys]
    if keys and not any(known):
        raise errors.UnauthorizedError("Incorrect API key provided.")
    return None


def check_api_key(connection: HTTPConnection) -> None:
    if check_key(connection) is not None:
        raise errors.UnauthorizedError("A client secret cannot make another; an API key is needed.")


def shown_key(connection: HTTPConnection) -> str:
    """Return the key; pages pass it as a subprotocol, as they cannot set headers of a WebSocket."""
    header = connection.headers.get("authorization", "")
    if header.lower().startswith(BEARER):
        return header[len(BEARER) :].strip()
    offered = connection.scope.get("subprotocols", ())
    keys = [name[len(SUBPROTOCOL_KEY) :] for name in offered if name.startswith(SUBPROTOCOL_KEY)]
    return connection.headers.get("api-key", keys[0] if keys else "")


NeedsKey = Depends(check_key)
NeedsApiKey = Depends(check_api_key)


PUBLISHED: Final = "minicpm-o-4.5"
OWNER: Final = "openbmb"
FIELDS_MAX: Final = 16  # ours: form fields besides the file


router = ApiRouter(prefix="/v1", tags=["openai"], dependencies=[NeedsKey])


@router.get("/models")
async def models(gateway: GatewayHere) -> Response:
    """List the served model, also under the names that select an engine."""
    data = [_model(name) for name in served_models(gateway)]
    return JSONResponse({"object": "list", "data": data})


@router.get("/models/{model_id}")
async def model(model_id: str, gateway: GatewayHere) -> Response:
    """Describe the served model."""
    if model_id not in served_models(gateway):
        raise ModelNotFoundError(model_id)
    return JSONResponse(_model(model_id))


async def _in_turn(gateway: Gateway, client: str, work: Callable[[], Decoded]) -> Decoded:
    """Run something that decodes files, one at a time of each client: the threads are few.

    A thread cannot be stopped, so the turn of a client that leaves lasts until its work has ended.
    """
    if not client:
        return await gateway.voices.run(work)
    lock = gateway.decoding.setdefault(client, asyncio.Lock())
    await lock.acquire()
    running = asyncio.ensure_future(gateway.voices.run(work))
    running.add_done_callback(lambda _: lock.release())
    return await asyncio.shield(running)


@router.post("/chat/completions")
async def create(request: Request, gateway: GatewayHere) -> Response:
    """Respond to a conversation, whole or as server-sent events; disconnecting ends it."""
    gateway.check_open(TURN_BASED)
    text, voices, transcripts = await text_of(request), gateway.voices, gateway.transcripts
    params = await asyncio.to_thread(_checked, text)
    check_model(gateway, params.model)
    work = partial(worker_request, params, text, voices, transcripts)
    uses_voices = params.speaks or params.audio_parts > 0  # others do not wait for a decoder
    client = gateway.access.limited_client(request)
    try:
        if uses_voices:
            sent, audio_s = await unless_disconnected(request, _in_turn(gateway, client, work))
        else:
            sent, audio_s = await asyncio.to_thread(work)
    except ValidationError as error:  # valid here, but not with what the server adds
        raise explain(error) from error
    answer = Answer(params, served_model(gateway), voices, transcripts, audio_s)
    messages = reply(gateway, sent, client, lambda: answer.is_over)
    if not params.stream:
        return JSONResponse(await unless_disconnected(request, answer.whole(messages)))
    # Until the first message an error is an HTTP status, which clients know how to retry.
    first = await unless_disconnected(request, anext(messages))
    return streamed(answer.events(first, messages), messages)


@router.post("/audio/speech", response_class=StreamingResponse)
async def speech(request: Request, gateway: GatewayHere) -> Response:
    """Speak a text verbatim, streamed; disconnecting ends it.

    A suggestion of the loaded model, which pages say for their visitors, is spoken only once.
    """
    gateway.check_open()
    params = parse_body(SpeechRequest, await request.body())
    check_model(gateway, params.model)
    if not params.input.strip():
        raise errors.BadRequestError("input: the text is empty.")
    worker_text = await gateway.voices.run(speech_request, params, gateway.voices)
    client = gateway.access.limited_client(request)
    facts = loaded_model(gateway.relay_pool.directory.workers.values())
    may_keep = params.stream_format == "audio"  # else errors are events
    is_suggestion = facts is not None and may_keep and params.input in facts.try_saying
    # Of the sound of the voice as well.
    clip_id = hash_of(f"{facts}{params}{worker_text}") if is_suggestion else ""
    if is_suggestion and (clip := gateway.clips.get(clip_id)) is not None:
        return Response(clip, media_type=params.media_type)
    messages = reply(gateway, worker_text, client, is_recorded=not is_suggestion)
    made = Speech(params, messages)
    await unless_disconnected(request, made.begin())
    body = gateway.clips.kept(clip_id, made.body()) if is_suggestion else made.body()
    return streamed(body, messages, params.media_type)


@router.get("/audio/voices")
async def voices(gateway: GatewayHere) -> Response:
    """List the uploaded voices."""
    found = [voice_object(voice) for voice in await asyncio.to_thread(gateway.voices.list_all)]
    ends = {"first_id": found[0]["id"], "last_id": found[-1]["id"]} if found else {}
    return JSONResponse({"object": "list", "data": found, "has_more": False, **ends})


@router.post("/audio/voices", dependencies=[AdminOnly])
async def create_voice(request: Request, gateway: GatewayHere) -> Response:
    """Upload a voice: half a second to 30 s of audio in any file format."""
    async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
        if form.get("type", "audio_sample") != "audio_sample":
            raise errors.BadRequestError("type: only audio_sample is supported.")
        name, sample = form.get("name"), form.get("audio_sample")
        if not isinstance(name, str) or not 0 < len(name.strip()) <= NAME_MAX_CHARS:
            raise errors.BadRequestError(
                f"name: a text of 1 to {NAME_MAX_CHARS} characters is required."
            )
        if not isinstance(sample, UploadFile):
            raise missing("audio_sample", "an audio file is required.")
        content = await sample.read()
    with audio_in("audio_sample"):
        voice = await gateway.voices.run(gateway.voices.upload, name, content)
    return JSONResponse(voice_object(voice))


def served_models(gateway: Gateway) -> tuple[str, ...]:
    """Return the id of the loaded model, then the ids that select an engine."""
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


def _checked(text: str) -> CompletionRequest:
    params = parse_body(CompletionRequest, text)
    params.check()
    return params


def voice_object(voice: RefAudio) -> Json:
    return {
        "id": voice.id,
        "object": "audio.voice",
        "type": "audio_sample",
        "name": voice.name,
        "created_at": int(voice.created_at.timestamp()),
    }


# --- Transcriptions. Source: OpenAI's API reference, "Create transcription" ---

PROMPT_MAX_CHARS: Final = 1_000  # ours: Whisper reads the last 224 tokens of it


class TranscriptionForm(WireModel):
    """Form fields besides the file; others are ignored."""

    model: str = Field(min_length=1, max_length=limits.ID_MAX_CHARS)
    language: str | None = Field(None, min_length=2, max_length=8)
    prompt: str = Field("", max_length=PROMPT_MAX_CHARS)
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: float = Field(0.0, ge=0, le=1)
    stream: bool = False


Passages = list[TranscriptPassage]


@router.post("/audio/transcriptions")
async def transcribe(request: Request, gateway: GatewayHere) -> Response:
    """Transcribe a file; disconnecting ends it."""
    async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise missing("file", "send the recording as multipart/form-data.")
        fields = {name: value for name, value in form.items() if isinstance(value, str) and value}
        params, content = parse_body(TranscriptionForm, json.dumps(fields)), await file.read()
    check_model(gateway, params.model)
    known = gateway.relay_pool.directory.workers.values()
    answering = [(one, one.service.latest) for one in known if one.is_answering]
    kinds = {one: latest.transcribes_by if latest else None for one, latest in answering}
    if not kinds:
        raise errors.NoWorkerError()
    if not any(kinds.values()):
        raise errors.NotAvailableError("No transcriber is available (transcription.by).")
    longest_s = gateway.settings.limits.chat_audio_max_s
    client = gateway.access.limited_client(request)
    work = partial(gateway.voices.decoder.read, content, longest_s)
    with audio_in("file"):
        audio = await unless_disconnected(request, _in_turn(gateway, client, work))
    by_whisper = [worker for worker, kind in kinds.items() if kind == "whisper"]
    passages = _written(gateway, by_whisper, params, audio, client)
    if params.stream:
        first = await unless_disconnected(request, anext(passages, None))
        return streamed(_events(first, passages, audio), passages)

    async def whole() -> Passages:
        async with aclosing(passages):
            return [passage async for passage in passages]

    return _answer(params, await unless_disconnected(request, whole()), audio)


def _written(
    gateway: Gateway,
    by_whisper: list[WorkerConnection],
    params: TranscriptionForm,
    audio: Audio,
    client: str,
) -> AsyncGenerator[TranscriptPassage]:
    """Transcribe by Whisper on the worker with the most free slots, else by the model.

    A draining or restarting worker is the last resort: it may stop before it has finished.
    """
    query = params.model_dump(include={"language", "prompt", "temperature"}, exclude_none=True)
    call = gateway.relay_pool.client.transcribe
    if by_whisper:
        worker = max(by_whisper, key=lambda each: (each.is_in_service, each.available_slots))
        passages = call(worker, audio.samples, query)
        return _leased(gateway.transcriptions.lease(client), passages)

    def work(assignment: Assignment) -> AsyncGenerator[TranscriptPassage]:
        assignment.ticket.has_started = True
        return call(assignment.ticket.worker, audio.samples, query)

    return replies(gateway, client, work)


async def _leased(
    lease: Lease, passages: AsyncGenerator[TranscriptPassage]
) -> AsyncGenerator[TranscriptPassage]:
    with lease:
        lease.add(1)
        async with aclosing(passages):
            async for passage in passages:
                yield passage


def _answer(params: TranscriptionForm, passages: Passages, audio: Audio) -> Response:
    match params.response_format:
        case "text":
            return PlainTextResponse(_text(passages) + "\n")
        case "srt":
            return PlainTextResponse(subrip(_cues(passages)))
        case "vtt":
            return PlainTextResponse(webvtt(_cues(passages)), media_type="text/vtt")
        case "verbose_json":
            return JSONResponse(_verbose(passages, audio))
        case _:
            return JSONResponse({"text": _text(passages), "usage": _usage(audio)})


def _verbose(passages: Passages, audio: Audio) -> Json:
    languages = [passage.language for passage in passages if passage.language]
    segments = [
        {"id": number, "start": passage.start_s, "end": passage.end_s, "text": passage.text}
        # Required by clients' types; unknown here.
        | {"seek": 0, "tokens": [], "temperature": 0.0}
        | {"avg_logprob": 0.0, "compression_ratio": 1.0, "no_speech_prob": 0.0}
        for number, passage in enumerate(passages)
    ]
    return {
        "task": "transcribe",
        "language": languages[0] if languages else "",
        "duration": audio.duration_ms / MS_PER_S,
        "text": _text(passages),
        "segments": segments,
        "usage": _usage(audio),
    }


async def _events(
    first: TranscriptPassage | None, passages: AsyncGenerator[TranscriptPassage], audio: Audio
) -> AsyncGenerator[str]:
    said, passage = "", first
    try:
        while passage is not None:
            delta = f" {passage.text}" if said else passage.text
            said += delta
            yield server_event({"type": "transcript.text.delta", "delta": delta})
            passage = await anext(passages, None)
        yield server_event({"type": "transcript.text.done", "text": said, "usage": _usage(audio)})
    except errors.OmniError as error:
        yield server_event(openai_error(error))


def _usage(audio: Audio) -> Json:
    return {"type": "duration", "seconds": audio.duration_ms / MS_PER_S}


def _text(passages: Passages) -> str:
    return " ".join(passage.text for passage in passages)


def _cues(passages: Passages) -> list[Cue]:
    return [
        Cue(round(one.start_s * MS_PER_S), round(one.end_s * MS_PER_S), one.text)
        for one in passages
    ]
