"""Access to the recordings of a data folder; files as HTTP responses; the cleanup schedule.

Blocks on the disk, except for the schedule: call from a thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from io import RawIOBase
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Final

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from core.errors import NotFoundError
from core.files import atomic_write, replacing
from recording.folder import check_room, is_live
from recording.listing import (
    CleanupReport,
    ListedRecording,
    cleanup_sessions,
    delete_recording,
    list_folders,
)
from recording.names import asset_path, recording_folder, recording_folders
from recording.records import Record

logger: Final = logging.getLogger(__name__)

NO_RECORDING: Final = "There is no such recording."
BLOCK_BYTES: Final = 64 * 1024  # of a file, read and sent at once
FIRST_RUN_S: Final = 60.0  # source: docs/specification/service.md#5.7
MIN_PAUSE_S: Final = 60.0  # sessions that end together cause one cleanup
MAX_PAUSE_S: Final = 3_600.0  # the longest wait of a recording that a full disk left unfinished


class FilesListed(Record):
    """The files of a recording that may be served, with their sizes."""

    sizes: dict[str, int]


@dataclass(frozen=True)
class StoredFile:
    """A file of a recording; `mark` identifies its version, `signed_url` makes a public URL."""

    name: str
    size_bytes: int
    mark: str
    blocks: Callable[[int, int], Generator[bytes, None, None]]  # yields bytes [start, stop)
    signed_url: Callable[[], str] | None = None


class FolderStore:
    """The recordings of a data folder; `ObjectStore` has the same interface for an object store.

    Errors of disk or network are OSErrors. `media_origin` is the origin of signed URLs; "" if
    clients are never redirected.
    """

    media_origin = ""

    def __init__(self, data_dir: Path, min_free_gb: float = 0.0) -> None:
        self._data_dir = data_dir
        self._min_free_gb = min_free_gb

    def check(self, recording_id: str) -> None:
        existing_folder(self._data_dir, recording_id)

    def is_running(self, recording_id: str) -> bool:
        return is_live(self._folder(recording_id))

    def read(self, recording_id: str, name: str) -> bytes | None:
        """Return the content of a small file, also of a hidden one; None if it does not exist."""
        with suppress(OSError):
            return (self._folder(recording_id) / name).read_bytes()
        return None

    def file(self, recording_id: str, name: str) -> StoredFile | None:
        """Return a file that may be served; None if it is hidden or does not exist."""
        return file_in(self._folder(recording_id), name)

    def files(self, recording_id: str) -> list[StoredFile]:
        return files_in(self._folder(recording_id))

    def write(self, recording_id: str, name: str, content: bytes) -> None:
        """Write or replace a small file; without content, remove it."""
        path = self._folder(recording_id) / name
        if content:
            with unless_deleted():
                atomic_write(path, content)
        else:
            path.unlink(missing_ok=True)

    def keep(self, recording_id: str, name: str, file: BinaryIO, *, replaces: set[str]) -> None:
        """Store a file and remove those it replaces; LowDiskError if the disk is nearly full."""
        folder = self._folder(recording_id)
        with unless_deleted():
            check_room(folder, self._min_free_gb)
            with replacing(folder / name) as part, part.open("wb") as kept:
                shutil.copyfileobj(file, kept)
        for other in replaces - {name}:
            (folder / other).unlink(missing_ok=True)

    def delete(self, recording_id: str) -> None:
        with unless_deleted():
            delete_recording(self._folder(recording_id))

    def listed(self) -> list[ListedRecording]:
        return list_folders(recording_folders(self._data_dir))

    def clean(self, days: float, gigabytes: float, *, dry_run: bool = False) -> CleanupReport:
        return cleanup_sessions(self._data_dir, days, gigabytes, dry_run=dry_run)

    def close(self) -> None:
        pass

    def _folder(self, recording_id: str) -> Path:
        return recording_folder(self._data_dir, recording_id)


def existing_folder(data_dir: Path, recording_id: str) -> Path:
    folder = recording_folder(data_dir, recording_id)
    if not folder.is_dir() or folder.is_symlink():
        raise NotFoundError(NO_RECORDING)
    return folder


@contextmanager
def unless_deleted() -> Iterator[None]:
    """Raise NotFoundError if somebody else has deleted the recording meanwhile."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFoundError(NO_RECORDING) from error


def files_in(folder: Path) -> list[StoredFile]:
    """Return the files that may be served; NotFoundError if the recording is deleted meanwhile."""
    # `Path.rglob` would fail at a folder that vanishes.
    paths = [Path(root, name) for root, _, files in os.walk(folder) for name in files]
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    found = [file_in(folder, name) for name in names]
    if not folder.is_dir():
        raise NotFoundError(NO_RECORDING)
    return [one for one in found if one is not None]


def file_in(folder: Path, name: str, *, hidden: tuple[str, ...] = ()) -> StoredFile | None:
    """Return a file; None if it is missing or hidden, unless its name is in `hidden`."""
    path = folder / name if name in hidden else asset_path(folder, name)
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:  # it vanished
        return None

    def blocks(start: int, stop: int) -> Generator[bytes, None, None]:
        with open(path, "rb") as file:
            file.seek(start)
            for begin in range(start, stop, BLOCK_BYTES):
                yield file.read(min(BLOCK_BYTES, stop - begin))

    return StoredFile(name, found.st_size, f"{found.st_mtime_ns:x}-{found.st_size:x}", blocks)


class CleanupSchedule:
    def __init__(self, clean: Callable[[], CleanupReport]) -> None:
        self._clean = clean
        self._requested = asyncio.Event()

    def request(self) -> None:
        self._requested.set()

    async def run(self) -> None:
        """Clean up repeatedly, in a thread, until cancelled."""
        await asyncio.sleep(FIRST_RUN_S)
        while True:
            self._requested.clear()
            try:
                report = await asyncio.to_thread(self._clean)
            except Exception:  # the next run must come in any case
                logger.exception("cleanup of recordings failed")
            else:
                level = logging.INFO if report.deleted or report.recovered else logging.DEBUG
                logger.log(level, "cleanup of recordings: %s", report.to_json())
            await asyncio.sleep(MIN_PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_PAUSE_S - MIN_PAUSE_S):
                    await self._requested.wait()


# More digits than any file's size has would be slow to parse, and `int` refuses thousands.
ONE_RANGE: Final = re.compile(r"bytes=(\d{0,19})-(\d{0,19})", re.ASCII)


class Download(StreamingResponse):
    def __init__(
        self,
        blocks: Generator[bytes, None, None],
        headers: Mapping[str, str],
        media_type: str = "application/zip",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        super().__init__(blocks, status, headers, media_type)
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._blocks.close()


def file_answer(
    file: StoredFile,
    request_headers: Headers,
    media_type: str,
    headers: Mapping[str, str] | None = None,
    *,
    is_head: bool = False,
) -> Response:
    """Return a file, or one range of it; several ranges, or an invalid one, get the whole file.

    Source: RFC 9110, sections 13.1.5 and 14.
    """
    size, tag = file.size_bytes, f'"{file.mark}"'
    given = {**(headers or {}), "Accept-Ranges": "bytes", "ETag": tag}
    is_current = request_headers.get("if-range", tag) == tag
    span = _span(request_headers.get("range", ""), size) if is_current else None
    if span is not None and span[0] >= span[1]:
        headers_416 = {"Content-Range": f"bytes */{size}"}
        return Response(None, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers_416)
    start, stop = span or (0, size)
    status = HTTPStatus.OK if span is None else HTTPStatus.PARTIAL_CONTENT
    if span is not None:
        given["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    given["Content-Length"] = str(stop - start)
    if is_head:
        return Response(None, status, given, media_type)
    return Download(file.blocks(start, stop), given, media_type, status)


def _span(range_header: str, size: int) -> tuple[int, int] | None:
    """Parse a range to [start, stop), empty if unsatisfiable; None for the whole file."""
    found = ONE_RANGE.fullmatch(range_header.replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size


class _Sink(RawIOBase):
    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    # Any: a buffer; its type comes with Python 3.12.
    def write(self, block: Any) -> int:
        self._parts.append(bytes(block))
        return len(self._parts[-1])

    def take(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def zipped(files: Iterable[StoredFile]) -> Generator[bytes, None, None]:
    """Yield an uncompressed zip file of these files, block by block, without buffering.

    Vanished files are left out. Deflate at level 0 instead of "stored": the size follows the
    content (PKWARE APPNOTE 6.3, section 4.3.9), and streaming readers need its end marker.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for file in files:
            blocks = file.blocks(0, file.size_bytes)
            try:
                first = next(blocks, b"")
            except FileNotFoundError:
                continue
            with archive.open(file.name, "w", force_zip64=True) as target:
                for block in chain([first], blocks):
                    target.write(block)
                    yield sink.take()
            yield sink.take()
    yield sink.take()
