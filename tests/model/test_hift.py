"""The generator: excitation, filter, overlap between chunks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from MiniCPMO45.kernels.wave_transforms import fourier, harmonic_waves, overlap_add
from MiniCPMO45.token2wav.config import HiFTConfig
from MiniCPMO45.token2wav.hift import HiFT, Overlap, fold_weight_norm
from tests.fakes.toy_vocoder import toy_config, toy_vocoder, toy_weights

HELD = 8 * 480


@pytest.fixture(scope="module")
def hift() -> HiFT:
    return toy_vocoder().hift


def speak(hift: HiFT, mel: Tensor, overlap: Overlap | None = None) -> tuple[Tensor, Overlap]:
    """Waveform of mels [B, F, bins] without noise; with an overlap all turns have started."""
    n_rows, n_frames, _ = mel.shape
    n_old = 8 if overlap is not None else 0
    noise = torch.zeros(n_rows, (n_old + n_frames) * 480, 9)
    ends = torch.full((n_rows, 1), n_frames), torch.full((n_rows, 1), int(n_old > 0))
    with torch.no_grad():
        speech, kept = hift(mel, noise, overlap, *ends)
    return speech, kept


def test_harmonics_follow_the_pitch_and_fall_silent_unvoiced() -> None:
    config, f0 = HiFTConfig(), torch.tensor([[200.0] * 6 + [9.0] * 6])
    waves = harmonic_waves(f0, torch.zeros(1, 12 * 480, 9), config)[0]
    assert waves.shape == (12 * 480, 9)
    assert not waves[6 * 480 :].any()
    # Inside the steady part each harmonic m advances by 2 pi m f0 / 24000 per sample.
    inner = waves[480 : 5 * 480]
    for m in (1, 9):
        step = 2 * math.pi * 200.0 * m / 24_000
        residual = inner[2:, m - 1] + inner[:-2, m - 1] - 2 * math.cos(step) * inner[1:-1, m - 1]
        assert residual.abs().max() < 1e-4
        assert 0.099 < inner[:, m - 1].abs().max() <= 0.1


def test_noise_is_scaled_by_voicing() -> None:
    config, f0 = HiFTConfig(), torch.tensor([[200.0, 200.0, 5.0]])
    noise = torch.ones(1, 3 * 480, 9)
    silence = torch.zeros_like(noise)
    added = harmonic_waves(f0, noise, config) - harmonic_waves(f0, silence, config)
    torch.testing.assert_close(added[:, : 2 * 480], torch.full((1, 960, 9), 0.003))
    torch.testing.assert_close(added[:, 2 * 480 :], torch.full((1, 480, 9), 0.1 / 3))


def test_a_mel_frame_gives_480_samples_within_the_limit(hift: HiFT) -> None:
    wave, _ = speak(hift, torch.randn(2, 11, 80) * 30)
    assert wave.shape == (2, 11 * 480)
    assert wave.abs().max() <= 0.99


def test_the_transforms_are_those_of_a_centred_stft(hift: HiFT) -> None:
    """The filter between them is left out: the spectrum comes back as the signal."""
    signal, window = torch.randn(1, 4 * 480), torch.hann_window(16)
    columns = torch.tensor([4 * 480 // 4 + 1])
    ours = hift._spectrum(signal, torch.tensor([4]), columns)
    theirs = torch.stft(signal, 16, 4, 16, window, return_complex=True).transpose(1, 2)
    torch.testing.assert_close(
        ours, torch.cat((theirs.real, theirs.imag), dim=2), atol=1e-5, rtol=1e-5
    )
    matrices = fourier(16, signal.device)
    back = overlap_add(ours @ matrices.inverse, columns, matrices.squared_window, 4)
    torch.testing.assert_close(back, signal, atol=1e-5, rtol=1e-5)


def test_folding_weight_norm_keeps_the_sound() -> None:
    _, weights = toy_weights()
    plain = HiFT(toy_config().hift)
    plain.load_state_dict(weights)
    mel = torch.randn(1, 9, 80)
    before, _ = speak(plain, mel)
    fold_weight_norm(plain)
    assert not [name for name in plain.state_dict() if "parametrizations" in name]
    torch.testing.assert_close(before, speak(plain, mel)[0], atol=1e-6, rtol=0.0)


def test_held_back_samples_are_cross_faded(hift: HiFT) -> None:
    mel = torch.randn(1, 40, 80)
    first, old = speak(hift, mel[:, :20])
    second, new = speak(hift, mel[:, 20:], old)
    joined = mel[:, 12:]
    with torch.no_grad():
        source = hift.excite(hift.f0_predictor(joined), torch.zeros(1, 28 * 480, 9))
        source[:, :HELD] = old.source
        raw = hift.decode(joined, source)
    assert torch.equal(old.speech, first[:, -HELD:])
    window = torch.hamming_window(2 * HELD, periodic=False, dtype=torch.float64)
    faded = raw[:, :HELD] * window[:HELD] + old.speech * window[HELD:]
    torch.testing.assert_close(second[:, :HELD], faded.float(), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(second[:, HELD:], raw[:, HELD:])
    torch.testing.assert_close(new.speech, raw[:, -HELD:])
    assert torch.equal(new.mel, mel[:, -8:])
    torch.testing.assert_close(new.source, source[:, -HELD:])


def test_streams_answered_together_equal_each_alone(hift: HiFT) -> None:
    mel = torch.randn(2, 24, 80)
    _, ends = speak(hift, mel[:, :12])
    together, _ = speak(hift, mel[:, 12:], ends)
    for row in (slice(0, 1), slice(1, 2)):
        alone, _ = speak(hift, mel[row, 12:], Overlap(*(part[row] for part in ends)))
        torch.testing.assert_close(together[row], alone, atol=1e-4, rtol=0.0)


def test_padded_streams_of_any_age_equal_each_alone(hift: HiFT) -> None:
    """Frames after the end of a stream are zeros to every convolution."""
    counts, started, frames = (14, 9, 20), (True, False, True), 20
    old = torch.randn(3, 16, 80)
    mel = torch.randn(3, frames, 80)
    noise = torch.randn(3, (8 + frames) * 480, 9)
    ends = torch.tensor(counts)[:, None], torch.tensor(started).long()[:, None]
    _, begun = speak(hift, old)
    with torch.no_grad():
        together, after = hift(mel, noise, begun, *ends)
        for row, (count, has_started) in enumerate(zip(counts, started, strict=True)):
            this = slice(row, row + 1)
            n_samples = (count + 8 * has_started) * 480
            overlap = Overlap(*(part[this] for part in begun)) if has_started else None
            of_one = torch.tensor([[count]]), ends[1][this]
            alone, kept = hift(mel[this, :count], noise[this, :n_samples], overlap, *of_one)
            torch.testing.assert_close(together[this, :n_samples], alone, atol=2e-5, rtol=0.0)
            for ours, theirs in zip(after, kept, strict=True):
                torch.testing.assert_close(ours[this], theirs, atol=2e-5, rtol=0.0)


def test_training_gets_a_gradient_for_every_weight(hift: HiFT) -> None:
    fresh = HiFT(hift.config)
    fresh.decode(torch.randn(1, 6, 80), torch.randn(1, 6 * 480)).square().sum().backward()
    untouched = [name for name, p in fresh.named_parameters() if p.grad is None]
    assert all(name.startswith(("f0_predictor", "m_source")) for name in untouched)
