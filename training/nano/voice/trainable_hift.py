"""The vocoder with an inverse transform that a CUDA graph can record.

`torch.istft` asks the device whether its windows cover everything, and waits for the answer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.token2wav.hift import LARGEST_MAGNITUDE, HiFT


class TrainableHiFT(HiFT):
    """Same weights, same results, no waiting."""

    def _istft(self, x: Tensor) -> Tensor:
        n_fft, hop = self.config.n_fft, self.config.hop_len
        n_bins, n_columns = n_fft // 2 + 1, x.shape[2]
        magnitude = x[:, :n_bins].exp().clamp(max=LARGEST_MAGNITUDE)
        angle = x[:, n_bins:].sin()
        spectrum = torch.complex(magnitude * angle.cos(), magnitude * angle.sin())
        window = torch.hann_window(n_fft, device=x.device)
        pieces = torch.fft.irfft(spectrum, n_fft, dim=1) * window[:, None]  # [B, n_fft, columns]
        weights = window.square()[None, :, None].expand(1, n_fft, n_columns)
        size = (1, hop * (n_columns - 1) + n_fft)
        wave, envelope = (
            F.fold(part, size, (1, n_fft), stride=(1, hop))[:, 0, 0] for part in (pieces, weights)
        )
        inner = slice(n_fft // 2, size[1] - n_fft // 2)
        return wave[:, inner] / envelope[:, inner]
