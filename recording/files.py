"""Tells whole media files from broken ones by their bytes, and mends WAV files cut short.

Knows only what the recorder itself writes; never decodes anything.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recording.folder import mend_head

# A WAV file of 16-bit PCM. Source: Microsoft, "Multiple channel audio data and WAVE files".
WAV_HEADER: Final = struct.Struct("<4sI4s4sIHHIIHH4sI")
WAV_HEADER_BYTES: Final = WAV_HEADER.size
RIFF_HEAD_BYTES: Final = 8  # not counted in the size the file claims
FORMAT_BYTES: Final = 16
PCM_FORMAT: Final = 1
SAMPLE_BYTES: Final = 2
SAMPLE_BITS: Final = 16
MAX_CHANNELS: Final = 2
MAX_WAV_BYTES: Final = 2**32 - 1

# How pictures begin, and the suffix each gets. Sources: ITU T.81, RFC 2083, RFC 9649, GIF89a,
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
        return round(1_000 * self.samples / self.rate_hz)


def wav_header(rate_hz: int, channels: int, data_bytes: int) -> bytes:
    frame_bytes = channels * SAMPLE_BYTES
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
    """Return a WAV file's shape, first repairing a truncated one.

    Returns:
        None if it is missing, empty, or not a file the recorder wrote.
    """
    try:
        with path.open("rb") as file:
            head = file.read(WAV_HEADER_BYTES)
        size_bytes = path.stat().st_size
    except FileNotFoundError:
        return None
    if len(head) < WAV_HEADER_BYTES:
        return None
    fields = WAV_HEADER.unpack(head)
    channels, rate_hz, claimed_bytes = fields[6], fields[7], fields[-1]
    if not 1 <= channels <= MAX_CHANNELS or rate_hz == 0:
        return None
    if head != wav_header(rate_hz, channels, min(claimed_bytes, MAX_WAV_BYTES - WAV_HEADER_BYTES)):
        return None
    samples = (size_bytes - WAV_HEADER_BYTES) // (channels * SAMPLE_BYTES)
    if samples == 0:
        return None
    data_bytes = samples * channels * SAMPLE_BYTES
    if claimed_bytes != data_bytes or size_bytes != WAV_HEADER_BYTES + data_bytes:
        fixed = wav_header(rate_hz, channels, data_bytes)
        mend_head(path, fixed, WAV_HEADER_BYTES + data_bytes)
    return WavShape(rate_hz, channels, samples)


def picture_extension(head: bytes) -> str | None:
    """Return a picture's format from its first `PICTURE_HEAD_BYTES` bytes; None if it is none."""
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    return next((name for mark, name in PICTURE_MARKS if head.startswith(mark)), None)


def is_whole_picture(path: Path) -> bool:
    """Whether a picture has its beginning and its end."""
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
        case _:  # their ends carry no mark
            return True


def is_whole_mp4(path: Path) -> bool:
    """Whether all boxes of an MP4 file are there, by their sizes."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            position, kinds = 0, set()
            while position < size_bytes:
                file.seek(position)
                head = file.read(BOX_HEAD.size)
                if len(head) < BOX_HEAD.size:
                    return False
                box_bytes, kind = BOX_HEAD.unpack(head)
                if box_bytes == 1:  # the size follows, in 64 bits
                    long_size = file.read(LONG_BOX.size)
                    box_bytes = LONG_BOX.unpack(long_size)[0] if len(long_size) == 8 else 0
                if box_bytes < BOX_HEAD.size:
                    return False
                kinds.add(kind)
                position += box_bytes
    except FileNotFoundError:
        return False
    return position == size_bytes and {b"moov", b"mdat"} <= kinds
