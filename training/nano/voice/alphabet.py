"""The embedded model's speech codes: a phoneme and a pitch class in one number, 25 per second.

Silence has its published number; codes between the alphabet and silence are unused.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from MiniCPMO45.configuration_minicpmo import SpeechTiming

TIMING = SpeechTiming()
SILENCE = TIMING.silence_code
# American English in the notation of the target voice's dictionary.
PHONEMES = "AIOQWYTabdefhijklmnoprstuvwxzæðŋɐɑɒɔəɚɛɜɡɪɹɾʃʊʌʒʔʤʧθᵊᵻ"
UNVOICED = 0
# Sextiles of the target voice's F0, measured over 12 minutes of speech.
PITCH_EDGES_HZ = (165.0, 179.0, 194.0, 214.0, 242.0)
PITCH_CLASSES = len(PITCH_EDGES_HZ) + 2  # with unvoiced
CODES_USED = (*range(len(PHONEMES) * PITCH_CLASSES), SILENCE)


@dataclass(frozen=True)
class Sound:
    """Meaning of a code: one of `PHONEMES`, or "" for silence, and a rising pitch class from 1."""

    phoneme: str
    pitch_class: int = UNVOICED

    @property
    def code(self) -> int:
        if not self.phoneme:
            return SILENCE
        return PHONEMES.index(self.phoneme) * PITCH_CLASSES + self.pitch_class


def sound_of(code: int) -> Sound:
    """Return the meaning of a code.

    Raises:
        ValueError: the code is unused.
    """
    if code == SILENCE:
        return Sound("")
    if not 0 <= code < len(PHONEMES) * PITCH_CLASSES:
        raise ValueError(f"speech code {code} is not in the nano's alphabet")
    return Sound(PHONEMES[code // PITCH_CLASSES], code % PITCH_CLASSES)


def pitch_class(f0_hz: float) -> int:
    """Return the pitch class of an F0; 0 Hz is unvoiced."""
    return UNVOICED if f0_hz <= 0 else 1 + bisect_right(PITCH_EDGES_HZ, f0_hz)
