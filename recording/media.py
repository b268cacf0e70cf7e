"""Conversion of a session's media to files, and their removal from settings."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from core.audio import FloatArray, read_audio
from core.errors import AudioCorruptError, PictureError
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from recording.folder import PICTURE_HEAD_BYTES, picture_extension
from recording.records import Settings

Sound = str | bytes | FloatArray
"""Samples [T] in -1..1; or little-endian float32, or a WAV file, as bytes or Base64."""

MEDIA_SUFFIXES: Final = ("_base64", "_data")  # of settings' names
MEDIA_NAMES: Final = frozenset({"audio", "data", "frame", "frame_base64_list"})
BASE64_CHARS: Final = 4  # carry three bytes
BASE64_BYTES: Final = 3
PCM_SCALE: Final = 32_767  # source: docs/specification/service.md#5.1
# Not a valid first sample: as float32 it is far outside -1..1.
WAV_MARK: Final = b"RIFF"


def keep(sound: Sound) -> Sound:
    return np.array(sound, dtype=np.float32) if isinstance(sound, np.ndarray) else sound


def size_bytes(sound: Sound) -> int:
    return sound.nbytes if isinstance(sound, np.ndarray) else len(sound)


def count_samples(sound: Sound) -> int:
    """Return the number of samples without decoding; not for WAV files."""
    if isinstance(sound, np.ndarray):
        return len(sound)
    if isinstance(sound, bytes):
        return len(sound) // SAMPLE_BYTES
    return _decoded_bytes(sound) // SAMPLE_BYTES


def encode_pcm16(sound: Sound, sample_rate_hz: int) -> bytes:
    """Return 16-bit little-endian PCM: clipped to -1..1, times 32767.

    WAV files of another rate are resampled. Raises AudioError for invalid audio.
    """
    samples = np.nan_to_num(_samples(sound, sample_rate_hz), nan=0.0, posinf=1.0, neginf=-1.0)
    scaled: npt.NDArray[np.float32] = np.rint(np.clip(samples, -1.0, 1.0) * PCM_SCALE)
    return scaled.astype("<i2").tobytes()


def _samples(sound: Sound, sample_rate_hz: int) -> FloatArray:
    if isinstance(sound, np.ndarray):
        return sound
    raw = sound if isinstance(sound, bytes) else _raw(sound)
    if raw.startswith(WAV_MARK):
        return read_audio(raw, sample_rate_hz=sample_rate_hz)
    whole_bytes = len(raw) - len(raw) % SAMPLE_BYTES
    return np.frombuffer(raw[:whole_bytes], dtype="<f4").astype(np.float32)


def _raw(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise AudioCorruptError("The audio is not valid Base64.") from error


Picture = bytes | str
"""An encoded picture or video, or its Base64."""

HEAD_CHARS: Final = 16  # Base64 of PICTURE_HEAD_BYTES


def picture_suffix(picture: Picture) -> str | None:
    if isinstance(picture, bytes):
        return picture_extension(picture[:PICTURE_HEAD_BYTES])
    try:
        return picture_extension(base64.b64decode(picture[:HEAD_CHARS], validate=True))
    except (binascii.Error, ValueError):
        return None


def content_bytes(content: Picture) -> bytes:
    if isinstance(content, bytes):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise PictureError("The picture is not valid Base64.") from error


def without_media(config: Mapping[str, Any]) -> Settings:
    """Replace sounds and pictures in settings, at any depth, by their hashes.

    Base64 text becomes `{"sha256": …, "duration_s": …}`, the duration being that of float32 at
    16 kHz, the format of all audio in settings.
    """
    return {key: _without_media(key, value) for key, value in config.items()}


def _without_media(key: str, value: Any) -> Any:
    # Any: plain JSON values of whatever settings there are.
    if isinstance(value, str):
        is_media = key in MEDIA_NAMES or key.endswith(MEDIA_SUFFIXES)
        return _described(value) if is_media and value else value
    if isinstance(value, Mapping):
        return without_media(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_without_media(key, item) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    return value


def _described(text: str) -> Settings:
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "duration_s": round(_decoded_bytes(text) / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ, 1),
    }


def _decoded_bytes(text: str) -> int:
    return len(text) * BASE64_BYTES // BASE64_CHARS - text[-2:].count("=")
