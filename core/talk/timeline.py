"""Both voices of a conversation on one clock: the user on the left, the model on the right."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from core.audio import FloatArray, resample, write_wav
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ

CHANNELS: Final = 2


class Timeline:
    """Where everything said is placed; times are seconds of the input."""

    def __init__(self, user: FloatArray) -> None:
        """Begin with what the user said.

        Args:
            user: float32 [T] at 16 kHz.
        """
        self._user = resample(user, INPUT_SAMPLE_RATE_HZ, OUTPUT_SAMPLE_RATE_HZ)
        self._spoken: list[tuple[int, FloatArray]] = []
        self._free_from = 0

    @property
    def duration_s(self) -> float:
        """Length of the whole, until the last of both has finished."""
        return max(len(self._user), self._free_from) / OUTPUT_SAMPLE_RATE_HZ

    def place(self, waveform: FloatArray, ready_at_s: float) -> float:
        """Let the model say something as soon as it can.

        Args:
            waveform: float32 [T] at 24 kHz.
            ready_at_s: when the input it answers was complete.

        Returns:
            When it starts to be heard, in seconds: at `ready_at_s`, or when what it said before
            has ended.
        """
        start = max(self._free_from, round(ready_at_s * OUTPUT_SAMPLE_RATE_HZ))
        self._spoken.append((start, waveform))
        self._free_from = start + len(waveform)
        return start / OUTPUT_SAMPLE_RATE_HZ

    def cut(self, at_s: float) -> None:
        """Silence what would be heard after `at_s`: the model was interrupted."""
        end = round(at_s * OUTPUT_SAMPLE_RATE_HZ)
        self._spoken = [(start, wave[: end - start]) for start, wave in self._spoken if start < end]
        self._free_from = min(self._free_from, end)

    def mix(self) -> FloatArray:
        """Return both voices, float32 [T, 2] at 24 kHz."""
        stereo = np.zeros((max(len(self._user), self._free_from), CHANNELS), np.float32)
        stereo[: len(self._user), 0] = self._user
        for start, wave in self._spoken:
            stereo[start : start + len(wave), 1] = wave
        return stereo

    def write(self, path: Path) -> None:
        """Write both voices as a stereo WAV file."""
        write_wav(path, self.mix(), OUTPUT_SAMPLE_RATE_HZ)
