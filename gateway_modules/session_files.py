"""Recorded sessions as files to give away and to take in. Blocks on the disk.

No path of a client is opened that does not lie in the recording it asks for.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Final

from core.errors import (
    BadRequestError,
    NotFoundError,
    RateLimitedError,
    RecordingStoppedError,
    SessionInUseError,
    StillWritingError,
    TooBigError,
)
from core.files import FILE_MODE, SAFE_FLAGS, atomic_write
from core.store import Store
from recording.cleanup import delete_recording
from recording.folder import LowDiskError, check_room, is_live, is_owner, read_meta
from recording.listing import touch_access
from recording.names import (
    COMMENT_FILE,
    META_FILE,
    RECORDING_FILE,
    UPLOAD_PART_FILE,
    UPLOAD_STEM,
    asset_path,
    recording_folder,
)
from recording.records import Status

UPLOADS_MAX: Final = 10  # to one recording, since the gateway started
UPLOADED_TO_MAX: Final = 10_000  # recordings whose uploads are counted at once
UPLOAD_FIELD: Final = "browser_recording"  # added to what `meta.json` says
BLOCK_BYTES: Final = 64 * 1024  # read, zipped and sent at a time
HEAD_BYTES: Final = 12

# Source: docs/specification/service.md#1.5. Anything else is bytes and never a page.
MEDIA_TYPES: Final = MappingProxyType(
    {
        ".wav": "audio/wav",
        ".jpg": "image/jpeg",
        ".jpeg": "image/jpeg",
        ".png": "image/png",
        ".webm": "video/webm",
        ".mp4": "video/mp4",
        ".mp3": "audio/mpeg",
        ".vtt": "text/vtt",
    }
)
ANY_BYTES: Final = "application/octet-stream"
UPLOAD_SUFFIXES: Final = MappingProxyType(
    {"video/webm": "webm", "video/mp4": "mp4", "audio/wav": "wav", "audio/webm": "webm"}
)
EBML_MARK: Final = b"\x1a\x45\xdf\xa3"  # source: RFC 8794, section 11.2.1
MP4_MARK: Final = b"ftyp"  # after the box's size; source: ISO/IEC 14496-12, section 4.3


class SessionFiles:
    """The recordings of one data folder; the object lives as long as the gateway.

    Uploads are bounded: one at a time to a recording, `UPLOADS_MAX` in all, and of what they bring
    one file is kept. Of more than `UPLOADED_TO_MAX` recordings the one uploaded to longest ago
    starts its count anew.
    """

    def __init__(
        self,
        data_dir: Path,
        store: Store,
        *,
        comment_chars: int,
        upload_bytes: int,
        min_free_gb: float,
    ) -> None:
        """Take where they are.

        Args:
            data_dir: The data folder.
            store: Keeps who was last looked at.
            comment_chars: Longest comment.
            upload_bytes: Largest uploaded file.
            min_free_gb: With less of the disk free no file is taken, GB.
        """
        self._data_dir = data_dir
        self._store = store
        self._comment_chars = comment_chars
        self._upload_bytes = upload_bytes
        self._min_free_gb = min_free_gb
        self._uploads: OrderedDict[str, int] = OrderedDict()  # by recording, latest last
        self._uploading: set[str] = set()

    def folder(self, recording_id: str) -> Path:
        """Return a recording's folder and record the access.

        Raises:
            InvalidSessionIdError: The id may not be used.
            NotFoundError: There is no such recording.
        """
        folder = recording_folder(self._data_dir, recording_id)
        if not folder.is_dir() or folder.is_symlink():
            raise NotFoundError("There is no such recording.")
        touch_access(self._store, recording_id)
        return folder

    def is_owner(self, recording_id: str, secret: str) -> bool:
        """Whether a recording was made by the client that has this secret.

        Raises:
            InvalidSessionIdError: The id may not be used.
            NotFoundError: There is no such recording.
        """
        return is_owner(self.folder(recording_id), secret)

    def meta(self, recording_id: str) -> bytes:
        """Return `meta.json`, and with it the name of the browser's own recording if there is one.

        Raises:
            NotFoundError: There is none.
        """
        folder = self.folder(recording_id)
        try:
            content = (folder / META_FILE).read_bytes()
        except OSError as error:
            raise NotFoundError("This recording says nothing about itself.") from error
        names = (f"{UPLOAD_STEM}.{suffix}" for suffix in sorted(set(UPLOAD_SUFFIXES.values())))
        upload = next((name for name in names if (folder / name).is_file()), None)
        if upload is None:
            return content
        with suppress(ValueError):  # damaged: it is given as it is
            known = json.loads(content)
            if isinstance(known, dict):
                return json.dumps(known | {UPLOAD_FIELD: upload}).encode()
        return content

    def recording(self, recording_id: str) -> bytes:
        """Return `recording.json`; of a conversation that may go on, as it is so far.

        Raises:
            StillWritingError: It is not complete yet.
            NotFoundError: There is none.
        """
        folder = self.folder(recording_id)
        meta = read_meta(folder) if is_live(folder) else None
        if meta is not None and meta.status is Status.FINALIZING:
            raise StillWritingError()
        try:
            return (folder / RECORDING_FILE).read_bytes()
        except OSError as error:
            if is_live(folder):
                raise StillWritingError() from error
            raise NotFoundError("This recording holds nothing.") from error

    def asset(self, recording_id: str, name: str) -> tuple[Path, str]:
        """Return a file of a recording and its media type.

        Raises:
            BadRequestError: The path climbs, is absolute, or cannot be one.
            NotFoundError: There is no such file.
        """
        parts = name.split("/")
        if "\0" in name or "\\" in name or ".." in parts or not all(parts):
            raise BadRequestError("This is no path inside a recording.")
        path = asset_path(self.folder(recording_id), name)
        if path is None:
            raise NotFoundError("There is no such file.")
        return path, MEDIA_TYPES.get(path.suffix.lower(), ANY_BYTES)

    def comment(self, recording_id: str) -> str:
        """Return the comment, "" if there is none."""
        try:
            return (self.folder(recording_id) / COMMENT_FILE).read_text(encoding="utf8")
        except (OSError, UnicodeDecodeError):
            return ""

    def set_comment(self, recording_id: str, comment: str) -> int:
        """Keep a comment, or delete it if it is empty; return its length, characters.

        Raises:
            TooBigError: It is too long.
            OSError: It cannot be kept.
        """
        folder = self.folder(recording_id)
        text = comment.strip()
        if len(text) > self._comment_chars:
            raise TooBigError(f"A comment has at most {self._comment_chars} characters.")
        if text:
            atomic_write(folder / COMMENT_FILE, text.encode("utf-8", "replace"))
        else:
            (folder / COMMENT_FILE).unlink(missing_ok=True)
        return len(text)

    def delete(self, recording_id: str) -> None:
        """Delete a recording.

        Raises:
            NotFoundError: There is none.
            SessionInUseError: It is still being written.
            OSError: It cannot be deleted.
        """
        delete_recording(self.folder(recording_id))

    @contextmanager
    def counted_upload(self, recording_id: str) -> Iterator[None]:
        """Count an upload to a recording for the block. Belongs to the event loop's thread.

        Raises:
            SessionInUseError: Another one to it is running.
            RateLimitedError: There were too many.
        """
        if recording_id in self._uploading:
            raise SessionInUseError("Another file is being uploaded to this recording.")
        count = self._uploads.pop(recording_id, 0)
        self._uploads[recording_id] = min(count + 1, UPLOADS_MAX)
        if count == UPLOADS_MAX:
            raise RateLimitedError(f"A recording takes at most {UPLOADS_MAX} uploads.")
        if len(self._uploads) > UPLOADED_TO_MAX:
            self._uploads.popitem(last=False)
        self._uploading.add(recording_id)
        try:
            yield
        finally:
            self._uploading.remove(recording_id)

    def begin_upload(self, recording_id: str, media_type: str) -> Upload:
        """Take in a browser's own recording, within `counted_upload`.

        Raises:
            BadRequestError: It is of a kind that is not taken.
            NotFoundError: There is no such recording.
            RecordingStoppedError: The disk is nearly full.
            OSError: It cannot be kept.
        """
        suffix = UPLOAD_SUFFIXES.get(media_type.partition(";")[0].strip().lower())
        if suffix is None:
            raise BadRequestError("Only WebM, MP4 and WAV are taken.")
        folder = self.folder(recording_id)
        try:
            check_room(folder, self._min_free_gb)
        except LowDiskError as error:
            raise RecordingStoppedError(
                "The file is not taken: the disk is nearly full."
            ) from error
        return Upload(folder, suffix, self._upload_bytes)


class Upload:
    """One file on its way in: it gets its name only when it is complete and what it says it is."""

    def __init__(self, folder: Path, suffix: str, limit_bytes: int) -> None:
        """Begin a hidden file."""
        self._folder = folder
        self._suffix = suffix
        self._limit_bytes = limit_bytes
        self._path = folder / UPLOAD_PART_FILE
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE_FLAGS
        self._file: BinaryIO = os.fdopen(os.open(self._path, flags, FILE_MODE), "wb")
        self._head = b""
        self.size_bytes = 0

    def write(self, block: bytes) -> None:
        """Add to it.

        Raises:
            TooBigError: It is too large.
            BadRequestError: It does not begin as such a file does.
            OSError: The disk is full.
        """
        self.size_bytes += len(block)
        if self.size_bytes > self._limit_bytes:
            raise TooBigError(f"A recording has at most {self._limit_bytes} bytes.")
        was_short = len(self._head) < HEAD_BYTES
        if was_short:
            self._head = (self._head + block)[:HEAD_BYTES]
        if was_short and len(self._head) == HEAD_BYTES:
            self._check_head()
        self._file.write(block)

    def finish(self) -> str:
        """Give it its name, in place of an earlier one; return the name.

        Raises:
            BadRequestError: It is too short to be such a file.
            OSError: It cannot be kept.
        """
        if len(self._head) < HEAD_BYTES:
            self._check_head()
        self._file.close()
        name = f"{UPLOAD_STEM}.{self._suffix}"
        self._path.replace(self._folder / name)
        for suffix in set(UPLOAD_SUFFIXES.values()) - {self._suffix}:
            (self._folder / f"{UPLOAD_STEM}.{suffix}").unlink(missing_ok=True)
        return name

    def close(self) -> None:
        """Leave nothing behind if it was not finished; doing so twice is fine."""
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _check_head(self) -> None:
        head = self._head
        is_right = {
            "webm": head.startswith(EBML_MARK),
            "mp4": head[4:8] == MP4_MARK,
            "wav": head.startswith(b"RIFF") and head[8:12] == b"WAVE",
        }[self._suffix]
        if not is_right:
            raise BadRequestError("The file is not of the kind it is said to be.")


class _Sink(RawIOBase):
    """Where a zip file is written: collects what is to be sent next."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    # Any: whatever holds bytes; the type for that comes with Python 3.12.
    def write(self, block: Any) -> int:
        """Take a part."""
        part = bytes(block)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        """Say how much was written in all."""
        return self._position

    def flush(self) -> None:
        """Nothing waits anywhere else."""

    def taken(self) -> bytes:
        """Return what was written since the last time."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


def zipped(folder: Path) -> Generator[bytes, None, None]:
    """Yield a zip file of a whole recording, a block at a time; nothing is compressed or kept.

    Files that are hidden, links, or vanish meanwhile are left out. Source: the format streams
    because sizes may follow the content (PKWARE APPNOTE 6.3, section 4.3.9). Readers that stream
    have to find the end of such content themselves: deflate marks it, also at level 0, which
    compresses nothing.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for path in sorted(folder.rglob("*")):
            relative = path.relative_to(folder)
            if any(part.startswith(".") for part in relative.parts) or path.is_symlink():
                continue
            try:
                if not path.is_file():
                    continue
                source = path.open("rb")
            except OSError:
                continue
            name = relative.as_posix()
            with source, archive.open(name, "w", force_zip64=True) as target:
                while block := source.read(BLOCK_BYTES):
                    target.write(block)
                    yield sink.taken()
            yield sink.taken()
    yield sink.taken()
