"""Spoken answers in the formats that OpenAI's interface names."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

from gateway_modules.openai.chat_request import AnswerFormat
from gateway_modules.voices.ref_audio_registry import SoundDecoder

PCM16_MAX: Final = 32_767
# Container and codec as libsndfile calls them.
FILES: Final = MappingProxyType(
    {
        "wav": ("WAV", "PCM_16"),
        "mp3": ("MP3", "MPEG_LAYER_III"),
        "flac": ("FLAC", "PCM_16"),
        "opus": ("OGG", "OPUS"),
    }
)


def spoken(pieces: Sequence[bytes], answer_format: AnswerFormat, decoder: SoundDecoder) -> str:
    """Return a spoken answer as Base64; blocks while it is encoded.

    Args:
        pieces: Little-endian float32 samples, mono, 24 kHz, in order.
        answer_format: "pcm16" is no file: little-endian 16-bit samples at 24 kHz.
        decoder: Encodes files in another process.
    """
    samples = b"".join(pieces)
    if answer_format == "pcm16":
        content = pcm16(samples)
    else:
        content = decoder.encode(samples, *FILES[answer_format])
    return base64.b64encode(content).decode("ascii")


def pcm16(samples: bytes) -> bytes:
    """Turn little-endian float32 samples into 16-bit ones, 5 ms for a second of sound.

    The gateway does without numpy, and a stream's pieces are too short to start a process for each.
    """
    floats = array("f", samples)
    if sys.byteorder == "big":
        floats.byteswap()
    words = array("h", [round(max(-1.0, min(1.0, value)) * PCM16_MAX) for value in floats])
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()
