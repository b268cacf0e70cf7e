"""Vocoder losses: spectral distances, and discriminators of waveforms and spectrograms.

Sources: HiFi-GAN (arXiv:2010.05646), UnivNet (arXiv:2106.07889).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from MiniCPMO45.processing.mel import mel_filter_bank
from MiniCPMO45.token2wav.voices import VOICE_RATE_HZ

PERIODS = (2, 3, 5, 7, 11)
PERIOD_WIDTHS = (24, 64, 128, 256)
RESOLUTIONS = ((1024, 256), (512, 128), (256, 64))  # n_fft, hop
SPECTRUM_WIDTH = 32
SLOPE = 0.1


class PeriodDiscriminator(nn.Module):
    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = (1, *PERIOD_WIDTHS)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(n_in, n_out, (5, 1), (3, 1), (2, 0)))
            for n_in, n_out in zip(widths[:-1], widths[1:], strict=True)
        )
        self.convs.append(weight_norm(nn.Conv2d(widths[-1], widths[-1], (5, 1), 1, (2, 0))))
        self.last = weight_norm(nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0)))

    def forward(self, wave: Tensor) -> list[Tensor]:
        wave = wave[:, : wave.shape[1] // self.period * self.period]
        return _discriminate(wave.unflatten(1, (-1, self.period))[:, None], self.convs, self.last)


class SpectrumDiscriminator(nn.Module):
    def __init__(self, n_fft: int, hop: int) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft), persistent=False)
        width = SPECTRUM_WIDTH
        self.convs = nn.ModuleList(
            [
                weight_norm(nn.Conv2d(1, width, (9, 3), (2, 1), (4, 1))),
                *(weight_norm(nn.Conv2d(width, width, (9, 3), (2, 1), (4, 1))) for _ in range(3)),
                weight_norm(nn.Conv2d(width, width, 3, 1, 1)),
            ]
        )
        self.last = weight_norm(nn.Conv2d(width, 1, 3, 1, 1))

    def forward(self, wave: Tensor) -> list[Tensor]:
        spectrum = torch.stft(
            wave, self.n_fft, self.hop, window=self.get_buffer("window"), return_complex=True
        ).abs()
        return _discriminate(spectrum[:, None], self.convs, self.last)


class Discriminators(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.discriminators = nn.ModuleList(
            [
                *(PeriodDiscriminator(period) for period in PERIODS),
                *(SpectrumDiscriminator(n_fft, hop) for n_fft, hop in RESOLUTIONS),
            ]
        )

    def forward(self, wave: Tensor) -> list[list[Tensor]]:
        return [each(wave) for each in self.discriminators]


def discriminator_loss(
    real: Sequence[Sequence[Tensor]], made: Sequence[Sequence[Tensor]]
) -> Tensor:
    """Least-squares loss of the discriminators: real is 1, made is 0."""
    losses = [
        (true[-1].float() - 1).square().mean() + false[-1].float().square().mean()
        for true, false in zip(real, made, strict=True)
    ]
    return torch.stack(losses).mean()


def generator_loss(made: Sequence[Sequence[Tensor]]) -> Tensor:
    """Least-squares loss of the generator: made should be 1."""
    return torch.stack([(maps[-1].float() - 1).square().mean() for maps in made]).mean()


def feature_loss(real: Sequence[Sequence[Tensor]], made: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the mean L1 distance of all inner feature maps."""
    losses = [
        F.l1_loss(false, true.detach())
        for true_maps, false_maps in zip(real, made, strict=True)
        for true, false in zip(true_maps[:-1], false_maps[:-1], strict=True)
    ]
    return torch.stack(losses).mean()


def _discriminate(x: Tensor, convs: nn.ModuleList, last: nn.Module) -> list[Tensor]:
    maps = []
    for conv in convs:
        x = F.leaky_relu(conv(x), SLOPE)
        maps.append(x)
    maps.append(last(x))
    return maps


LOSS_RESOLUTIONS = ((2048, 512), (1024, 256), (512, 128), (256, 64))  # n_fft, hop
MEL_BINS = (100, 80, 60, 30)
FLOOR = 1e-5
LOWEST_POWER = 1e-9


class SpectralLoss(nn.Module):
    """Log-mel and log-magnitude distances plus spectral convergence, averaged over resolutions."""

    def __init__(self) -> None:
        super().__init__()
        for n_fft, _ in LOSS_RESOLUTIONS:
            self.register_buffer(f"window_{n_fft}", torch.hann_window(n_fft), persistent=False)
        for (n_fft, _), bins in zip(LOSS_RESOLUTIONS, MEL_BINS, strict=True):
            filters = mel_filter_bank(VOICE_RATE_HZ, n_fft, bins, 0.0, VOICE_RATE_HZ / 2)
            self.register_buffer(f"filters_{n_fft}", filters, persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-mel distance of waveforms [B, L], and the rest."""
        mels, rest = [], []
        for n_fft, hop in LOSS_RESOLUTIONS:
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
