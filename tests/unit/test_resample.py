"""Windowed-sinc resampling of a voice from 16 to 24 kHz: length, level, pass band."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from MiniCPMO45.token2wav.voices import to_voice_rate

EDGE = 64  # samples at each end that see the silence outside


def _tone(frequency_hz: float, rate_hz: int, n_samples: int) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * frequency_hz * np.arange(n_samples) / rate_hz).astype(np.float32)


@pytest.mark.parametrize("n_samples", [*range(1, 12), 399, 400])
def test_length_follows_the_rates(n_samples: int) -> None:
    audio = np.ones(n_samples, np.float32)
    assert to_voice_rate(audio).size == math.ceil(n_samples * 1.5)


@pytest.mark.parametrize("frequency_hz", [50.0, 440.0, 3_000.0])
def test_a_tone_stays_the_same_tone(frequency_hz: float) -> None:
    found = to_voice_rate(_tone(frequency_hz, 16_000, 4_000))
    expected = _tone(frequency_hz, 24_000, 6_000)
    np.testing.assert_allclose(found[EDGE:-EDGE], expected[EDGE:-EDGE], atol=2e-3)


def test_an_image_above_the_old_half_rate_vanishes() -> None:
    found = to_voice_rate(_tone(3_000.0, 16_000, 4_000))
    spectrum = np.abs(np.fft.rfft(found[EDGE:-EDGE] * np.hanning(found.size - 2 * EDGE)))
    above = spectrum[len(spectrum) * 9_000 // 12_000 :]
    assert above.max() < 0.01 * spectrum.max()
