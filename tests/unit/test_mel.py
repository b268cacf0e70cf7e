"""Mel filters: shape of the triangles, their area, the scale."""

from __future__ import annotations

import math

import numpy as np
import pytest

from MiniCPMO45.processing.mel import mel_filter_bank

# The front ends of this model: Whisper, speech tokenizer, vocoder prompt.
FRONT_ENDS = [
    (16_000, 400, 80, 0.0, 8000.0),
    (16_000, 400, 128, 0.0, 8000.0),
    (24_000, 1920, 80, 0.0, 8000.0),
]


def _hz(mel: float) -> float:
    """Slaney's scale written out: 15 mels of 66.7 Hz, then 27 steps per factor 6.4."""
    return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)


def _mel(hz: float) -> float:
    return hz * 3 / 200 if hz < 1000 else 15 + 27 * math.log(hz / 1000, 6.4)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_filters_are_triangles_between_neighbouring_centres(
    front_end: tuple[int, int, int, float, float],
) -> None:
    rate, n_fft, n_mels, low, high = front_end
    step = (_mel(high) - _mel(low)) / (n_mels + 1)
    edges = [_hz(_mel(low) + i * step) for i in range(n_mels + 2)]
    expected = np.zeros((n_mels, n_fft // 2 + 1))
    for m in range(n_mels):
        left, centre, right = edges[m : m + 3]
        for k in range(n_fft // 2 + 1):
            hz = k * rate / n_fft
            if left < hz <= centre:
                expected[m, k] = (hz - left) / (centre - left)
            elif centre < hz < right:
                expected[m, k] = (right - hz) / (right - centre)
        expected[m] *= 2 / (right - left)
    np.testing.assert_allclose(mel_filter_bank(*front_end).numpy(), expected, atol=1e-8)


def test_wide_filters_have_unit_area() -> None:
    filters = mel_filter_bank(24_000, 4096, 40, 0.0, 12_000.0)
    areas = filters.sum(1) * 24_000 / 4096
    np.testing.assert_allclose(areas.numpy(), 1.0, atol=0.02)


def test_same_arguments_share_one_tensor() -> None:
    assert mel_filter_bank(*FRONT_ENDS[0]) is mel_filter_bank(*FRONT_ENDS[0])


@pytest.mark.parametrize(("low", "high"), [(0.0, 8001.0), (500.0, 500.0), (-1.0, 8000.0)])
def test_an_impossible_band_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="mel band"):
        mel_filter_bank(16_000, 400, 80, low, high)
