"""The generator: excitation, filter, overlap between chunks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from MiniCPMO45.token2wav.config import HiFTConfig
from MiniCPMO45.token2wav.hift import HiFT, HiFTCache, fold_weight_norm, stream_hift
from MiniCPMO45.token2wav.source import harmonic_waves
from tests.fakes.toy_vocoder import toy_config, toy_vocoder, toy_weights

HELD = 8 * 480


@pytest.fixture(scope="module")
def hift() -> HiFT:
    """The toy generator."""
    return toy_vocoder().hift


def run_stream(hift: HiFT, mel: Tensor, sizes: list[int]) -> tuple[list[Tensor], list[HiFTCache]]:
    """Answers of one stream [n] and the last cache."""
    caches: list[HiFTCache] | None = None
    out = []
    parts = mel.split(sizes, dim=2)
    with torch.no_grad():
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            samples, caches = stream_hift(hift, part, caches, None, is_last=is_last)
            out.append(samples[0])
    assert caches is not None
    return out, caches


def test_harmonics_follow_the_pitch_and_fall_silent_unvoiced() -> None:
    config, f0 = HiFTConfig(), torch.tensor([[200.0] * 6 + [9.0] * 6])
    waves = harmonic_waves(f0, None, config)[0]
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
    added = harmonic_waves(f0, noise, config) - harmonic_waves(f0, None, config)
    torch.testing.assert_close(added[:, : 2 * 480], torch.full((1, 960, 9), 0.003))
    torch.testing.assert_close(added[:, 2 * 480 :], torch.full((1, 480, 9), 0.1 / 3))


def test_a_mel_frame_gives_480_samples_within_the_limit(hift: HiFT) -> None:
    with torch.no_grad():
        wave = hift(torch.randn(2, 80, 11) * 30, None)
    assert wave.shape == (2, 11 * 480)
    assert wave.abs().max() <= 0.99


def test_folding_weight_norm_keeps_the_sound() -> None:
    _, weights = toy_weights()
    plain = HiFT(toy_config().hift)
    plain.load_state_dict(weights)
    mel = torch.randn(1, 80, 9)
    with torch.no_grad():
        before = plain(mel, None)
        fold_weight_norm(plain)
        after = plain(mel, None)
    assert not [name for name in plain.state_dict() if "parametrizations" in name]
    torch.testing.assert_close(before, after, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("sizes", [[50, 50, 26], [10, 8, 50], [8, 2, 2]])
def test_a_stream_is_as_long_as_its_mel_and_the_overlap(hift: HiFT, sizes: list[int]) -> None:
    out, _ = run_stream(hift, torch.randn(1, 80, sum(sizes)), sizes)
    assert [len(samples) for samples in out] == [
        *(480 * size for size in sizes[:-1]),
        480 * (sizes[-1] + 8),
    ]
    assert not out[0][:HELD].any()


def test_a_single_last_chunk_is_the_whole_utterance(hift: HiFT) -> None:
    mel = torch.randn(1, 80, 14)
    (samples,), _ = run_stream(hift, mel, [14])
    with torch.no_grad():
        assert torch.equal(samples, hift(mel, None)[0])


def test_held_back_samples_are_cross_faded(hift: HiFT) -> None:
    mel = torch.randn(1, 80, 40)
    with torch.no_grad():
        first, (old,) = stream_hift(hift, mel[:, :, :20], None, None, is_last=False)
        second, (new,) = stream_hift(hift, mel[:, :, 20:], [old], None, is_last=False)
        whole = hift(mel[:, :, :20], None)
        joined = mel[:, :, 12:]
        source = hift.excite(hift.predict_f0(joined), None)
        source[:, :, :HELD] = old.source
        raw = hift.decode(joined, source)
    assert torch.equal(first[0, HELD:], whole[0, :-HELD])
    assert torch.equal(old.speech, whole[:, -HELD:])
    window = torch.hamming_window(2 * HELD, periodic=False, dtype=torch.float64)
    faded = raw[:, :HELD] * window[:HELD] + old.speech * window[HELD:]
    torch.testing.assert_close(second[:, :HELD], faded.float(), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(second[:, HELD:], raw[:, HELD:-HELD])
    torch.testing.assert_close(new.speech, raw[:, -HELD:])
    assert torch.equal(new.mel, mel[:, :, -8:])
    torch.testing.assert_close(new.source, source[:, :, -HELD:])


def test_a_first_chunk_needs_what_is_held_back(hift: HiFT) -> None:
    with pytest.raises(ValueError, match="first chunk"):
        stream_hift(hift, torch.randn(1, 80, 7), None, None, is_last=False)


def test_streams_answered_together_equal_each_alone(hift: HiFT) -> None:
    mel = torch.randn(2, 80, 24)
    with torch.no_grad():
        _, caches = stream_hift(hift, mel[:, :, :12], None, None, is_last=False)
        together, _ = stream_hift(hift, mel[:, :, 12:], caches, None, is_last=True)
        for row in range(2):
            alone, _ = stream_hift(
                hift, mel[row : row + 1, :, 12:], caches[row : row + 1], None, is_last=True
            )
            torch.testing.assert_close(together[row], alone[0], atol=1e-4, rtol=0.0)


def test_kept_tensors_do_not_hold_the_chunk(hift: HiFT) -> None:
    _, (cache,) = run_stream(hift, torch.randn(1, 80, 40), [40])
    for tensor in (cache.mel, cache.source, cache.speech):
        assert tensor.untyped_storage().nbytes() == tensor.nbytes
    assert cache.nbytes == 4 * (80 * 8 + 2 * HELD)
