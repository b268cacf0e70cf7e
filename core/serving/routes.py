"""HTTP and WebSocket routes of a worker; the application's state holds its sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Request, Response, WebSocket
from fastapi.requests import HTTPConnection
from pydantic import TypeAdapter
from starlette.responses import StreamingResponse

from core.audio import from_pcm
from core.errors import AudioError, NotAvailableError, NotFoundError, OmniError, TooBigError
from core.schemas import limits
from core.schemas.chat import ChatRequest, ChatResponse
from core.schemas.common import parse_message
from core.schemas.queue import SESSION_SECRET_HEADER, SocketKind
from core.schemas.worker import (
    ActionResult,
    CacheStatus,
    KeptSession,
    StopRequest,
    TranscriptPassage,
    TranscriptProblem,
    WorkerHealth,
)
from core.serving.recordings import Recordings
from core.serving.runtime import WorkerRuntime
from core.serving.server import GATEWAY_MARK
from core.serving.session_handler import counting_failures
from core.serving.session_server import SessionServer
from core.serving.transcribers import passages_of
from core.transcription import TranscriptionOptions
from recording.listing import RecordingPage, delete_recording, page_of
from recording.names import OWNER_FILE
from recording.store import (
    FilesListed,
    existing_folder,
    file_answer,
    file_in,
    files_in,
    unless_deleted,
)

BYTES: Final = "application/octet-stream"
AUDIO_MAX_BYTES: Final = limits.audio_bytes(limits.CHAT_AUDIO_MAX_S)

CHAT_REQUEST: Final = TypeAdapter(ChatRequest)
STOP_REQUEST: Final = TypeAdapter(StopRequest)
KEPT_SESSION: Final = TypeAdapter(KeptSession)
STOP_LIMIT_BYTES: Final = 4_096
STOPS: Final = {
    "streaming": (SocketKind.STREAMING, SocketKind.CHAT),
    "half_duplex": (SocketKind.HALF_DUPLEX, SocketKind.REALTIME),
    "duplex": (SocketKind.DUPLEX, SocketKind.LIVE),
}
"""The kinds of sessions that each stop route ends replies of."""

router: Final = APIRouter()


def _sessions_of(connection: HTTPConnection) -> SessionServer:
    sessions: SessionServer = connection.app.state.sessions
    return sessions


Sessions = Annotated[SessionServer, Depends(_sessions_of)]


# --- state ---


@router.get("/health")
async def health(request: Request, sessions: Sessions) -> WorkerHealth:
    health = sessions.runtime.health()
    hidden = {} if GATEWAY_MARK in request.scope else {"current_session_id": None}
    return health.model_copy(update=hidden)


@router.get("/cache_info")
async def cache_info(sessions: Sessions) -> CacheStatus:
    return sessions.runtime.cache_info()


@router.post("/clear_cache")
async def clear_cache(response: Response, sessions: Sessions) -> ActionResult:
    done = await sessions.runtime.clear_cache()
    if not done.success:
        response.status_code = HTTPStatus.CONFLICT
    return done


@router.post("/restart")
async def restart(sessions: Sessions) -> ActionResult:
    sessions.restart()
    return ActionResult(success=True, message="The worker restarts once its sessions have ended.")


# --- requests and sessions ---


@router.post("/chat")
async def chat(request: Request, sessions: Sessions) -> ChatResponse:
    body = await _read(request, limits.CHAT_SOCKET_LIMIT_BYTES)
    chat_request = await asyncio.to_thread(parse_message, CHAT_REQUEST, body)
    secret = request.headers.get(SESSION_SECRET_HEADER, "")
    return await sessions.chat(chat_request, partial(_disconnected, request), secret)


@router.post("/transcribe")
async def transcribe(
    request: Request, sessions: Sessions, options: Annotated[TranscriptionOptions, Depends()]
) -> Response:
    audio = await _read(request, AUDIO_MAX_BYTES)
    return await transcription(sessions.runtime, audio, options)


@router.post("/keeps")
async def keeps(request: Request, sessions: Sessions) -> ActionResult:
    body = await _read(request, STOP_LIMIT_BYTES)
    return ActionResult(success=sessions.keeps(parse_message(KEPT_SESSION, body)))


@router.post("/{name}/stop")
async def stop(name: str, request: Request, sessions: Sessions) -> ActionResult:
    if name not in STOPS:
        raise NotFoundError()
    body = await _read(request, STOP_LIMIT_BYTES)
    stop_request = parse_message(STOP_REQUEST, body) if body else StopRequest()
    return sessions.stop(STOPS[name], stop_request.session_id)


@router.websocket("/ws/{kind}")
async def socket(websocket: WebSocket, kind: SocketKind, sessions: Sessions) -> None:
    await sessions.serve(websocket, kind)


async def _read(request: Request, limit_bytes: int) -> bytes:
    """Return a request's body; raises `TooBigError` as soon as it exceeds the limit."""
    parts, size_bytes = [], 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise TooBigError()
        parts.append(part)
    return b"".join(parts)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def transcription(
    runtime: WorkerRuntime, audio: bytes, options: TranscriptionOptions
) -> StreamingResponse:
    """Transcribe a recording to one line of JSON per passage; raises errors before the first.

    `audio` holds little-endian float32 samples, mono, 16 kHz.
    """
    if runtime.transcriber is None:
        raise NotAvailableError()
    sample_bytes = limits.SAMPLE_BYTES
    if not audio or len(audio) % sample_bytes:
        raise AudioError(f"The audio has {len(audio)} bytes; each sample has {sample_bytes}.")
    found = _counted(
        runtime, passages_of(runtime.transcriber, runtime.detector, from_pcm(audio), options)
    )
    with counting_failures(runtime.threads):
        first = await anext(found, None)

    async def lines() -> AsyncIterator[str]:
        newest = first
        try:
            async with aclosing(found):
                while newest is not None:
                    yield newest.to_json() + "\n"
                    with counting_failures(runtime.threads):
                        newest = await anext(found, None)
        except OmniError as error:
            yield TranscriptProblem(problem=error.message).to_json() + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def _counted(
    runtime: WorkerRuntime, passages: AsyncGenerator[TranscriptPassage]
) -> AsyncGenerator[TranscriptPassage]:
    runtime.transcripts += 1
    try:
        async with aclosing(passages):
            async for passage in passages:
                yield passage
    finally:
        runtime.transcripts -= 1


# --- recordings that no object store has yet; only the gateway may use these routes ---


def _recordings_of(sessions: Sessions) -> Recordings:
    if sessions.recordings is None:
        raise NotFoundError("Nothing is recorded here.")
    return sessions.recordings


LocalRecordings = Annotated[Recordings, Depends(_recordings_of)]


def _folder_of(recording_id: str, here: LocalRecordings) -> Path:
    return existing_folder(here.data_dir, recording_id)


Folder = Annotated[Path, Depends(_folder_of)]


@router.get("/recordings")
async def recordings(here: LocalRecordings) -> RecordingPage:
    found = await asyncio.to_thread(here.unsealed)
    return page_of(found, 0, len(found))


@router.get("/recordings/{recording_id}")
async def recording_files(folder: Folder) -> FilesListed:
    found = await asyncio.to_thread(files_in, folder)
    return FilesListed(sizes={one.name: one.size_bytes for one in found})


@router.get("/recordings/{recording_id}/files/{name:path}")
async def recording_file(folder: Folder, name: str, request: Request) -> Response:
    found = await asyncio.to_thread(file_in, folder, name, hidden=(OWNER_FILE,))
    if found is None:
        raise NotFoundError("There is no such file.")
    return file_answer(found, request.headers, BYTES)


@router.delete("/recordings/{recording_id}", status_code=HTTPStatus.NO_CONTENT)
async def delete(folder: Folder) -> None:
    with unless_deleted():  # by another worker on the same data folder
        await asyncio.to_thread(delete_recording, folder)
