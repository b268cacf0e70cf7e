"""`POST /v1/audio/transcriptions`: what is said in a file, in the formats that clients ask for.

Whisper on a worker's CPU works beside its conversations and does not wait in the queue; its own
queue is bounded. Where the model itself writes, the request waits as every other does.
Source: OpenAI's API reference, "Create transcription".
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final, Literal

from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter
from starlette.datastructures import UploadFile
from starlette.responses import JSONResponse, PlainTextResponse, Response

from core.errors import BadRequestError, NotAvailableError, NoWorkerError, OmniError
from core.protocols.events import MS_PER_S
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.openai_errors import parse_body
from core.schemas.worker import TranscriptPassage
from gateway_modules.openai.routes import NeedsKey, check_model
from gateway_modules.openai.speech import Streamed, server_event
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.routes.chat import Assignment, replies
from gateway_modules.service import Gateway, GatewayHere
from gateway_modules.voices import Audio
from gateway_modules.web.messages import unless_disconnected
from gateway_modules.web.responses import openai_error
from recording.replay_plan import Cue, webvtt

PROMPT_MAX_CHARS: Final = 1_000  # ours: Whisper reads the last 224 tokens of it
FIELDS_MAX: Final = 16

router = APIRouter(tags=["openai"], dependencies=[NeedsKey])


class TranscriptionForm(WireModel):
    """The fields beside the file; others are ignored."""

    model: str = Field(min_length=1, max_length=limits.ID_MAX_CHARS)
    language: str | None = Field(None, min_length=2, max_length=8)
    prompt: str = Field("", max_length=PROMPT_MAX_CHARS)
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: float = Field(0.0, ge=0, le=1)
    stream: bool = False


FORM: Final[TypeAdapter[TranscriptionForm]] = TypeAdapter(TranscriptionForm)
Passages = list[TranscriptPassage]


@router.post("/audio/transcriptions")
async def transcribe(request: Request, gateway: GatewayHere) -> Response:
    """Write down what is said in a file; disconnecting ends it."""
    params, content = await _form(request)
    check_model(gateway, params.model)
    known = gateway.relay_pool.directory.workers.values()
    workers = [worker for worker in known if worker.is_answering]
    able = [worker for worker in workers if _kind(worker) is not None]
    if not workers:
        raise NoWorkerError()
    if not able:
        raise NotAvailableError("Nothing here writes down what is said (transcription.by).")
    longest_s = gateway.settings.limits.chat_audio_max_s
    audio = await gateway.voices.run(gateway.voices.decoder.read, content, longest_s)
    client = gateway.access.limited_client(request)
    passages = _written(gateway, able, params, audio, client)
    if params.stream:
        first = await unless_disconnected(request, anext(passages, None))
        return Streamed(_events(first, passages, audio), passages)
    return _answer(params, await unless_disconnected(request, _all(passages)), audio)


async def _form(request: Request) -> tuple[TranscriptionForm, bytes]:
    async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise BadRequestError("file: send the recording as multipart/form-data.")
        fields = {name: value for name, value in form.items() if isinstance(value, str) and value}
        return parse_body(FORM, json.dumps(fields)), await file.read()


def _kind(worker: WorkerConnection) -> str | None:
    latest = worker.service.latest
    return latest.transcribes_by if latest is not None else None


async def _written(
    gateway: Gateway,
    able: list[WorkerConnection],
    params: TranscriptionForm,
    audio: Audio,
    client: str,
) -> AsyncGenerator[TranscriptPassage]:
    """Whisper of the worker with the fewest sessions transcribes, else the model."""
    query = params.model_dump(include={"language", "prompt", "temperature"}, exclude_none=True)
    call = gateway.relay_pool.client.transcribe
    by_whisper = [worker for worker in able if _kind(worker) == "whisper"]
    if by_whisper:
        worker = max(by_whisper, key=lambda each: each.room)
        async with aclosing(call(worker, audio.samples, query)) as passages:
            async for passage in passages:
                yield passage
        return

    def work(assignment: Assignment) -> AsyncGenerator[TranscriptPassage]:
        assignment.ticket.has_started = True
        return call(assignment.ticket.worker, audio.samples, query)

    async with aclosing(replies(gateway, client, work)) as passages:
        async for passage in passages:
            yield passage


async def _all(passages: AsyncGenerator[TranscriptPassage]) -> Passages:
    async with aclosing(passages):
        return [passage async for passage in passages]


def _answer(params: TranscriptionForm, passages: Passages, audio: Audio) -> Response:
    match params.response_format:
        case "text":
            return PlainTextResponse(_text(passages) + "\n")
        case "srt":
            return PlainTextResponse(_subrip(_cues(passages)))
        case "vtt":
            return PlainTextResponse(webvtt(_cues(passages)), media_type="text/vtt")
        case "verbose_json":
            return JSONResponse(_verbose(passages, audio))
        case _:
            return JSONResponse({"text": _text(passages), "usage": _usage(audio)})


# Any, here and below: JSON.
def _verbose(passages: Passages, audio: Audio) -> dict[str, Any]:
    languages = [passage.language for passage in passages if passage.language]
    segments = [
        {"id": number, "start": passage.start_s, "end": passage.end_s, "text": passage.text}
        # Required by the clients' types; these transcribers do not say them.
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
    said: list[str] = []
    try:
        passage = first
        while passage is not None:
            delta = f" {passage.text}" if said else passage.text
            said.append(delta)
            yield server_event({"type": "transcript.text.delta", "delta": delta})
            passage = await anext(passages, None)
    except OmniError as error:
        yield server_event(openai_error(error))
        return
    yield server_event(
        {"type": "transcript.text.done", "text": "".join(said), "usage": _usage(audio)}
    )


def _usage(audio: Audio) -> dict[str, Any]:
    return {"type": "duration", "seconds": audio.duration_ms / MS_PER_S}


def _text(passages: Passages) -> str:
    return " ".join(passage.text for passage in passages)


def _cues(passages: Passages) -> list[Cue]:
    return [
        Cue(round(one.start_s * MS_PER_S), round(one.end_s * MS_PER_S), one.text)
        for one in passages
    ]


def _subrip(cues: list[Cue]) -> str:
    numbered = enumerate(cues, start=1)
    return "\n".join(f"{number}\n{cue.times(',')}\n{cue.text}\n" for number, cue in numbered)
