"""Augmentation of batches: rooms, band limits, noise and levels, and of spectrograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor
from transformers import audio_utils

from MiniCPMO45.processing.mel import MAX_HZ, N_MELS, SAMPLE_RATE_HZ

ROOM_S = 0.5
UNTOUCHED = 0.15  # of the sequences
IN_ROOM, ON_LINE, IN_NOISE, CLIPPED = 0.45, 0.25, 0.8, 0.1
NOISE_KNEES_HZ = (50.0, 4000.0)
HUM_HZ = (50.0, 60.0)
LEAST_WARP, MOST_WARP, WARPS = 0.86, 1.18, 33  # factors of formants
WARPED, BAND_MISSING = 0.7, 0.3
WIDEST_BAND = 10  # of the mel bins


@dataclass(frozen=True, eq=False)
class Augmenter:
    """Augmentations drawn from one generator."""

    generator: torch.Generator

    def __call__(self, audio: Tensor) -> Tensor:
        """Augment audio [B, n] at 16 kHz; some of it is unchanged."""
        touched = self._chance(audio, 1 - UNTOUCHED)
        changed = torch.where(self._chance(audio, IN_ROOM), self._in_room(audio), audio)
        changed = torch.where(self._chance(audio, ON_LINE), self._on_line(changed), changed)
        level = 10 ** (self._uniform(audio, -20.0, 6.0) / 20)
        changed = changed * level
        noise = self._noise(audio)
        noise_db = -self._uniform(audio, 6.0, 50.0)  # of the speech's level; never loud alone
        noise = noise * (0.07 * level * 10 ** (noise_db / 20))
        changed = torch.where(self._chance(audio, IN_NOISE), changed + noise, changed)
        limit = self._uniform(audio, 0.2, 1.0) * changed.abs().amax(1, keepdim=True)
        changed = torch.where(self._chance(audio, CLIPPED), changed.clamp(-limit, limit), changed)
        return torch.where(touched, changed, audio).clamp(-1.0, 1.0)

    def spectrograms(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """Warp and mask the mel bins of spectrograms [B, 80, frames] of the same B sequences.

        Sources: N. Jaitly and G. Hinton 2013 (vocal tract length perturbation); D. Park et al.
        2019 (SpecAugment).
        """
        like = mels[0][:, 0]
        warps = _warps(like.device)
        drawn = (self._uniform(like, 0.0, 1.0) * len(warps)).long()[:, 0]
        is_warped = self._chance(like, WARPED)[..., None]
        warp = torch.where(is_warped, warps[drawn], torch.eye(N_MELS, device=like.device))
        first = self._uniform(like, 0.0, N_MELS - WIDEST_BAND)
        last = first + self._uniform(like, 1.0, WIDEST_BAND)
        bins = torch.arange(N_MELS, device=like.device)
        is_missing = (bins >= first) & (bins < last) & self._chance(like, BAND_MISSING)
        return [
            torch.where(is_missing[..., None], mel.amin((1, 2), keepdim=True), warp @ mel)
            for mel in mels
        ]

    def spectrogram(self, mels: Tensor) -> Tensor:
        [changed] = self.spectrograms([mels])
        return changed

    def _in_room(self, audio: Tensor) -> Tensor:
        """Convolve with an impulse followed by exponentially decaying noise."""
        n = int(ROOM_S * SAMPLE_RATE_HZ)
        time_s = torch.arange(n, device=audio.device) / SAMPLE_RATE_HZ
        decay_s = self._uniform(audio, 0.02, 0.12)  # to 1/e
        tail = torch.randn(len(audio), n, device=audio.device, generator=self.generator)
        tail = tail * torch.exp(-time_s / decay_s)
        tail = tail / tail.norm(dim=1, keepdim=True) * self._uniform(audio, 0.1, 1.0)
        tail[:, 0] += 1.0
        size = audio.shape[1] + n
        wet = torch.fft.irfft(torch.fft.rfft(audio, size) * torch.fft.rfft(tail, size), size)
        return wet[:, : audio.shape[1]]

    def _on_line(self, audio: Tensor) -> Tensor:
        """Apply a random band-pass."""
        low = self._uniform(audio, 20.0, 350.0)
        high = self._uniform(audio, 3000.0, 7500.0)
        spectrum = torch.fft.rfft(audio)
        hz = torch.linspace(0, SAMPLE_RATE_HZ / 2, spectrum.shape[1], device=audio.device)
        band = 1 / (1 + (low / hz.clamp(min=1.0)) ** 6) / (1 + (hz / high) ** 12)
        return torch.fft.irfft(spectrum * band, audio.shape[1])

    def _noise(self, audio: Tensor) -> Tensor:
        """Return coloured noise of unit power, sometimes with mains hum."""
        white = torch.randn(audio.shape, device=audio.device, generator=self.generator)
        spectrum = torch.fft.rfft(white)
        hz = torch.linspace(0, SAMPLE_RATE_HZ / 2, spectrum.shape[1], device=audio.device)
        slope = self._uniform(audio, 0.0, 1.0)
        shaped = torch.fft.irfft(
            spectrum / hz.clamp(NOISE_KNEES_HZ[0], NOISE_KNEES_HZ[1]) ** slope, audio.shape[1]
        )
        shaped = shaped / shaped.std(dim=1, keepdim=True)
        time_s = torch.arange(audio.shape[1], device=audio.device) / SAMPLE_RATE_HZ
        base_hz = torch.where(self._chance(audio, 0.5), HUM_HZ[0], HUM_HZ[1])
        hum = sum(torch.sin(2 * torch.pi * k * base_hz * time_s) / k for k in (1, 2, 3, 5))
        return shaped + torch.where(self._chance(audio, 0.2), 1.0, 0.0) * hum

    def _uniform(self, like: Tensor, low: float, high: float) -> Tensor:
        drawn = torch.rand(len(like), 1, device=like.device, generator=self.generator)
        return low + (high - low) * drawn

    def _chance(self, like: Tensor, share: float) -> Tensor:
        return self._uniform(like, 0.0, 1.0) < share


def filter_centres_hz() -> np.ndarray:
    """Return the centre frequencies of the mel filters: float64 [80], ascending."""
    ends = [audio_utils.hertz_to_mel(hz, mel_scale="slaney") for hz in (0.0, MAX_HZ)]
    edges_mel = np.linspace(ends[0], ends[1], N_MELS + 2)
    return np.asarray(audio_utils.mel_to_hertz(edges_mel, mel_scale="slaney"))[1:-1]


@cache
def _warps(device: torch.device) -> Tensor:
    """Return matrices that warp the frequency axis: float32 [warps, 80, 80]."""
    centres_hz = filter_centres_hz()
    warps = torch.zeros(WARPS, N_MELS, N_MELS)
    for warp, factor in zip(warps, np.linspace(LEAST_WARP, MOST_WARP, WARPS), strict=True):
        places = np.interp(centres_hz * factor, centres_hz, np.arange(N_MELS))
        below = torch.from_numpy(np.minimum(places, N_MELS - 2).astype(np.int64))
        share = torch.from_numpy(places).float() - below
        rows = torch.arange(N_MELS)
        warp[rows, below], warp[rows, below + 1] = 1 - share, share
    return warps.to(device)
