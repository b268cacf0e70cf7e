"""The embedded model's speech codes: a phoneme and a pitch class in one number, 25 per second.

Silence has its published number; codes between the alphabet and silence are unused.
"""

from __future__ import annotations

from bisect import bisect_right

from MiniCPMO45.configuration_minicpmo import TIMING

SILENCE = TIMING.silence_code
# American English in the notation of the target voice's dictionary.
PHONEMES = "AIOQWYTabdefhijklmnoprstuvwxzæðŋɐɑɒɔəɚɛɜɡɪɹɾʃʊʌʒʔʤʧθᵊᵻ"
UNVOICED = 0
# Sextiles of the target voice's F0, measured over 12 minutes of speech.
PITCH_EDGES_HZ = (165.0, 179.0, 194.0, 214.0, 242.0)
PITCH_CLASSES = len(PITCH_EDGES_HZ) + 2  # with unvoiced
CODES_USED = (*range(len(PHONEMES) * PITCH_CLASSES), SILENCE)


def code_of(phoneme: str, pitch: int) -> int:
    """Return the code of one of `PHONEMES` in a pitch class."""
    return PHONEMES.index(phoneme) * PITCH_CLASSES + pitch


def pitch_class(f0_hz: float) -> int:
    """Return the pitch class of an F0, rising from 1; 0 Hz is unvoiced."""
    return UNVOICED if f0_hz <= 0 else 1 + bisect_right(PITCH_EDGES_HZ, f0_hz)
