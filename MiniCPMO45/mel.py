"""Triangular mel filters on Slaney's scale, as tensors that all users share."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from transformers import audio_utils


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
    filters = audio_utils.mel_filter_bank(
        n_fft // 2 + 1,
        n_mels,
        f_min_hz,
        f_max_hz,
        sample_rate_hz,
        norm="slaney",
        mel_scale="slaney",
    )
    return torch.from_numpy(filters.T.astype(np.float32))


def filter_centres_hz(n_mels: int, f_min_hz: float, f_max_hz: float) -> np.ndarray:
    """Return where the filters of a bank are highest: float64 [n_mels], rising."""
    ends = [audio_utils.hertz_to_mel(hz, mel_scale="slaney") for hz in (f_min_hz, f_max_hz)]
    edges_mel = np.linspace(ends[0], ends[1], n_mels + 2)
    return np.asarray(audio_utils.mel_to_hertz(edges_mel, mel_scale="slaney"))[1:-1]
