"""Routes of recordings: metadata, files, comments, uploads, deletion."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import tempfile
from contextlib import suppress
from http import HTTPStatus
from typing import Annotated, BinaryIO, Final, Literal

from fastapi import Depends, Path, Request
from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from core import errors
from core.schemas.common import WireModel
from core.schemas.queue import SESSION_SECRET_HEADER, RequestType
from gateway_modules.service import ApiRouter, Gateway, GatewayHere, gateway_of
from gateway_modules.web.responses import NO_STORE, error_answer, problems
from gateway_modules.web.security import ADMIN_MARK
from recording import names
from recording.folder import is_owner, parse_meta
from recording.listing import touch_access
from recording.names import media_type
from recording.records import Meta, Status
from recording.store import Download, file_answer, zipped

ID_MAX_CHARS = 200  # the exact limit is checked by `check_recording_id`
DIRECT_TYPES = ("audio/", "image/", "video/")  # browsers follow no redirect of subtitles
# Uploaded files must never run as a page or a script.
ASSET_HEADERS = (("Content-Security-Policy", "default-src 'none'; media-src 'self'; sandbox"),)

UPLOAD_FIELD: Final = "browser_recording"  # added to `meta.json`
HEAD_BYTES: Final = 12
NO_FILE: Final = "Send the file as multipart/form-data, named `file`."
FIELDS_MAX: Final = 16  # of a form, besides the file

UPLOAD_SUFFIXES: Final = {
    "video/webm": "webm",
    "video/mp4": "mp4",
    "audio/wav": "wav",
    "audio/webm": "webm",
}
UPLOAD_NAMES: Final = frozenset(f"{names.UPLOAD_STEM}.{end}" for end in UPLOAD_SUFFIXES.values())
EBML_MARK: Final = b"\x1a\x45\xdf\xa3"  # source: RFC 8794, section 11.2.1
MP4_MARK: Final = b"ftyp"  # after the box's size; source: ISO/IEC 14496-12, section 4.3

RecordingId = Annotated[str, Path(max_length=ID_MAX_CHARS)]

router = ApiRouter(prefix="/api/sessions", tags=["recordings"], responses=problems(502))


async def on_store_away(request: Request, error: Exception) -> Response:
    """Answer a request that needs an object store, or a worker's disk, that cannot be reached."""
    gateway_of(request).refusals.warn("recordings unreachable", reason=str(error))
    answer = errors.WorkerUnreachableError(
        "The recordings cannot be reached at the moment. Please try again later."
    )
    return error_answer(answer, request.url.path)


async def on_disk_error(request: Request, error: Exception) -> Response:
    """Answer a request that would have filled the disk, of recordings or anything else."""
    if not isinstance(error, OSError) or error.errno != errno.ENOSPC:
        raise error
    gateway_of(request).refusals.warn("disk full", reason=str(error))
    return error_answer(errors.DiskFullError(), request.url.path)


class Comment(WireModel):
    """A comment on a recording."""

    comment: str = Field(description="The text; empty deletes it.")


class CommentKept(WireModel):
    """Result of storing a comment."""

    status: Literal["ok"] = Field("ok", description="Always this.")
    len: int = Field(ge=0, description="Characters stored.")


class UploadKept(WireModel):
    """Result of uploading a browser's recording."""

    status: Literal["ok"] = Field("ok", description="Always this.")
    path: str = Field(description="Its name among the recording's files.")
    size_bytes: int = Field(ge=0, description="Its size, bytes.")


class Deleted(WireModel):
    """Result of deleting a recording."""

    success: bool = Field(True, description="It was deleted.")


# Routes and dependencies that block on disk or network are plain functions, which run on threads.


def existing_recording(recording_id: RecordingId, gateway: GatewayHere) -> str:
    """Return the id of a recording that exists, and note the access."""
    if not gateway.settings.recording.enabled:
        raise errors.NotFoundError("Recording is switched off on this server.")
    gateway.recordings.check(recording_id)
    touch_access(gateway.store, recording_id)
    return recording_id


ExistingId = Annotated[str, Depends(existing_recording)]


def only_owner(recording_id: RecordingId, request: Request, gateway: GatewayHere) -> None:
    """Accept the recording's owner and administrators; ForbiddenError for others.

    The recording's id, which links share, grants read access only.
    """
    if gateway.access.is_admin(request):
        # Marked before anything else: attempts on recordings that do not exist are audited.
        request.scope[ADMIN_MARK] = True
        return
    owner = gateway.recordings.read(existing_recording(recording_id, gateway), names.OWNER_FILE)
    if not is_owner(owner, request.headers.get(SESSION_SECRET_HEADER, "")):
        raise errors.ForbiddenError()


OwnerOnly = Depends(only_owner)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-cache"})


@router.get("/{recording_id}", responses=problems(400, 404))
def meta(recording: ExistingId, gateway: GatewayHere) -> Response:
    """Return the metadata: `meta.json`."""
    stored = gateway.recordings
    content = stored.read(recording, names.META_FILE)
    if content is None:
        raise errors.NotFoundError("This recording has no metadata.")
    upload = next((one for one in sorted(UPLOAD_NAMES) if stored.file(recording, one)), None)
    with suppress(ValueError):  # damaged: returned unchanged
        known = json.loads(content) if upload is not None else None
        if isinstance(known, dict):
            return _json(json.dumps(known | {UPLOAD_FIELD: upload}).encode())
    return _json(content)


@router.get("/{recording_id}/recording", name="recording", responses=problems(400, 404, 409))
def timeline(recording: ExistingId, gateway: GatewayHere) -> Response:
    """Return the timeline: `recording.json`; 409 while it is still being written."""
    stored = gateway.recordings
    is_running = stored.is_running(recording)
    if is_running and not _is_readable(parse_meta(stored.read(recording, names.META_FILE))):
        raise errors.StillWritingError()
    content = stored.read(recording, names.RECORDING_FILE)
    if content is not None:
        return _json(content)
    if is_running:
        raise errors.StillWritingError()
    raise errors.NotFoundError("This recording is empty.")


def _is_readable(meta: Meta | None) -> bool:
    """Whether the timeline of a locked recording is complete, or that of a chat between turns.

    Others have no replay yet, and a page that loads them would never get it.
    """
    if meta is None:
        return False
    is_open_chat = meta.app_type is RequestType.STREAMING and meta.status is Status.RECORDING
    return is_open_chat or meta.is_over


@router.head("/{recording_id}/assets/{path:path}", include_in_schema=False)
@router.get(
    "/{recording_id}/assets/{path:path}", response_class=FileResponse, responses=problems(400, 404)
)
def asset(path: str, request: Request, recording: ExistingId, gateway: GatewayHere) -> Response:
    """Return a file of the recording, or the requested range of it.

    With `recording.direct`, audio, images and videos are redirected to the object store (302).
    """
    parts = path.split("/")
    if "\0" in path or "\\" in path or ".." in parts or not all(parts):
        raise errors.BadRequestError("This is not a path within a recording.")
    file = gateway.recordings.file(recording, path)
    if file is None:
        raise errors.NotFoundError("There is no such file.")
    kind, is_head = media_type(file.name), request.method == "HEAD"
    if file.signed_url is not None and kind.startswith(DIRECT_TYPES) and not is_head:
        return RedirectResponse(file.signed_url(), HTTPStatus.FOUND, {"Cache-Control": NO_STORE})
    return file_answer(file, request.headers, kind, dict(ASSET_HEADERS), is_head=is_head)


@router.get(
    "/{recording_id}/download", response_class=StreamingResponse, responses=problems(400, 404)
)
def download(recording: ExistingId, gateway: GatewayHere) -> StreamingResponse:
    """Return the whole recording as a zip file, created while it is sent."""
    headers = {"Content-Disposition": f'attachment; filename="{recording}.zip"'}
    return Download(zipped(gateway.recordings.files(recording)), headers)


@router.post(
    "/{recording_id}/upload-recording",
    dependencies=[OwnerOnly],
    responses=problems(400, 403, 404, 409, 413, 429, 507),
)
async def upload(request: Request, recording: ExistingId, gateway: GatewayHere) -> UploadKept:
    """Store the browser's own recording: WebM, MP4 or WAV in a part named `file`."""
    length = request.headers.get("content-length", "")
    most = gateway.settings.limits.recording_upload_bytes
    wanted_bytes = int(length) if length.isdecimal() else most
    client = gateway.access.limited_client(request)
    with gateway.uploads.counted(recording, client, wanted_bytes):
        if shutil.disk_usage(tempfile.gettempdir()).free < wanted_bytes:  # it is buffered there
            raise errors.DiskFullError()
        async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise errors.BadRequestError(NO_FILE)
            kind = file.content_type or ""
            return await asyncio.to_thread(_keep_upload, gateway, recording, file.file, kind)


def _keep_upload(gateway: Gateway, recording: str, file: BinaryIO, media_type: str) -> UploadKept:
    """Store a complete file under a name for its type, after checking the type."""
    suffix = UPLOAD_SUFFIXES.get(media_type.partition(";")[0].strip().lower())
    if suffix is None:
        raise errors.BadRequestError("Only WebM, MP4 and WAV are accepted.")
    head, size_bytes = file.read(HEAD_BYTES), file.seek(0, os.SEEK_END)
    most = gateway.settings.limits.recording_upload_bytes
    if size_bytes > most:
        raise errors.TooBigError(f"A recording has at most {most} bytes.")
    is_right = {
        "webm": head.startswith(EBML_MARK),
        "mp4": head[4:8] == MP4_MARK,
        "wav": head.startswith(b"RIFF") and head[8:12] == b"WAVE",
    }[suffix]
    if not is_right:
        raise errors.BadRequestError("The file does not match its media type.")
    existing_recording(recording, gateway)  # it may have been deleted since the upload began
    name = f"{names.UPLOAD_STEM}.{suffix}"
    file.seek(0)
    gateway.recordings.keep(recording, name, file, replaces=set(UPLOAD_NAMES))
    return UploadKept(path=name, size_bytes=size_bytes)


@router.get("/{recording_id}/comment", responses=problems(400, 404))
def comment(recording: ExistingId, gateway: GatewayHere) -> Comment:
    """Return the comment, "" if there is none."""
    content = gateway.recordings.read(recording, names.COMMENT_FILE) or b""
    with suppress(UnicodeDecodeError):
        return Comment(comment=content.decode())
    return Comment(comment="")


@router.post(
    "/{recording_id}/comment", dependencies=[OwnerOnly], responses=problems(400, 403, 404, 413, 507)
)
def set_comment(body: Comment, recording: ExistingId, gateway: GatewayHere) -> CommentKept:
    """Replace the comment."""
    text, most = body.comment.strip(), gateway.settings.limits.comment_chars
    if len(text) > most:
        raise errors.TooBigError(f"A comment has at most {most} characters.")
    gateway.recordings.write(recording, names.COMMENT_FILE, text.encode("utf-8", "replace"))
    return CommentKept(len=len(text))


@router.delete("/{recording_id}", dependencies=[OwnerOnly], responses=problems(400, 403, 404, 409))
def delete(recording: ExistingId, gateway: GatewayHere) -> Deleted:
    """Delete a recording; 409 while it is still being written."""
    gateway.recordings.delete(recording)
    return Deleted()
