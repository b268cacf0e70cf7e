"""The nano's speech codes: a phoneme and a pitch class in one number, 25 a second.

Silence keeps its published number, which serving writes itself; codes between the alphabet and it
are never used. Knows nothing of audio or models.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from MiniCPMO45.configuration_minicpmo import SpeechTiming

TIMING = SpeechTiming()
SILENCE = TIMING.silence_code
# American English in the notation of the target voice's pronunciation dictionary.
PHONEMES = "AIOQWYTabdefhijklmnoprstuvwxzæðŋɐɑɒɔəɚɛɜɡɪɹɾʃʊʌʒʔʤʧθᵊᵻ"
UNVOICED = 0
# Sextiles of the target voice's fundamental, read off 12 minutes of speech.
PITCH_EDGES_HZ = (165.0, 179.0, 194.0, 214.0, 242.0)
PITCH_CLASSES = len(PITCH_EDGES_HZ) + 2  # unvoiced, then one more class than edges
CODES_USED = (*range(len(PHONEMES) * PITCH_CLASSES), SILENCE)


@dataclass(frozen=True)
class Sound:
    """What a code stands for: one of `PHONEMES`, or nothing for silence, and a pitch class.

    0 is unvoiced, then classes rise.
    """

    phoneme: str
    pitch_class: int = UNVOICED

    @property
    def code(self) -> int:
        if not self.phoneme:
            return SILENCE
        return PHONEMES.index(self.phoneme) * PITCH_CLASSES + self.pitch_class


def sound_of(code: int) -> Sound:
    """Return what a code stands for.

    Raises:
        ValueError: the alphabet does not use this code.
    """
    if code == SILENCE:
        return Sound("")
    if not 0 <= code < len(PHONEMES) * PITCH_CLASSES:
        raise ValueError(f"speech code {code} is not in the nano's alphabet")
    return Sound(PHONEMES[code // PITCH_CLASSES], code % PITCH_CLASSES)


def pitch_class(f0_hz: float) -> int:
    """Return the class of a fundamental; 0 Hz is unvoiced."""
    return UNVOICED if f0_hz <= 0 else 1 + bisect_right(PITCH_EDGES_HZ, f0_hz)
