"""How far a waveform is from another: spectra at several resolutions, and mel spectra."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.processing.mel import mel_filter_bank
from MiniCPMO45.token2wav.voice_features import VOICE_RATE_HZ

RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128), (256, 64))  # n_fft, hop
MEL_BINS = (100, 80, 60, 30)
FLOOR = 1e-5
LOWEST_POWER = 1e-9


class SpectralLoss(nn.Module):
    """Log-mel and log-magnitude distances plus spectral convergence, averaged over resolutions."""

    def __init__(self) -> None:
        super().__init__()
        for n_fft, _ in RESOLUTIONS:
            self.register_buffer(f"window_{n_fft}", torch.hann_window(n_fft), persistent=False)
        for (n_fft, _), bins in zip(RESOLUTIONS, MEL_BINS, strict=True):
            filters = mel_filter_bank(VOICE_RATE_HZ, n_fft, bins, 0.0, VOICE_RATE_HZ / 2)
            self.register_buffer(f"filters_{n_fft}", filters, persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Compare waveforms [B, L].

        Returns:
            Log-mel distance, and the rest.
        """
        mels, rest = [], []
        for n_fft, hop in RESOLUTIONS:
            window = self.get_buffer(f"window_{n_fft}")
            filters = self.get_buffer(f"filters_{n_fft}")
            ours, goal = (_magnitude(wave, n_fft, hop, window) for wave in (made, real))
            mels.append(F.l1_loss(_log(filters @ ours), _log(filters @ goal)))
            rest.append(F.l1_loss(_log(ours), _log(goal)))
            rest.append((ours - goal).norm() / goal.norm().clamp(min=FLOOR))
        return torch.stack(mels).mean(), torch.stack(rest).mean()


def _magnitude(wave: Tensor, n_fft: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(wave, n_fft, hop, window=window, return_complex=True)
    return torch.view_as_real(spectrum).square().sum(-1).clamp(min=LOWEST_POWER).sqrt()


def _log(x: Tensor) -> Tensor:
    return x.clamp(min=FLOOR).log()
