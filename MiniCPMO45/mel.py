"""Triangular mel filters, shared by every part that looks at audio as a spectrogram.

Pure arithmetic; never reads audio and never touches a device.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

# Slaney's mel scale: linear up to 1 kHz, logarithmic above.
# Source: M. Slaney, Auditory Toolbox, Technical Report 1998-010, section "mfcc".
LINEAR_HZ_PER_MEL = 200.0 / 3.0
BREAK_HZ = 1000.0
BREAK_MEL = BREAK_HZ / LINEAR_HZ_PER_MEL
LOG_STEP = np.log(6.4) / 27.0  # natural log of the frequency ratio per mel above the break


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # whoever asks first, training may ask later
def mel_filter_bank(
    sample_rate_hz: int, n_fft: int, n_mels: int, f_min_hz: float, f_max_hz: float
) -> Tensor:
    """Return triangular filters on Slaney's scale, each of unit area in Hz.

    The result is shared between callers and must not be written to.

    Args:
        sample_rate_hz: sample rate of the audio.
        n_fft: length of the Fourier transform in samples.
        n_mels: number of filters.
        f_min_hz: lower edge of the first filter.
        f_max_hz: upper edge of the last filter.

    Returns:
        float32 [n_mels, n_fft // 2 + 1] on the CPU.

    Raises:
        ValueError: the band is empty or reaches above half the sample rate.
    """
    if not 0 <= f_min_hz < f_max_hz <= sample_rate_hz / 2:
        raise ValueError(f"mel band {f_min_hz}..{f_max_hz} Hz at {sample_rate_hz} Hz")
    bins_hz = np.linspace(0.0, sample_rate_hz / 2, n_fft // 2 + 1)
    edges_hz = _edges_hz(n_mels, f_min_hz, f_max_hz)
    widths_hz = np.diff(edges_hz)
    distances_hz = edges_hz[:, None] - bins_hz[None, :]  # [n_mels + 2, bins]
    rising = -distances_hz[:-2] / widths_hz[:-1, None]  # [n_mels, bins]
    falling = distances_hz[2:] / widths_hz[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    unit_area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    return torch.from_numpy((triangles * unit_area[:, None]).astype(np.float32))


def filter_centres_hz(n_mels: int, f_min_hz: float, f_max_hz: float) -> np.ndarray:
    """Return where the filters of a bank are highest: float64 [n_mels], rising."""
    return _edges_hz(n_mels, f_min_hz, f_max_hz)[1:-1]


def _edges_hz(n_mels: int, f_min_hz: float, f_max_hz: float) -> np.ndarray:
    """Return where filters begin, culminate and end, each in its neighbours' middle."""
    edges_mel = np.linspace(_mel_from_hz(f_min_hz), _mel_from_hz(f_max_hz), n_mels + 2)
    return _hz_from_mel(edges_mel)


def _mel_from_hz(frequency_hz: float) -> float:
    if frequency_hz < BREAK_HZ:
        return frequency_hz / LINEAR_HZ_PER_MEL
    return float(BREAK_MEL + np.log(frequency_hz / BREAK_HZ) / LOG_STEP)


def _hz_from_mel(mel: np.ndarray) -> np.ndarray:
    above = BREAK_HZ * np.exp(LOG_STEP * (mel - BREAK_MEL))
    return np.where(mel < BREAK_MEL, mel * LINEAR_HZ_PER_MEL, above)
