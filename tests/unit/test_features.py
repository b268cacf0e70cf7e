"""Spectrograms of a reference recording: frame counts, floors, the right bin for a tone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from MiniCPMO45.token2wav.voices import (
    speaker_filter_bank,
    tokenizer_log_mel,
    voice_log_mel,
)


def _noise(n_samples: int) -> Tensor:
    return 0.1 * torch.randn(n_samples, generator=torch.Generator().manual_seed(5))


def _tone(frequency_hz: float, rate_hz: int, n_samples: int) -> Tensor:
    return 0.5 * torch.sin(2 * math.pi * frequency_hz * torch.arange(n_samples) / rate_hz)


@pytest.mark.parametrize("n_samples", [8_000, 8_001, 16_159, 16_160])
def test_tokenizer_mel_has_a_frame_every_10_ms(n_samples: int) -> None:
    assert tokenizer_log_mel(_noise(n_samples)).shape == (128, n_samples // 160)


def test_tokenizer_mel_spans_eight_decades_at_most() -> None:
    audio = torch.cat((torch.zeros(8_000), _noise(8_000)))
    mel = tokenizer_log_mel(audio)
    assert float(mel.max() - mel.min()) == pytest.approx(8.0 / 4.0, abs=1e-6)


@pytest.mark.parametrize(("n_samples", "n_frames"), [(400, 1), (559, 1), (560, 2), (16_000, 98)])
def test_filter_bank_takes_whole_windows_only(n_samples: int, n_frames: int) -> None:
    assert speaker_filter_bank(_noise(n_samples)).shape == (n_frames, 80)


def test_filter_bank_has_no_mean_over_time() -> None:
    means = speaker_filter_bank(_noise(16_000)).mean(dim=0)
    assert float(means.abs().max()) < 1e-4


def test_filter_bank_ignores_loudness_and_offset() -> None:
    audio = _noise(16_000)
    found = speaker_filter_bank(0.5 * audio + 0.25)
    torch.testing.assert_close(found, speaker_filter_bank(audio), atol=2e-3, rtol=0)


def test_filter_bank_of_silence_is_flat() -> None:
    assert float(speaker_filter_bank(torch.zeros(16_000)).abs().max()) < 1e-5


def test_filter_bank_equals_its_definition() -> None:
    """One frame written out in float64, with a mean taken over two frames."""
    audio = _noise(560)

    def frame(start: int) -> np.ndarray:
        x = audio[start : start + 400].double().numpy()
        x = x - x.mean()
        x = x - 0.97 * np.concatenate((x[:1], x[:-1]))
        x = x * (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
        power = np.abs(np.fft.rfft(x, 512)) ** 2
        mel = 1127.0 * np.log(1.0 + np.arange(257) * 31.25 / 700.0)
        low, high = 1127.0 * np.log(1.0 + 20.0 / 700.0), 1127.0 * np.log(1.0 + 8_000.0 / 700.0)
        edges = np.linspace(low, high, 82)
        energies = [
            np.interp(mel[:256], edges[k : k + 3], [0.0, 1.0, 0.0], left=0.0, right=0.0)
            @ power[:256]
            for k in range(80)
        ]
        return np.log(np.maximum(energies, 2.0**-23))

    frames = np.stack([frame(0), frame(160)])
    expected = frames - frames.mean(axis=0)
    np.testing.assert_allclose(speaker_filter_bank(audio).numpy(), expected, atol=1e-3)


@pytest.mark.parametrize("n_samples", [12_000, 12_001, 24_479, 24_480])
def test_voice_mel_has_a_frame_every_20_ms(n_samples: int) -> None:
    assert voice_log_mel(_noise(n_samples)).shape == (80, n_samples // 480)


def test_voice_mel_has_a_floor() -> None:
    floor = voice_log_mel(torch.zeros(12_000))
    assert float(floor.min()) >= math.log(1e-5)
    assert float(floor.max()) < math.log(1e-4)


@pytest.mark.parametrize("frequency_hz", [200.0, 1_000.0, 4_000.0])
def test_a_tone_lands_in_its_bin(frequency_hz: float) -> None:
    # Slaney's scale: 15 mel at 1 kHz, linear below, 27 mel per factor 6.4 above.
    def mel(hz: float) -> float:
        return hz * 0.015 if hz < 1_000 else 15 + 27 * math.log(hz / 1_000) / math.log(6.4)

    def bin_of(n_bins: int) -> float:
        return mel(frequency_hz) / mel(8_000.0) * (n_bins + 1) - 1

    tokenizer = tokenizer_log_mel(_tone(frequency_hz, 16_000, 16_000)).mean(dim=1)
    voice = voice_log_mel(_tone(frequency_hz, 24_000, 24_000)).mean(dim=1)
    assert abs(int(tokenizer.argmax()) - bin_of(128)) <= 1.5
    assert abs(int(voice.argmax()) - bin_of(80)) <= 1.5
