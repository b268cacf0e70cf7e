"""The user's turn in a live call: its audio, and the silence since its last speech."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from core.audio import FloatArray
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.vad import MODEL_WINDOW_SAMPLES, SileroVad

THRESHOLD: Final = 0.5  # of the probability of speech
PREROLL_S: Final = 0.4  # of audio before the first speech that belongs to the turn
TURN_MAX_S: Final = 28.0  # Whisper's window is 30 s; a longer turn is answered at this length
WINDOW_S: Final = MODEL_WINDOW_SAMPLES / INPUT_SAMPLE_RATE_HZ


@dataclass(frozen=True)
class TurnSnapshot:
    """A turn at one moment; attributes as of `UserTurn`."""

    audio: FloatArray
    speech_s: float
    began_s: float


class UserTurn:
    """The current turn of the user, at most `TURN_MAX_S` of audio; then it is full.

    Attributes:
        received_s: length of all audio received in the call.
        speech_s: speech in the turn.
        silence_s: since the last speech.
        began_s: start of the turn's speech, on the clock of `received_s`.
    """

    def __init__(self, detector: SileroVad) -> None:
        self._detector = detector
        self._state = detector.initial_state()
        self._rest = np.zeros(0, np.float32)  # less than a window
        self._windows: list[FloatArray] = []
        self.received_s = self.speech_s = self.silence_s = self.began_s = 0.0

    @property
    def has_speech(self) -> bool:
        return self.speech_s > 0

    @property
    def is_full(self) -> bool:
        return sum(map(len, self._windows)) >= TURN_MAX_S * INPUT_SAMPLE_RATE_HZ

    @property
    def audio(self) -> FloatArray:
        """Audio of the turn so far, [T] float32 at 16 kHz."""
        return np.concatenate([*self._windows, self._rest])

    @property
    def snapshot(self) -> TurnSnapshot:
        audio = np.concatenate([*self._windows, self._rest[:0]])
        return TurnSnapshot(audio, self.speech_s, self.began_s)

    def add(self, samples: FloatArray) -> None:
        """Add audio, [T] float32 at 16 kHz; blocks."""
        received = np.concatenate([self._rest, samples])
        count = len(received) // MODEL_WINDOW_SAMPLES
        windows, self._rest = np.split(received, [count * MODEL_WINDOW_SAMPLES])
        found, self._state = self._detector.probabilities(windows, self._state)
        for window, probability in zip(np.split(windows, max(1, count)), found, strict=False):
            self._take(window, is_voice=bool(probability >= THRESHOLD))

    def clear(self) -> None:
        self._windows = []
        self.speech_s = self.silence_s = 0.0

    def resume(self, cleared: TurnSnapshot) -> None:
        """Prepend a turn that was cleared before it was over."""
        self._windows.insert(0, cleared.audio)
        self.speech_s += cleared.speech_s
        self.began_s = cleared.began_s

    def _take(self, window: FloatArray, *, is_voice: bool) -> None:
        if is_voice:
            if not self.has_speech:
                self.began_s = self.received_s
            self.speech_s += WINDOW_S
        self.received_s += WINDOW_S
        self.silence_s = 0.0 if is_voice else self.silence_s + WINDOW_S
        self._windows.append(window)
        if not self.has_speech:
            del self._windows[: -int(PREROLL_S / WINDOW_S)]
