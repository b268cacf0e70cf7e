"""Conversion of a session's media to files, and their removal from settings."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pybase64 import b64decode

from core.audio import FloatArray, from_pcm, read_audio
from core.errors import AudioError, BadPayloadError, PictureError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from recording.folder import PICTURE_HEAD_BYTES, picture_extension
from recording.records import Settings

Sound = bytes | str
"""Little-endian float32 samples [T] in -1..1, or a WAV file of ours; or the Base64 of either."""
Picture = bytes | str
"""An encoded picture or video, or its Base64."""

MEDIA_SUFFIXES: Final = ("_base64", "_data")  # of settings' names
MEDIA_NAMES: Final = frozenset({"audio", "data", "frame", "frame_base64_list"})
BASE64_CHARS: Final = 4  # carry three bytes
BASE64_BYTES: Final = 3
PCM_SCALE: Final = 32_767  # source: docs/specification/service.md#5.1
HEAD_CHARS: Final = 16  # Base64 of PICTURE_HEAD_BYTES


def count_samples(sound: Sound) -> int:
    """Return the number of samples without decoding; not for WAV files."""
    size_bytes = len(sound) if isinstance(sound, bytes) else _decoded_bytes(sound)
    return size_bytes // SAMPLE_BYTES


def encode_pcm16(sound: Sound, sample_rate_hz: int, *, is_wav: bool = False) -> bytes:
    """Return 16-bit little-endian PCM: clipped to -1..1, times 32767.

    `is_wav` is only for files of our own, which are resampled from another rate. It is not read
    from the content: a client's samples may begin like a file, and a worker decodes no client's
    files itself. Raises AudioError for invalid audio.
    """
    raw = _decoded(sound, AudioError("The audio is not valid Base64."))
    if is_wav:
        samples = read_audio(raw, sample_rate_hz=sample_rate_hz)
    else:
        samples = from_pcm(raw[: len(raw) - len(raw) % SAMPLE_BYTES])
    return to_pcm16(np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0)).tobytes()


def to_pcm16(samples: FloatArray) -> npt.NDArray[np.int16]:
    """Convert finite samples [T], clipped to -1..1."""
    scaled: npt.NDArray[np.float32] = np.rint(np.clip(samples, -1.0, 1.0) * PCM_SCALE)
    return scaled.astype("<i2")


def picture_suffix(picture: Picture) -> str | None:
    try:
        head = picture[: PICTURE_HEAD_BYTES if isinstance(picture, bytes) else HEAD_CHARS]
        return picture_extension(content_bytes(head))
    except PictureError:
        return None


def content_bytes(content: Picture) -> bytes:
    return _decoded(content, PictureError("The picture is not valid Base64."))


def _decoded(content: bytes | str, refusal: BadPayloadError) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise refusal from error


# Any: plain JSON values of whatever settings there are.
def without_media(config: Mapping[str, Any]) -> Settings:
    """Replace sounds and pictures in settings, at any depth, by their hashes.

    Base64 text becomes `{"sha256": …, "duration_s": …}`, the duration being that of float32 at
    16 kHz, the format of all audio in settings.
    """
    return {key: _without_media(key, value) for key, value in config.items()}


def _without_media(key: str, value: Any) -> Any:
    match value:
        case str() if value and (key in MEDIA_NAMES or key.endswith(MEDIA_SUFFIXES)):
            duration_s = round(_decoded_bytes(value) / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ, 1)
            return {"sha256": hashlib.sha256(value.encode()).hexdigest(), "duration_s": duration_s}
        case bytes() | bytearray():
            return {"sha256": hashlib.sha256(value).hexdigest()}
        case Mapping():
            return without_media(value)
        case Sequence() if not isinstance(value, str):
            return [_without_media(key, item) for item in value]
    return value


def _decoded_bytes(text: str) -> int:
    return len(text) * BASE64_BYTES // BASE64_CHARS - text[-2:].count("=")
