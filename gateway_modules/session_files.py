"""Downloads of and uploads to recordings. Blocks on the disk or the network.

No path of a client is opened that does not lie in the recording it asks for.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
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
from core.files import FILE_MODE, SAFE_FLAGS
from core.store import Store
from recording.folder import LowDiskError, is_owner, parse_meta
from recording.listing import touch_access
from recording.names import (
    COMMENT_FILE,
    META_FILE,
    OWNER_FILE,
    RECORDING_FILE,
    UPLOAD_STEM,
)
from recording.objects import RecordingStore
from recording.records import Status
from recording.store import StoredFile

UPLOADS_MAX: Final = 10  # to one recording, since the gateway started
UPLOADED_TO_MAX: Final = 10_000  # recordings whose uploads are counted at once
UPLOAD_FIELD: Final = "browser_recording"  # added to what `meta.json` says
HEAD_BYTES: Final = 12

UPLOAD_SUFFIXES: Final = MappingProxyType(
    {"video/webm": "webm", "video/mp4": "mp4", "audio/wav": "wav", "audio/webm": "webm"}
)
UPLOAD_NAMES: Final = frozenset(f"{UPLOAD_STEM}.{end}" for end in UPLOAD_SUFFIXES.values())
EBML_MARK: Final = b"\x1a\x45\xdf\xa3"  # source: RFC 8794, section 11.2.1
MP4_MARK: Final = b"ftyp"  # after the box's size; source: ISO/IEC 14496-12, section 4.3


class SessionFiles:
    """The recordings, for clients; the object lives as long as the gateway.

    Uploads are bounded: one at a time to a recording, `UPLOADS_MAX` in all, and of what they bring
    one file is kept. Of more than `UPLOADED_TO_MAX` recordings the one uploaded to longest ago
    starts its count anew.
    """

    def __init__(
        self,
        recordings: RecordingStore,
        state: Store,
        *,
        comment_chars: int,
        upload_bytes: int,
        min_free_gb: float,
    ) -> None:
        """`state` keeps accesses; with less than `min_free_gb` free no upload is accepted."""
        self._recordings = recordings
        self._state = state
        self._comment_chars = comment_chars
        self._upload_bytes = upload_bytes
        self._min_free_gb = min_free_gb
        self._uploads: OrderedDict[str, int] = OrderedDict()  # by recording, latest last
        self._uploading: set[str] = set()

    def check(self, recording_id: str) -> None:
        """Record the access; NotFoundError without such a recording."""
        self._recordings.check(recording_id)
        touch_access(self._state, recording_id)

    def is_owner(self, recording_id: str, secret: str) -> bool:
        self.check(recording_id)
        return is_owner(self._recordings.read(recording_id, OWNER_FILE), secret)

    def meta(self, recording_id: str) -> bytes:
        """Return `meta.json` with the name of the browser's own recording, if there is one."""
        self.check(recording_id)
        content = self._recordings.read(recording_id, META_FILE)
        if content is None:
            raise NotFoundError("This recording says nothing about itself.")
        names = sorted(UPLOAD_NAMES)
        upload = next((name for name in names if self._recordings.file(recording_id, name)), None)
        if upload is None:
            return content
        with suppress(ValueError):  # damaged: it is given as it is
            known = json.loads(content)
            if isinstance(known, dict):
                return json.dumps(known | {UPLOAD_FIELD: upload}).encode()
        return content

    def recording(self, recording_id: str) -> bytes:
        """Return `recording.json`; of a conversation that may continue, as it is so far.

        Raises StillWritingError if it is not complete yet.
        """
        self.check(recording_id)
        is_running = self._recordings.is_running(recording_id)
        if is_running:
            meta = parse_meta(self._recordings.read(recording_id, META_FILE))
            if meta is not None and meta.status is Status.FINALIZING:
                raise StillWritingError()
        content = self._recordings.read(recording_id, RECORDING_FILE)
        if content is not None:
            return content
        if is_running:
            raise StillWritingError()
        raise NotFoundError("This recording holds nothing.")

    def asset(self, recording_id: str, name: str) -> StoredFile:
        parts = name.split("/")
        if "\0" in name or "\\" in name or ".." in parts or not all(parts):
            raise BadRequestError("This is no path inside a recording.")
        self.check(recording_id)
        file = self._recordings.file(recording_id, name)
        if file is None:
            raise NotFoundError("There is no such file.")
        return file

    def all_of(self, recording_id: str) -> list[StoredFile]:
        self.check(recording_id)
        return self._recordings.files(recording_id)

    def comment(self, recording_id: str) -> str:
        self.check(recording_id)
        with suppress(UnicodeDecodeError):
            return (self._recordings.read(recording_id, COMMENT_FILE) or b"").decode()
        return ""

    def set_comment(self, recording_id: str, comment: str) -> int:
        """Keep a comment, or delete it if it is empty; return its length in characters."""
        self.check(recording_id)
        text = comment.strip()
        if len(text) > self._comment_chars:
            raise TooBigError(f"A comment has at most {self._comment_chars} characters.")
        self._recordings.write(recording_id, COMMENT_FILE, text.encode("utf-8", "replace"))
        return len(text)

    def delete(self, recording_id: str) -> None:
        self.check(recording_id)
        self._recordings.delete(recording_id)

    @contextmanager
    def counted_upload(self, recording_id: str) -> Iterator[None]:
        """Count an upload for the block; called on the event loop.

        Raises:
            SessionInUseError: Another one to this recording is running.
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
        """Receive a browser's own recording, within `counted_upload`.

        Raises:
            BadRequestError: Its media type is not accepted.
            NotFoundError: There is no such recording.
            RecordingStoppedError: The disk is nearly full.
        """
        suffix = UPLOAD_SUFFIXES.get(media_type.partition(";")[0].strip().lower())
        if suffix is None:
            raise BadRequestError("Only WebM, MP4 and WAV are taken.")
        self.check(recording_id)
        try:
            part = self._recordings.part(recording_id, self._min_free_gb)
        except LowDiskError as error:
            raise RecordingStoppedError(
                "The file is not taken: the disk is nearly full."
            ) from error
        keep = partial(self._recordings.keep, recording_id, part, replaces=set(UPLOAD_NAMES))
        return Upload(part, suffix, self._upload_bytes, keep)


class Upload:
    """A file being uploaded; it gets its name when it is complete and of the right type."""

    def __init__(
        self, part: Path, suffix: str, limit_bytes: int, keep: Callable[[str], None]
    ) -> None:
        self._suffix = suffix
        self._limit_bytes = limit_bytes
        self._path = part
        self._keep = keep
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE_FLAGS
        self._file: BinaryIO = os.fdopen(os.open(self._path, flags, FILE_MODE), "wb")
        self._head = b""
        self.size_bytes = 0

    def write(self, block: bytes) -> None:
        """Raises TooBigError or, if it does not begin as its type does, BadRequestError."""
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
        """Name the file, in place of an earlier one; return the name."""
        if len(self._head) < HEAD_BYTES:
            self._check_head()
        self._file.close()
        name = f"{UPLOAD_STEM}.{self._suffix}"
        self._keep(name)
        return name

    def close(self) -> None:
        """Remove an unfinished file; harmless when repeated."""
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
    """Collects the next bytes of a zip file."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []
        self._position = 0

    # Any: whatever holds bytes; the type for that comes with Python 3.12.
    def write(self, block: Any) -> int:
        part = bytes(block)
        self._parts.append(part)
        self._position += len(part)
        return len(part)

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Nothing waits anywhere else."""

    def taken(self) -> bytes:
        parts, self._parts = self._parts, []
        return b"".join(parts)


def zipped(files: Iterable[StoredFile]) -> Generator[bytes, None, None]:
    """Yield a zip file of these files, a block at a time; nothing is compressed or kept.

    Files that vanish meanwhile are left out. Source: the format streams
    because sizes may follow the content (PKWARE APPNOTE 6.3, section 4.3.9). Readers that stream
    have to find the end of such content themselves: deflate marks it, also at level 0, which
    compresses nothing.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive:
        for file in files:
            blocks = file.blocks(0, file.size_bytes)
            try:
                block = next(blocks, b"")
            except FileNotFoundError:
                continue
            with archive.open(file.name, "w", force_zip64=True) as target:
                while block:
                    target.write(block)
                    yield sink.taken()
                    block = next(blocks, b"")
            yield sink.taken()
    yield sink.taken()
