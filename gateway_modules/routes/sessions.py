"""Routes of recordings: metadata, files, comments, uploads, deletion."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from contextlib import suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated, BinaryIO, Final, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field
from starlette.datastructures import UploadFile
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from core import errors
from core.schemas.common import WireModel
from core.schemas.queue import SESSION_SECRET_HEADER
from gateway_modules.service import Gateway, GatewayHere
from gateway_modules.web.responses import NO_STORE, problems
from gateway_modules.web.security import mark_admin
from recording import names
from recording.folder import LowDiskError, is_owner, parse_meta
from recording.listing import touch_access
from recording.names import media_type
from recording.records import Status
from recording.store import Download, StoredFile, file_answer, zipped

ID_MAX_CHARS = 200  # the exact limit is checked by `check_recording_id`
DIRECT_TYPES = ("audio/", "image/", "video/")  # browsers follow no redirect of subtitles
# Uploaded files must never run as a page or a script.
ASSET_HEADERS = (("Content-Security-Policy", "default-src 'none'; media-src 'self'; sandbox"),)

UPLOAD_FIELD: Final = "browser_recording"  # added to `meta.json`
HEAD_BYTES: Final = 12
NO_ROOM: Final = "The file is refused: the disk is nearly full."
FIELDS_MAX: Final = 16  # of a form, besides the file

UPLOAD_SUFFIXES: Final = MappingProxyType(
    {"video/webm": "webm", "video/mp4": "mp4", "audio/wav": "wav", "audio/webm": "webm"}
)
UPLOAD_NAMES: Final = frozenset(f"{names.UPLOAD_STEM}.{end}" for end in UPLOAD_SUFFIXES.values())
EBML_MARK: Final = b"\x1a\x45\xdf\xa3"  # source: RFC 8794, section 11.2.1
MP4_MARK: Final = b"ftyp"  # after the box's size; source: ISO/IEC 14496-12, section 4.3

RecordingId = Annotated[str, Path(max_length=ID_MAX_CHARS)]

router = APIRouter(prefix="/api/sessions", tags=["recordings"])


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


class RecordingFiles:
    """A recording's files for clients, confined to its folder. Blocks on disk or network."""

    def __init__(self, gateway: Gateway, recording_id: str) -> None:
        self._id = recording_id
        self._recordings = gateway.recordings
        self._state = gateway.store
        self._limits = gateway.settings.limits

    def check(self) -> None:
        self._recordings.check(self._id)
        touch_access(self._state, self._id)

    def is_owner(self, secret: str) -> bool:
        return is_owner(self._recordings.read(self._id, names.OWNER_FILE), secret)

    def meta(self) -> bytes:
        content = self._recordings.read(self._id, names.META_FILE)
        if content is None:
            raise errors.NotFoundError("This recording has no metadata.")
        files = self._recordings
        upload = next((one for one in sorted(UPLOAD_NAMES) if files.file(self._id, one)), None)
        if upload is None:
            return content
        with suppress(ValueError):  # damaged: returned unchanged
            known = json.loads(content)
            if isinstance(known, dict):
                return json.dumps(known | {UPLOAD_FIELD: upload}).encode()
        return content

    def recording(self) -> bytes:
        """Return the timeline, of a resumable session as far as it goes; else StillWritingError."""
        is_running = self._recordings.is_running(self._id)
        if is_running:
            meta = parse_meta(self._recordings.read(self._id, names.META_FILE))
            if meta is not None and meta.status is Status.FINALIZING:
                raise errors.StillWritingError()
        content = self._recordings.read(self._id, names.RECORDING_FILE)
        if content is not None:
            return content
        if is_running:
            raise errors.StillWritingError()
        raise errors.NotFoundError("This recording is empty.")

    def asset(self, name: str) -> StoredFile:
        parts = name.split("/")
        if "\0" in name or "\\" in name or ".." in parts or not all(parts):
            raise errors.BadRequestError("This is not a path within a recording.")
        file = self._recordings.file(self._id, name)
        if file is None:
            raise errors.NotFoundError("There is no such file.")
        return file

    def comment(self) -> str:
        with suppress(UnicodeDecodeError):
            return (self._recordings.read(self._id, names.COMMENT_FILE) or b"").decode()
        return ""

    def set_comment(self, comment: str) -> int:
        text = comment.strip()
        most = self._limits.comment_chars
        if len(text) > most:
            raise errors.TooBigError(f"A comment has at most {most} characters.")
        self._recordings.write(self._id, names.COMMENT_FILE, text.encode("utf-8", "replace"))
        return len(text)

    def keep_upload(self, file: BinaryIO, media_type: str) -> UploadKept:
        """Store a complete file under a name for its type, after checking the type."""
        suffix = UPLOAD_SUFFIXES.get(media_type.partition(";")[0].strip().lower())
        if suffix is None:
            raise errors.BadRequestError("Only WebM, MP4 and WAV are accepted.")
        head, size_bytes = file.read(HEAD_BYTES), file.seek(0, os.SEEK_END)
        if size_bytes > self._limits.recording_upload_bytes:
            most = self._limits.recording_upload_bytes
            raise errors.TooBigError(f"A recording has at most {most} bytes.")
        is_right = {
            "webm": head.startswith(EBML_MARK),
            "mp4": head[4:8] == MP4_MARK,
            "wav": head.startswith(b"RIFF") and head[8:12] == b"WAVE",
        }[suffix]
        if not is_right:
            raise errors.BadRequestError("The file does not match its media type.")
        self.check()
        name = f"{names.UPLOAD_STEM}.{suffix}"
        file.seek(0)
        try:
            self._recordings.keep(self._id, name, file, replaces=set(UPLOAD_NAMES))
        except LowDiskError as error:
            raise errors.RecordingStoppedError(NO_ROOM) from error
        return UploadKept(path=name, size_bytes=size_bytes)


async def files_of(recording_id: RecordingId, gateway: GatewayHere) -> RecordingFiles:
    if not gateway.settings.recording.enabled:
        raise errors.NotFoundError("Recording is switched off on this server.")
    files = RecordingFiles(gateway, recording_id)
    await asyncio.to_thread(files.check)
    return files


Files = Annotated[RecordingFiles, Depends(files_of)]


async def only_owner(recording_id: RecordingId, request: Request, gateway: GatewayHere) -> None:
    """Accept the recording's owner and administrators; ForbiddenError for others.

    The recording's id, which links share, grants read access only.
    """
    if gateway.access.is_admin(request):
        mark_admin(request.scope)
        return
    files = await files_of(recording_id, gateway)
    secret = request.headers.get(SESSION_SECRET_HEADER, "")
    if not await asyncio.to_thread(files.is_owner, secret):
        raise errors.ForbiddenError()


OwnerOnly = Depends(only_owner)
"""Marks a route that only a recording's owner and administrators may use."""


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json", headers={"Cache-Control": "no-cache"})


@router.get("/{recording_id}", responses=problems(400, 404))
async def meta(files: Files) -> Response:
    """Return the metadata: `meta.json`."""
    return _json(await asyncio.to_thread(files.meta))


@router.get("/{recording_id}/recording", responses=problems(400, 404, 409))
async def recording(files: Files) -> Response:
    """Return the timeline: `recording.json`; 409 while it is still being written."""
    return _json(await asyncio.to_thread(files.recording))


@router.head("/{recording_id}/assets/{path:path}", include_in_schema=False)
@router.get(
    "/{recording_id}/assets/{path:path}", response_class=FileResponse, responses=problems(400, 404)
)
async def asset(path: str, request: Request, files: Files) -> Response:
    """Return a file of the recording, or the requested range of it.

    With `recording.direct`, audio, images and videos are redirected to the object store (302).
    """
    file = await asyncio.to_thread(files.asset, path)
    kind, is_head = media_type(file.name), request.method == "HEAD"
    if file.signed_url is not None and kind.startswith(DIRECT_TYPES) and not is_head:
        url = await asyncio.to_thread(file.signed_url)
        return RedirectResponse(url, HTTPStatus.FOUND, {"Cache-Control": NO_STORE})
    return file_answer(file, request.headers, kind, dict(ASSET_HEADERS), is_head=is_head)


@router.get(
    "/{recording_id}/download", response_class=StreamingResponse, responses=problems(400, 404)
)
async def download(recording_id: RecordingId, gateway: GatewayHere, _: Files) -> StreamingResponse:
    """Return the whole recording as a zip file, created while it is sent."""
    found = await asyncio.to_thread(gateway.recordings.files, recording_id)
    headers = {"Content-Disposition": f'attachment; filename="{recording_id}.zip"'}
    return Download(zipped(found), headers)


@router.post(
    "/{recording_id}/upload-recording",
    dependencies=[OwnerOnly],
    responses=problems(400, 403, 404, 409, 413, 429, 507),
)
async def upload(
    recording_id: RecordingId, request: Request, gateway: GatewayHere, files: Files
) -> UploadKept:
    """Store the browser's own recording: WebM, MP4 or WAV in a part named `file`."""
    length = request.headers.get("content-length", "")
    most = gateway.settings.limits.recording_upload_bytes
    with gateway.uploads.counted(recording_id):
        wanted_bytes = int(length) if length.isdecimal() else most
        if shutil.disk_usage(tempfile.gettempdir()).free < wanted_bytes:  # it is buffered there
            raise errors.RecordingStoppedError(NO_ROOM)
        async with request.form(max_files=1, max_fields=FIELDS_MAX) as form:
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise errors.BadRequestError("Send the file as multipart/form-data, named `file`.")
            kind = file.content_type or ""
            return await asyncio.to_thread(files.keep_upload, file.file, kind)


@router.get("/{recording_id}/comment", responses=problems(400, 404))
async def comment(files: Files) -> Comment:
    """Return the comment, "" if there is none."""
    return Comment(comment=await asyncio.to_thread(files.comment))


@router.post(
    "/{recording_id}/comment", dependencies=[OwnerOnly], responses=problems(400, 403, 404, 413)
)
async def set_comment(body: Comment, files: Files) -> CommentKept:
    """Replace the comment."""
    return CommentKept(len=await asyncio.to_thread(files.set_comment, body.comment))


@router.delete("/{recording_id}", dependencies=[OwnerOnly], responses=problems(400, 403, 404, 409))
async def delete(recording_id: RecordingId, gateway: GatewayHere, _: Files) -> Deleted:
    """Delete a recording; 409 while it is still being written."""
    await asyncio.to_thread(gateway.recordings.delete, recording_id)
    return Deleted()
