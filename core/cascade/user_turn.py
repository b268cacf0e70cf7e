"""The user's turn in a live call: its audio, and how long ago its speech ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from core.audio import FloatArray
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad

THRESHOLD: Final = 0.5  # of the probability of speech
PREROLL_S: Final = 0.4  # kept in front of the first speech
TURN_MAX_S: Final = 28.0  # Whisper reads 30 s at once; a longer turn is answered where it is
WINDOW_S: Final = MODEL_WINDOW_SAMPLES / INPUT_SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Heard:
    """A turn so far; see `UserTurn`. `sound` is [T] float32 at 16 kHz."""

    sound: FloatArray
    speech_s: float
    began_s: float


class UserTurn:
    """The user's turn while it lasts; bounded: the turn is full at `TURN_MAX_S`.

    Attributes:
        received_s: length of all received audio.
        speech_s: speech in the turn.
        silence_s: since the last speech.
        began_s: when the turn's speech began, on the clock of `received_s`.
    """

    def __init__(self, detector: SileroVad) -> None:
        self._detector = detector
        self._state = detector.initial_state()
        self._rest = np.zeros(0, np.float32)  # less than a window
        self._turn: list[FloatArray] = []
        self.received_s = self.speech_s = self.silence_s = self.began_s = 0.0

    @property
    def has_speech(self) -> bool:
        return self.speech_s > 0

    @property
    def is_full(self) -> bool:
        """Nothing more of the turn can be kept."""
        return sum(map(len, self._turn)) >= TURN_MAX_S * INPUT_SAMPLE_RATE_HZ

    @property
    def sound(self) -> FloatArray:
        """The turn so far, [T] float32 at 16 kHz."""
        return np.concatenate([*self._turn, self._rest])

    @property
    def heard(self) -> Heard:
        return Heard(np.concatenate([*self._turn, self._rest[:0]]), self.speech_s, self.began_s)

    def add(self, samples: FloatArray) -> None:
        """Add audio, [T] float32 at 16 kHz; blocks."""
        received = np.concatenate([self._rest, samples])
        count = len(received) // MODEL_WINDOW_SAMPLES
        windows, self._rest = np.split(received, [count * MODEL_WINDOW_SAMPLES])
        found, self._state = self._detector.probabilities(windows, self._state)
        for window, probability in zip(np.split(windows, max(1, count)), found, strict=False):
            self._take(window, is_voice=bool(probability >= THRESHOLD))

    def clear(self) -> None:
        self._turn = []
        self.speech_s = self.silence_s = 0.0

    def resume(self, cleared: Heard) -> None:
        """Put back in front what was cleared: the turn was not over."""
        self._turn.insert(0, cleared.sound)
        self.speech_s += cleared.speech_s
        self.began_s = cleared.began_s

    def _take(self, window: FloatArray, *, is_voice: bool) -> None:
        if is_voice:
            if not self.has_speech:
                self.began_s = self.received_s
            self.speech_s += WINDOW_S
        self.received_s += WINDOW_S
        self.silence_s = 0.0 if is_voice else self.silence_s + WINDOW_S
        self._turn.append(window)
        if not self.has_speech:
            del self._turn[: -int(PREROLL_S / WINDOW_S)]
