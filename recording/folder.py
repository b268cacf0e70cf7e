"""Files in a recording's folder: JSON, media, lock and owner.

Media are checked for completeness without decoding; truncated WAV files are repaired. Blocks on
the disk: call from a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import hmac
import os
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from core.files import SAFE_FLAGS, atomic_write, opened, replacing, write_all
from core.schemas.common import MS_PER_S
from recording import names
from recording.records import Meta, Recording

GIGABYTE: Final = 10**9
JSON_INDENT: Final = 2  # source: docs/specification/service.md#5.1
ADDED_FILES: Final = (
    *(names.META_FILE, names.OWNER_FILE, names.COMMENT_FILE),
    *(names.UPLOAD_STEM, f".{names.UPLOAD_STEM}", names.SEALED_FILE),
)

_RECORDING: Final[TypeAdapter[Recording]] = TypeAdapter(Recording)


def read_meta(folder: Path) -> Meta | None:
    with contextlib.suppress(OSError):
        return parse_meta((folder / names.META_FILE).read_bytes())
    return None


def parse_meta(content: bytes | None) -> Meta | None:
    with contextlib.suppress(ValidationError):
        return Meta.model_validate_json(content or b"")
    return None


def write_meta(folder: Path, meta: Meta) -> None:
    atomic_write(folder / names.META_FILE, meta.to_json(JSON_INDENT).encode(), is_durable=True)


def read_recording(folder: Path) -> Recording | None:
    with contextlib.suppress(OSError, ValidationError):
        return _RECORDING.validate_json((folder / names.RECORDING_FILE).read_bytes())
    return None


def write_recording(folder: Path, recording: Recording) -> None:
    content = recording.to_json(JSON_INDENT).encode()
    atomic_write(folder / names.RECORDING_FILE, content, is_durable=True)


def content_size_bytes(folder: Path) -> int:
    """Return the size of the recorder's files, without `meta.json` and files added later."""
    return folder_size_bytes(folder) - _added_size_bytes(folder)


def total_size_bytes(folder: Path, meta: Meta | None) -> int:
    """Return the size of all files, for a finished recording from `meta.json`."""
    if meta is None or meta.size_bytes is None or not meta.is_over:
        return folder_size_bytes(folder)
    return meta.size_bytes + _added_size_bytes(folder)


def _added_size_bytes(folder: Path) -> int:
    total_bytes = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(ADDED_FILES):
                with contextlib.suppress(OSError):
                    total_bytes += entry.stat(follow_symlinks=False).st_size
    return total_bytes


def write_owner(folder: Path, secret: str) -> None:
    atomic_write(folder / names.OWNER_FILE, _hash(secret))


def is_owner(kept: bytes | None, secret: str) -> bool:
    """Whether `kept` is the hash of this secret; False if the recording has no owner."""
    return kept is not None and hmac.compare_digest(kept, _hash(secret))


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest().encode()


class RecordingLock:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with contextlib.ExitStack() as failed:
            # Renamed only when held, so it is never visible unlocked.
            with replacing(folder / names.LOCK_FILE) as unfinished:
                self._descriptor = os.open(unfinished, os.O_RDONLY | SAFE_FLAGS)
                failed.callback(os.close, self._descriptor)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            failed.pop_all()

    def release(self) -> None:
        remove_lock(self._folder)
        os.close(self._descriptor)


def remove_lock(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / names.LOCK_FILE).unlink()


def is_live(folder: Path) -> bool:
    """Whether a process still writes a recording; a lock that cannot be checked counts as held."""
    try:
        with opened(folder / names.LOCK_FILE, os.O_RDONLY | SAFE_FLAGS) as descriptor:
            # Shared, so that concurrent checks do not mistake each other for the writer.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


class LowDiskError(OSError):
    """Less of the disk is free than `min_free_gb`."""


def check_room(folder: Path, min_free_gb: float) -> None:
    """Raises LowDiskError if less than `min_free_gb` is free; 0 checks nothing."""
    if min_free_gb and shutil.disk_usage(folder).free < min_free_gb * GIGABYTE:
        raise LowDiskError(errno.ENOSPC, f"less than {min_free_gb:g} GB are free")


def append_sound(path: Path, rate_hz: int, samples: bytes) -> None:
    """Append PCM to a mono WAV file, which is always readable."""
    path.parent.mkdir(exist_ok=True)
    with opened(path, os.O_WRONLY | os.O_CREAT | SAFE_FLAGS) as descriptor:
        if os.lseek(descriptor, 0, os.SEEK_END) == 0:
            write_all(descriptor, wav_header(rate_hz, 1, 0))
        write_all(descriptor, samples)
        # The header comes last: until then the file has its old length.
        data_bytes = os.lseek(descriptor, 0, os.SEEK_CUR) - WAV_HEADER_BYTES
        os.lseek(descriptor, 0, os.SEEK_SET)
        write_all(descriptor, wav_header(rate_hz, 1, data_bytes))


def folder_size_bytes(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def names_in(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the recorder's files, owner's hash included, and of added files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    found = [path.relative_to(folder).as_posix() for path in paths]
    found = [name for name in found if name == names.OWNER_FILE or not names.is_hidden(name)]
    added = [name for name in found if names.is_added(name)]
    return [name for name in found if name not in added], added


def newest_change_s(folder: Path) -> float:
    """Return the latest modification of a folder or a file directly in it, Unix seconds."""
    newest = folder.stat().st_mtime
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


# A WAV file of 16-bit PCM. Source: Microsoft, "Multiple channel audio data and WAVE files".
WAV_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")
WAV_HEADER_BYTES: Final = WAV_HEADER.size
RIFF_HEAD_BYTES: Final = 8  # not counted in the size the file claims
FORMAT_BYTES: Final = 16
PCM_FORMAT: Final = 1
PCM16_BYTES: Final = 2  # one sample
SAMPLE_BITS: Final = 16
MAX_CHANNELS: Final = 2
MAX_WAV_BYTES: Final = 2**32 - 1

# Magic bytes of pictures, and their suffixes. Sources: ITU T.81, RFC 2083, RFC 9649, GIF89a,
# TIFF 6.0; BMP by its usual mark.
PICTURE_MARKS: Final = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
)
PICTURE_HEAD_BYTES: Final = 12
JPEG_END: Final = b"\xff\xd9"
JPEG_TAIL_BYTES: Final = 1_024  # some cameras write a little after the end
PNG_END: Final = b"IEND\xaeB`\x82"
BOX_HEAD: Final = struct.Struct(">I4s")
LONG_BOX: Final = struct.Struct(">Q")


@dataclass(frozen=True)
class WavShape:
    rate_hz: int
    channels: int
    samples: int  # per channel

    @property
    def duration_ms(self) -> int:
        return round(MS_PER_S * self.samples / self.rate_hz)


def wav_header(rate_hz: int, channels: int, data_bytes: int) -> bytes:
    frame_bytes = channels * PCM16_BYTES
    return WAV_HEADER.pack(
        b"RIFF",
        WAV_HEADER_BYTES - RIFF_HEAD_BYTES + data_bytes,
        b"WAVE",
        b"fmt ",
        FORMAT_BYTES,
        PCM_FORMAT,
        channels,
        rate_hz,
        rate_hz * frame_bytes,
        frame_bytes,
        SAMPLE_BITS,
        b"data",
        data_bytes,
    )


def readable_wav(path: Path) -> WavShape | None:
    """Return a WAV file's shape, repaired if truncated; None if missing, empty or not ours."""
    try:
        with path.open("rb") as file:
            head = file.read(WAV_HEADER_BYTES)
            size_bytes = file.seek(0, os.SEEK_END)
        fields = WAV_HEADER.unpack(head)
    except (FileNotFoundError, struct.error):
        return None
    channels, rate_hz, claimed_bytes = fields[6], fields[7], fields[-1]
    if not 1 <= channels <= MAX_CHANNELS or rate_hz == 0:
        return None
    if head != wav_header(rate_hz, channels, min(claimed_bytes, MAX_WAV_BYTES - WAV_HEADER_BYTES)):
        return None
    samples = (size_bytes - WAV_HEADER_BYTES) // (channels * PCM16_BYTES)
    if samples == 0:
        return None
    data_bytes = samples * channels * PCM16_BYTES
    if claimed_bytes != data_bytes or size_bytes != WAV_HEADER_BYTES + data_bytes:
        with opened(path, os.O_WRONLY | SAFE_FLAGS) as descriptor:
            os.ftruncate(descriptor, WAV_HEADER_BYTES + data_bytes)
            write_all(descriptor, wav_header(rate_hz, channels, data_bytes))
    return WavShape(rate_hz, channels, samples)


def picture_extension(head: bytes) -> str | None:
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    return next((name for mark, name in PICTURE_MARKS if head.startswith(mark)), None)


def is_whole_picture(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(PICTURE_HEAD_BYTES)
            size_bytes = file.seek(0, 2)
            file.seek(max(0, size_bytes - JPEG_TAIL_BYTES))
            tail = file.read()
    except FileNotFoundError:
        return False
    match picture_extension(head):
        case "jpg":
            return JPEG_END in tail
        case "png":
            return tail.rstrip(b"\0").endswith(PNG_END)
        case "webp":
            return size_bytes >= RIFF_HEAD_BYTES + int.from_bytes(head[4:8], "little")
        case None:
            return False
        case _:  # no end marker
            return True


def is_whole_mp4(path: Path) -> bool:
    """Whether an MP4 file's boxes are complete, by their sizes."""
    position, kinds = 0, set()
    with contextlib.suppress(FileNotFoundError, struct.error), path.open("rb") as file:
        size_bytes = file.seek(0, 2)
        while position < size_bytes:
            file.seek(position)
            box_bytes, kind = BOX_HEAD.unpack(file.read(BOX_HEAD.size))
            if box_bytes == 1:  # the size follows, in 64 bits
                [box_bytes] = LONG_BOX.unpack(file.read(LONG_BOX.size))
            if box_bytes < BOX_HEAD.size:
                return False
            kinds.add(kind)
            position += box_bytes
        return position == size_bytes and {b"moov", b"mdat"} <= kinds
    return False
