"""Windowed-sinc resampling: lengths, level, pass band."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from MiniCPMO45.token2wav.voices import resample

EDGE = 64  # samples at each end that see the silence outside


def _tone(frequency_hz: float, rate_hz: int, n_samples: int) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * frequency_hz * np.arange(n_samples) / rate_hz).astype(np.float32)


@given(
    n_samples=st.integers(1, 400),
    from_hz=st.sampled_from([8_000, 16_000, 22_050, 44_100]),
    to_hz=st.sampled_from([16_000, 24_000, 48_000]),
)
def test_length_follows_the_rates(n_samples: int, from_hz: int, to_hz: int) -> None:
    audio = np.ones(n_samples, np.float32)
    assert resample(audio, from_hz, to_hz).size == math.ceil(n_samples * to_hz / from_hz)


@pytest.mark.parametrize("frequency_hz", [50.0, 440.0, 3_000.0])
def test_a_tone_stays_the_same_tone(frequency_hz: float) -> None:
    found = resample(_tone(frequency_hz, 16_000, 4_000), 16_000, 24_000)
    expected = _tone(frequency_hz, 24_000, 6_000)
    np.testing.assert_allclose(found[EDGE:-EDGE], expected[EDGE:-EDGE], atol=2e-3)


def test_tones_above_the_new_half_rate_vanish() -> None:
    found = resample(_tone(11_000.0, 24_000, 6_000), 24_000, 16_000)
    assert np.abs(found[EDGE:-EDGE]).max() < 0.02


def test_equal_rates_change_nothing() -> None:
    audio = _tone(440.0, 16_000, 100)
    np.testing.assert_array_equal(resample(audio, 16_000, 16_000), audio)


@pytest.mark.parametrize(
    ("shape", "from_hz", "to_hz"), [((2, 10), 16_000, 24_000), ((10,), 0, 24_000), ((10,), 1, -1)]
)
def test_nonsense_is_refused(shape: tuple[int, ...], from_hz: int, to_hz: int) -> None:
    with pytest.raises(ValueError, match="cannot resample"):
        resample(np.zeros(shape, np.float32), from_hz, to_hz)
