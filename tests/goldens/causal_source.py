"""Excitation of the causal vocoder: harmonics whose phase runs on from piece to piece.

Unlike in `source.py` the phase of a mel frame holds over all its samples, because a stream cannot
interpolate towards a mel frame it has not seen.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from MiniCPMO45.token2wav.config import HiFTConfig


class CausalHarmonicSource(nn.Module):
    """Merges the harmonics of a piece of a stream into its excitation."""

    def __init__(self, config: HiFTConfig) -> None:
        super().__init__()
        self.config = config
        self.l_linear = nn.Linear(config.nb_harmonics + 1, 1)

    def forward(self, f0: Tensor, phase: Tensor) -> tuple[Tensor, Tensor]:
        """Excite the next mel frames.

        Args:
            f0: fundamental per mel frame in Hz, float32 [B, T].
            phase: cycles at the end of the last mel frame, float64 [B, 1, harmonics + 1].

        Returns:
            Excitation [B, T * samples_per_frame], and the phase at its end.
        """
        config, hop = self.config, self.config.samples_per_frame
        order = torch.arange(1, config.nb_harmonics + 2, device=f0.device, dtype=f0.dtype)
        step = (f0[:, :, None] * order / config.sampling_rate).remainder(1)  # cycles per sample
        cycles = step.double().cumsum(dim=1) * hop + phase  # [B, T, harmonics + 1]
        sines = (cycles.remainder(1) * 2 * math.pi).sin().to(f0.dtype)
        is_voiced = f0[:, :, None] > config.nsf_voiced_threshold
        waves = (sines * config.nsf_alpha * is_voiced).repeat_interleave(hop, dim=1)
        excitation = self.l_linear(waves).tanh().squeeze(-1)  # [B, L]
        return excitation, cycles[:, -1:].remainder(1)
