"""Input of benchmark conversations: noise and coloured tiles."""

from __future__ import annotations

import numpy as np
from PIL import Image

from MiniCPMO45.processing.mel import UNIT_SAMPLES

NOISE_LEVEL = 0.05  # of the sound, full scale 1
TILE = 8  # pixels; pictures are coloured squares of this size


class Inputs:
    def __init__(self, picture_size: tuple[int, int] | None, seed: int) -> None:
        """Start a sequence; `picture_size` is width and height, None for audio only."""
        self.picture_size = picture_size
        self._random = np.random.default_rng(seed)

    def unit(self) -> tuple[np.ndarray, tuple[Image.Image, ...]]:
        """Return a second of audio, float32 [16000], and its pictures."""
        return self.sound(UNIT_SAMPLES), self.pictures()

    def sound(self, n_samples: int) -> np.ndarray:
        """Return noise, float32 [n] at 16 kHz."""
        return (NOISE_LEVEL * self._random.standard_normal(n_samples)).astype(np.float32)

    def pictures(self) -> tuple[Image.Image, ...]:
        if self.picture_size is None:
            return ()
        width, height = self.picture_size
        tiles = self._random.integers(0, 256, (height // TILE, width // TILE, 3), dtype=np.uint8)
        return (Image.fromarray(tiles).resize((width, height), Image.Resampling.NEAREST),)
