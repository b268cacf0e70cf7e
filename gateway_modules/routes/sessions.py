"""Recorded sessions: what they say of themselves, their files, comments, uploads, deletion."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from core.errors import ForbiddenError, NotFoundError
from core.schemas.common import WireModel
from core.schemas.queue import SESSION_SECRET_HEADER
from gateway_modules.admin.security import mark_admin
from gateway_modules.service import GatewayHere
from gateway_modules.session_files import SessionFiles, Upload, zipped
from gateway_modules.web.client_request import receive_file
from gateway_modules.web.responses import NO_STORE, problems
from recording.names import media_type
from recording.store import Download, file_answer

ID_MAX_CHARS = 200  # what is longer than an id may be is refused by its own check
# What clients upload is shown, never run: not as a page, not as a script.
# Browsers follow no redirect of subtitles to another origin.
DIRECT_TYPES = ("audio/", "image/", "video/")
ASSET_HEADERS = (("Content-Security-Policy", "default-src 'none'; media-src 'self'; sandbox"),)

RecordingId = Annotated[str, Path(max_length=ID_MAX_CHARS)]

router = APIRouter(prefix="/api/sessions", tags=["recordings"])


class Comment(WireModel):
    """A comment on a recording."""

    comment: str = Field(description="The text; empty deletes it.")


class CommentKept(WireModel):
    """A comment was kept."""

    status: Literal["ok"] = Field("ok", description="Always this.")
    len: int = Field(ge=0, description="Characters kept.")


class UploadKept(WireModel):
    """A browser's recording was kept."""

    status: Literal["ok"] = Field("ok", description="Always this.")
    path: str = Field(description="Its name among the recording's files.")
    size_bytes: int = Field(ge=0, description="Its size, bytes.")


class Deleted(WireModel):
    """A recording was deleted."""

    success: bool = Field(True, description="It was deleted.")


def files_of(gateway: GatewayHere) -> SessionFiles:
    """A dependency of routes; NotFoundError where nothing is recorded."""
    if not gateway.settings.recording.enabled:
        raise NotFoundError("Recording is switched off on this server.")
    return gateway.files


Files = Annotated[SessionFiles, Depends(files_of)]


async def only_owner(
    recording_id: RecordingId, request: Request, gateway: GatewayHere, files: Files
) -> None:
    """Accept who made the recording, and administrators; a dependency of routes.

    The recording's id is what a link to it shares: it lets read, and nothing else.

    Raises:
        NotFoundError: There is no such recording.
        ForbiddenError: Somebody else asks.
    """
    if gateway.access.is_admin(request):
        mark_admin(request.scope)
        return
    secret = request.headers.get(SESSION_SECRET_HEADER, "")
    if not await asyncio.to_thread(files.is_owner, recording_id, secret):
        raise ForbiddenError()


OwnerOnly = Depends(only_owner)
"""Marks a route that only a recording's owner and administrators may use."""


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-cache"})


@router.get("/{recording_id}", responses=problems(400, 404))
async def meta(recording_id: RecordingId, files: Files) -> Response:
    """Return what the recording says about itself: `meta.json`."""
    return _json(await asyncio.to_thread(files.meta, recording_id))


@router.get("/{recording_id}/recording", responses=problems(400, 404, 409))
async def recording(recording_id: RecordingId, files: Files) -> Response:
    """Return the timeline: `recording.json`; 409 while it is still being written."""
    return _json(await asyncio.to_thread(files.recording, recording_id))


@router.head("/{recording_id}/assets/{path:path}", include_in_schema=False)
@router.get(
    "/{recording_id}/assets/{path:path}",
    response_class=FileResponse,
    responses=problems(400, 404),
)
async def asset(recording_id: RecordingId, path: str, request: Request, files: Files) -> Response:
    """Return a file of the recording, or the range of it that is asked for.

    Where `recording.direct` is set, sound, pictures and films are answered with a redirect to the
    object store (302).
    """
    file = await asyncio.to_thread(files.asset, recording_id, path)
    kind, is_head = media_type(file.name), request.method == "HEAD"
    if file.signed_url is not None and kind.startswith(DIRECT_TYPES) and not is_head:
        url = await asyncio.to_thread(file.signed_url)
        return RedirectResponse(url, HTTPStatus.FOUND, {"Cache-Control": NO_STORE})
    return file_answer(file, request.headers, kind, dict(ASSET_HEADERS), is_head=is_head)


@router.get(
    "/{recording_id}/download", response_class=StreamingResponse, responses=problems(400, 404)
)
async def download(recording_id: RecordingId, files: Files) -> StreamingResponse:
    """Return the whole recording as a zip file, made while it is sent."""
    found = await asyncio.to_thread(files.all_of, recording_id)
    headers = {"Content-Disposition": f'attachment; filename="{recording_id}.zip"'}
    return Download(zipped(found), headers)


@router.post(
    "/{recording_id}/upload-recording",
    dependencies=[OwnerOnly],
    responses=problems(400, 403, 404, 409, 413, 429, 507),
)
async def upload(recording_id: RecordingId, request: Request, files: Files) -> UploadKept:
    """Keep the browser's own recording: WebM, MP4 or WAV in a part named `file`."""
    await asyncio.to_thread(files.check, recording_id)
    uploads: list[Upload] = []

    def begin(media_type: str) -> Upload:
        uploads.append(files.begin_upload(recording_id, media_type))
        return uploads[0]

    with files.counted_upload(recording_id):
        try:
            content_type = request.headers.get("content-type", "")
            await receive_file(content_type, request.stream(), begin)
            name = await asyncio.to_thread(uploads[0].finish)
            return UploadKept(path=name, size_bytes=uploads[0].size_bytes)
        finally:
            for one in uploads:
                await asyncio.to_thread(one.close)


@router.get("/{recording_id}/comment", responses=problems(400, 404))
async def comment(recording_id: RecordingId, files: Files) -> Comment:
    """Return the comment, "" if there is none."""
    return Comment(comment=await asyncio.to_thread(files.comment, recording_id))


@router.post(
    "/{recording_id}/comment", dependencies=[OwnerOnly], responses=problems(400, 403, 404, 413)
)
async def set_comment(recording_id: RecordingId, body: Comment, files: Files) -> CommentKept:
    """Keep a comment in place of an earlier one."""
    return CommentKept(len=await asyncio.to_thread(files.set_comment, recording_id, body.comment))


@router.delete("/{recording_id}", dependencies=[OwnerOnly], responses=problems(400, 403, 404, 409))
async def delete(recording_id: RecordingId, files: Files) -> Deleted:
    """Delete a recording; one that is still being written stays."""
    await asyncio.to_thread(files.delete, recording_id)
    return Deleted()
