"""Augmentation of spectrograms."""

from __future__ import annotations

import numpy as np
import torch

from MiniCPMO45.processing.mel import N_MELS
from training.nano.augment import LEAST_WARP, MOST_WARP, WIDEST_BAND, Augmenter, filter_centres_hz

SEQUENCES, FRAMES = 256, 30
PEAK_BIN, PEAK_FRAME = 40, 17


def _augmenter(seed: int = 0) -> Augmenter:
    return Augmenter(torch.Generator().manual_seed(seed))


def _peaks() -> torch.Tensor:
    mels = torch.full((SEQUENCES, N_MELS, FRAMES), -1.0)
    bins = torch.arange(N_MELS)
    mels[:, :, PEAK_FRAME] = -1.0 + (4 - (bins - PEAK_BIN).abs() / 4).clamp(min=0)
    return mels


def test_formant_shift_is_within_the_vocal_tract_range() -> None:
    changed = _augmenter().spectrogram(_peaks())
    assert changed.shape == (SEQUENCES, N_MELS, FRAMES)
    at_peak = changed[:, :, PEAK_FRAME]
    moved = at_peak.argmax(1)[at_peak.amax(1) > 2.5]
    centres_hz = filter_centres_hz()
    ratios = centres_hz[PEAK_BIN] / centres_hz[moved.numpy()]
    step = centres_hz[PEAK_BIN + 1] / centres_hz[PEAK_BIN]
    assert LEAST_WARP / step < ratios.min() < 0.9
    assert 1.1 < ratios.max() < MOST_WARP * step
    assert 0.2 < np.mean(ratios == 1.0) < 0.7  # those left as they were, and small moves


def test_shift_changes_frequency_only() -> None:
    changed = _augmenter(1).spectrogram(torch.zeros(SEQUENCES, N_MELS, FRAMES) + 1.0)
    torch.testing.assert_close(changed, torch.ones_like(changed))  # a flat one has no formants

    raised = _peaks() + torch.arange(FRAMES) * 0.1
    changed = _augmenter(2).spectrogram(raised)
    silent = changed[:, :, PEAK_FRAME + 1 :]
    is_missing = (changed == raised.amin((1, 2), keepdim=True)).all(2)
    widths = is_missing.sum(1)
    assert int(widths.max()) <= WIDEST_BAND
    assert 0.1 < float((widths > 0).float().mean()) < 0.5
    floor = (-1.0 + torch.arange(FRAMES) * 0.1)[PEAK_FRAME + 1 :].expand_as(silent)
    unmasked = ~is_missing
    torch.testing.assert_close(silent[unmasked], floor[unmasked])


def test_all_units_of_a_conversation_have_the_same_shift() -> None:
    peaks = _peaks()
    together = _augmenter(3).spectrogram(torch.cat((peaks, peaks), 2))
    first, second = _augmenter(3).spectrograms([peaks, peaks])
    torch.testing.assert_close(torch.cat((first, second), 2), together)
