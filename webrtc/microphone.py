"""What a peer says, as the gateway takes it: 48 kHz from Opus become 24 kHz mono."""

from __future__ import annotations

from typing import Final

import numpy as np
import soxr  # type: ignore[import-untyped]  # ships no type information
from av import AudioFrame

from webrtc.playout import RATE_HZ

OPUS_HZ: Final = 48_000
GAP_MAX_SAMPLES: Final = OPUS_HZ  # of silence for what was lost; a longer gap is a pause
# Source: docs of soxr; a short filter, which adds less delay.
QUALITY: Final = "MQ"


class Microphone:
    """Turns decoded frames into samples, with silence where packets were lost."""

    def __init__(self) -> None:
        """Begin with the first frame."""
        self._resampler = soxr.ResampleStream(OPUS_HZ, RATE_HZ, 1, dtype="int16", quality=QUALITY)
        self._next_pts: int | None = None
        self.lost_samples = 0

    def heard(self, frame: AudioFrame) -> bytes:
        """Return a frame's samples, 16-bit mono at 24 kHz, after what is missing before it."""
        channels = len(frame.layout.channels)
        samples = frame.to_ndarray().reshape(-1, channels).mean(axis=1).astype(np.int16)
        pts = frame.pts or 0
        gap = 0 if self._next_pts is None else pts - self._next_pts
        self._next_pts = pts + len(samples)
        if 0 < gap <= GAP_MAX_SAMPLES:
            self.lost_samples += gap
            samples = np.concatenate([np.zeros(gap, np.int16), samples])
        made: bytes = self._resampler.resample_chunk(samples).astype("<i2").tobytes()
        return made
