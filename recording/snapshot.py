"""Settings as a recording keeps them: everything but the sound and pictures in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from recording.records import Settings

MEDIA_SUFFIXES: Final = ("_base64", "_data")
MEDIA_NAMES: Final = frozenset({"audio", "data", "frame", "frame_base64_list"})
BASE64_CHARS: Final = 4  # carry three bytes
BASE64_BYTES: Final = 3


def without_media(config: Mapping[str, Any]) -> Settings:
    """Return settings in which each sound or picture is replaced by what identifies it.

    Args:
        config: A message or settings as plain JSON values; any depth.

    Returns:
        The same with `{"sha256": …, "duration_s": …}` for Base64 text; the duration is that of
        float32 at 16 kHz, which all sound in settings is.
    """
    return {key: _kept(key, value) for key, value in config.items()}


def _kept(key: str, value: Any) -> Any:
    # Any: plain JSON values of whatever settings there are.
    if isinstance(value, str):
        is_media = key in MEDIA_NAMES or key.endswith(MEDIA_SUFFIXES)
        return _described(value) if is_media and value else value
    if isinstance(value, Mapping):
        return without_media(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_kept(key, item) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    return value


def _described(text: str) -> Settings:
    size_bytes = len(text) * BASE64_BYTES // BASE64_CHARS - text[-2:].count("=")
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "duration_s": round(size_bytes / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ, 1),
    }
