"""Opens media containers (MP4, WebM, MP3, …) with PyAV without following references.

Playlists and other formats that refer to further files or addresses are refused, because the
content is untrusted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import av
from av.container import InputContainer

MediaSource = str | Path | bytes
"""A file of the server, or the content of one."""

# FFmpeg's names of demuxers that follow no references to other files.
READABLE_FORMATS: Final = (
    "3gp,aac,ac3,aiff,amr,ape,asf,au,avi,caf,dsf,dts,eac3,flac,flv,m4a,matroska,mov,mp3,mp4,"
    "mpeg,mpegts,ogg,tta,voc,w64,wav,webm,wv"
)
MICROSECONDS: Final = 1_000_000  # the unit of a container's duration


@contextmanager
def opened(source: MediaSource) -> Iterator[BinaryIO]:
    """Open a regular file, or wrap its content; raises `FileNotFoundError` for anything else."""
    if isinstance(source, bytes):
        yield BytesIO(source)
        return
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{path.name!r} is not a file")
    # Unbuffered, so that a library reading from the descriptor starts at the same position.
    with path.open("rb", buffering=0) as file:
        yield file


def open_container(file: BinaryIO) -> InputContainer:
    """Open a container; raises `FFmpegError` if its format is refused, or it is damaged."""
    # The file is already open, so no protocol is needed.
    options = {"format_whitelist": READABLE_FORMATS, "protocol_whitelist": "none"}
    return av.open(file, mode="r", options=options, metadata_errors="replace")


def container_duration_s(container: InputContainer) -> float | None:
    return None if container.duration is None else container.duration / MICROSECONDS
