"""What the fake model sees and says: nothing of a picture, and a second of a tone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

import numpy as np

from core.audio import FloatArray, encode_wire_audio
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ

TONE_HZ: Final = 440.0
TONE_PEAK: Final = 0.2
TONE_S: Final = 1.0  # as long as a duplex unit
TONE_TOKENS: Final = 25  # of speech; source: model specification


@dataclass(frozen=True)
class FakeSeenPicture:
    """A picture that was pretended to be looked at: one slice of so many tokens."""

    TOKENS: ClassVar[int] = 64

    max_slices: int


def tone() -> FloatArray:
    """Return the sound of one piece, [T] at 24 kHz."""
    times_s = np.arange(int(TONE_S * OUTPUT_SAMPLE_RATE_HZ)) / OUTPUT_SAMPLE_RATE_HZ
    return (TONE_PEAK * np.sin(2 * np.pi * TONE_HZ * times_s)).astype(np.float32)


@cache
def tone_base64() -> str:
    """Return the sound of one piece as wire audio."""
    return encode_wire_audio(tone())


@cache
def tone_halves() -> list[str]:
    """Return the same in two parts."""
    return [encode_wire_audio(part) for part in np.split(tone(), 2)]
