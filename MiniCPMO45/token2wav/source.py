"""Excitation of the vocoder: a sum of harmonics of the predicted pitch, with noise.

Source: docs/specification/model.md#7.5 (neural source-filter, arXiv:1904.12088).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.token2wav.config import HiFTConfig

UNVOICED_NOISE_SHARE = 3.0  # unvoiced noise is the sine amplitude divided by this


def harmonic_waves(f0: Tensor, noise: Tensor | None, config: HiFTConfig) -> Tensor:
    """Sines of the fundamental and its harmonics, silenced and noisy where unvoiced.

    The phase is summed per frame and interpolated between frame centres; a random phase at the
    first sample would fall out of that, so there is none.

    Args:
        f0: fundamental per mel frame in Hz, float32 [B, F].
        noise: standard normal draws per sample and harmonic [B, L, harmonics + 1], or None for
            no noise.
        config: amplitudes, threshold and rates.

    Returns:
        [B, L, harmonics + 1] with L = F * samples_per_frame.
    """
    per_frame = config.samples_per_frame
    order = torch.arange(1, config.nb_harmonics + 2, device=f0.device, dtype=f0.dtype)
    cycles = (f0[:, None] * order[:, None] / config.sampling_rate) % 1.0  # [B, 9, F]
    phase = cycles.cumsum(2) * (2.0 * math.pi)
    phase = F.interpolate(phase * per_frame, scale_factor=float(per_frame), mode="linear")
    waves = config.nsf_alpha * phase.sin().transpose(1, 2)  # [B, L, 9]
    voiced = (f0 > config.nsf_voiced_threshold).to(f0.dtype)
    voiced = voiced.repeat_interleave(per_frame, dim=1)[:, :, None]  # [B, L, 1]
    waves = waves * voiced
    if noise is None:
        return waves
    unvoiced = config.nsf_alpha / UNVOICED_NOISE_SHARE
    return waves + noise * (voiced * config.nsf_sigma + (1.0 - voiced) * unvoiced)


class HarmonicSource(nn.Module):
    """Merges the harmonics into one excitation signal."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        self.l_linear = nn.Linear(config.nb_harmonics + 1, 1)

    def forward(self, f0: Tensor, noise: Tensor | None) -> Tensor:
        """Make the excitation.

        Args:
            f0: fundamental per mel frame in Hz [B, F].
            noise: see `harmonic_waves`.

        Returns:
            [B, 1, L].
        """
        waves = harmonic_waves(f0, noise, self.config)
        return torch.tanh(self.l_linear(waves)).transpose(1, 2)
