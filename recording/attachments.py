"""Encoded pictures and videos as they come over the wire, on their way into files."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from core.errors import PictureError
from recording.files import PICTURE_HEAD_BYTES, picture_extension

Picture = bytes | str
"""An encoded picture or video, or its Base64."""

HEAD_CHARS: Final = 16  # Base64 of PICTURE_HEAD_BYTES
VIDEO_SUFFIX: Final = "mp4"
VIDEO_SUFFIXES: Final = frozenset({VIDEO_SUFFIX, "webm", "mov", "mkv", "avi"})


def picture_suffix(picture: Picture) -> str | None:
    """Return a picture's suffix from its first bytes; None if it is no picture."""
    if isinstance(picture, bytes):
        return picture_extension(picture[:PICTURE_HEAD_BYTES])
    try:
        return picture_extension(base64.b64decode(picture[:HEAD_CHARS], validate=True))
    except (binascii.Error, ValueError):
        return None


def video_suffix(wished: str) -> str:
    """Return a suffix a video may have; an unknown one becomes mp4."""
    known = wished.lower().lstrip(".")
    return known if known in VIDEO_SUFFIXES else VIDEO_SUFFIX


def content_bytes(content: Picture) -> bytes:
    """Return the file's bytes.

    Raises:
        PictureError: The text is not Base64.
    """
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError("The picture is not valid Base64.") from error
