"""A worker's recordings that no object store has yet, for the gateway."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.requests import HTTPConnection

from core.errors import NotFoundError, TooBigError
from core.files import append
from core.schemas.limits import MIB
from core.serving.recordings import Recordings
from core.serving.session_server import SessionServer
from recording.answers import file_answer
from recording.folder import is_live
from recording.listing import RecordingPage, page_of
from recording.names import DIAGNOSTICS_FILE, OWNER_FILE, recording_folder
from recording.store import FilesListed, StoredFile, file_in, files_in

BYTES = "application/octet-stream"


def _recordings_of(connection: HTTPConnection) -> Recordings:
    sessions: SessionServer = connection.app.state.sessions
    if sessions.recordings is None:
        raise NotFoundError("Nothing is recorded here.")
    return sessions.recordings


Here = Annotated[Recordings, Depends(_recordings_of)]


def add_recordings(router: APIRouter) -> None:
    """Add the routes; only the gateway is let in to them."""

    @router.get("/recordings")
    async def listed(recordings: Here) -> RecordingPage:
        found = await asyncio.to_thread(recordings.unsealed)
        return page_of(found, 0, len(found))

    @router.get("/recordings/{recording_id}")
    async def files(recording_id: str, recordings: Here) -> FilesListed:
        found = await asyncio.to_thread(files_in, _folder(recordings, recording_id))
        return FilesListed(sizes={one.name: one.size_bytes for one in found})

    @router.get("/recordings/{recording_id}/files/{name:path}")
    async def file(recording_id: str, name: str, request: Request, recordings: Here) -> Response:
        folder = _folder(recordings, recording_id)
        found = await asyncio.to_thread(_file, folder, name)
        return file_answer(found, request.headers, BYTES)

    @router.post("/recordings/{recording_id}/diagnostics", status_code=HTTPStatus.NO_CONTENT)
    async def diagnostic(recording_id: str, request: Request, recordings: Here) -> None:
        line = b""
        async for part in request.stream():
            line += part
            if len(line) > MIB:
                raise TooBigError()
        folder = _folder(recordings, recording_id)
        if await asyncio.to_thread(is_live, folder):
            await asyncio.to_thread(append, folder / DIAGNOSTICS_FILE, line)

    @router.delete("/recordings/{recording_id}", status_code=HTTPStatus.NO_CONTENT)
    async def delete(recording_id: str, recordings: Here) -> None:
        await asyncio.to_thread(recordings.delete, _folder(recordings, recording_id))


def _folder(recordings: Recordings, recording_id: str) -> Path:
    folder = recording_folder(recordings.data_dir, recording_id)
    if not folder.is_dir() or folder.is_symlink():
        raise NotFoundError("There is no such recording.")
    return folder


def _file(folder: Path, name: str) -> StoredFile:
    found = file_in(folder, name, hidden=(OWNER_FILE,))
    if found is None:
        raise NotFoundError("There is no such file.")
    return found
