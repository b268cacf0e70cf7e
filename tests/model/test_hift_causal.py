"""The causal vocoder: pieces equal the whole, streams do not meet, weights stay as they are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from MiniCPMO45.token2wav.causal_source import make_noise_table
from MiniCPMO45.token2wav.config import F0Config, HiFTConfig
from MiniCPMO45.token2wav.hift import fold_weight_norm
from MiniCPMO45.token2wav.hift_causal import CausalHift, CausalHiftState, stream_with_lead_in

TINY = HiFTConfig(base_channels=16, f0_predictor=F0Config(cond_channels=8))
SAMPLES = 480
DELAY = 8
N_FRAMES = 40
# Sums run in another order for another piece length.
ATOL = 2e-5


def _vocoder() -> CausalHift:
    torch.manual_seed(11)
    vocoder = CausalHift(TINY).eval().requires_grad_(False)
    for name, tensor in vocoder.state_dict().items():
        if name.endswith("alpha"):
            tensor.copy_(1.0 + 0.1 * torch.randn(tensor.shape))
    # Random weights predict next to no pitch; this makes most mel frames voiced.
    vocoder.f0_predictor.classifier.weight.mul_(300.0)
    vocoder.f0_predictor.classifier.bias.fill_(20.0)
    return vocoder


VOCODER = _vocoder()
MEL = torch.randn(1, 80, N_FRAMES, generator=torch.Generator().manual_seed(2))
NOISE = make_noise_table(7_000, 9, torch.Generator().manual_seed(3), torch.device("cpu"))


def _stream(mel: Tensor, cuts: list[int], noise: Tensor | None = NOISE) -> list[Tensor]:
    state, pieces = VOCODER.new_state(), []
    edges = [0, *cuts, mel.shape[2]]
    for index, (start, stop) in enumerate(zip(edges, edges[1:], strict=False)):
        is_last = index == len(edges) - 2
        wave, state = VOCODER.stream(mel[:, :, start:stop], state, is_last=is_last, noise=noise)
        pieces.append(wave)
    return pieces


def test_some_frames_are_voiced_and_some_are_not() -> None:
    is_voiced = VOCODER.predict_f0(MEL) > TINY.nsf_voiced_threshold
    assert 0 < int(is_voiced.sum()) < N_FRAMES


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, N_FRAMES), max_size=6).map(sorted))
def test_any_split_gives_the_whole(cuts: list[int]) -> None:
    whole = _stream(MEL, [])[0]
    pieces = _stream(MEL, cuts)
    assert whole.shape == (1, N_FRAMES * SAMPLES)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=ATOL, rtol=0)
    n_given = 0
    for piece, stop in zip(pieces, cuts, strict=False):
        n_given += piece.shape[1]
        assert n_given == max(0, stop - DELAY) * SAMPLES


def test_a_piece_depends_on_the_next_eight_mel_frames_only() -> None:
    other = MEL.clone()
    other[:, :, 30:] = torch.randn(1, 80, N_FRAMES - 30)
    whole, changed = _stream(MEL, [])[0], _stream(other, [])[0]
    unchanged = (30 - DELAY) * SAMPLES
    torch.testing.assert_close(changed[:, :unchanged], whole[:, :unchanged], atol=ATOL, rtol=0)
    assert not torch.allclose(changed[:, 30 * SAMPLES :], whole[:, 30 * SAMPLES :], atol=1e-3)


@pytest.mark.parametrize("n_frames", [1, 2, 7, 8, 9])
def test_short_utterances_come_out_whole(n_frames: int) -> None:
    mel = MEL[:, :, :n_frames]
    whole = _stream(mel, [])[0]
    assert whole.shape == (1, n_frames * SAMPLES)
    by_frame = torch.cat(_stream(mel, list(range(1, n_frames))), dim=1)
    torch.testing.assert_close(by_frame, whole, atol=ATOL, rtol=0)


def test_a_stream_without_mel_is_silent_and_over() -> None:
    wave, state = VOCODER.stream(MEL[:, :, :0], VOCODER.new_state(), is_last=True)
    assert wave.shape == (1, 0)
    with pytest.raises(ValueError, match="ended"):
        VOCODER.stream(MEL, state, is_last=True)


def test_interleaved_streams_equal_each_alone() -> None:
    mels = [MEL, MEL.flip(2)]
    states = [VOCODER.new_state() for _ in mels]
    waves: list[list[Tensor]] = [[] for _ in mels]
    for start in range(0, N_FRAMES, 10):
        for index, mel in enumerate(mels):
            is_last = start + 10 == N_FRAMES
            piece = mel[:, :, start : start + 10]
            wave, states[index] = VOCODER.stream(piece, states[index], is_last=is_last, noise=NOISE)
            waves[index].append(wave)
    for index, mel in enumerate(mels):
        alone = torch.cat(_stream(mel, [10, 20, 30]), dim=1)
        assert torch.equal(torch.cat(waves[index], dim=1), alone)


def test_a_state_can_be_used_again() -> None:
    _, state = VOCODER.stream(MEL[:, :, :20], VOCODER.new_state(), is_last=False, noise=NOISE)
    copy = state.clone()
    first, _ = VOCODER.stream(MEL[:, :, 20:], state, is_last=True, noise=NOISE)
    for tensor, kept in zip(state.tensors, copy.tensors, strict=True):
        assert torch.equal(tensor, kept)
    for given_state in (state, copy):
        again, _ = VOCODER.stream(MEL[:, :, 20:], given_state, is_last=True, noise=NOISE)
        assert torch.equal(again, first)
    assert copy.nbytes == state.nbytes


def test_memory_of_a_stream_is_bounded() -> None:
    state, sizes = VOCODER.new_state(), []
    for _ in range(6):
        _, state = VOCODER.stream(MEL[:, :, :20], state, is_last=False)
        sizes.append(state.nbytes)
    assert len(set(sizes[1:])) == 1
    storages = sum(tensor.untyped_storage().nbytes() for tensor in state.tensors)
    assert storages == state.nbytes


def test_the_module_does_not_change() -> None:
    before = {name: tensor.clone() for name, tensor in VOCODER.state_dict().items()}
    attributes = {name: id(value) for name, value in vars(VOCODER).items()}
    _stream(MEL, [9, 25])
    assert {name: id(value) for name, value in vars(VOCODER).items()} == attributes
    for name, tensor in VOCODER.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_folded_weights_give_the_same_wave() -> None:
    folded = _vocoder()
    fold_weight_norm(folded)
    wave, _ = folded.stream(MEL, folded.new_state(), is_last=True, noise=NOISE)
    torch.testing.assert_close(wave, _stream(MEL, [])[0], atol=ATOL, rtol=0)
    assert not any("parametrizations" in name for name in folded.state_dict())


def test_noise_is_heard_and_repeats() -> None:
    silent = _stream(MEL, [], noise=None)[0]
    assert not torch.equal(silent, _stream(MEL, [])[0])
    repeated = torch.cat([NOISE] * 3)[: N_FRAMES * SAMPLES]
    torch.testing.assert_close(
        _stream(MEL, [], noise=repeated)[0], _stream(MEL, [])[0], atol=ATOL, rtol=0
    )


def test_lead_in_makes_the_first_piece_as_long_as_its_mel() -> None:
    state: CausalHiftState = VOCODER.new_state()
    lengths = []
    for start, stop in ((0, 20), (20, 30), (30, 40)):
        wave, state = stream_with_lead_in(
            VOCODER, MEL[:, :, start:stop], state, is_last=stop == N_FRAMES
        )
        lengths.append(wave.shape[1] // SAMPLES)
        if start == 0:
            assert not wave[:, : DELAY * SAMPLES].any()
    assert lengths == [20, 10, 18]
    single, _ = stream_with_lead_in(VOCODER, MEL, VOCODER.new_state(), is_last=True)
    assert single.shape[1] == N_FRAMES * SAMPLES


def test_the_module_builds_without_memory() -> None:
    with torch.device("meta"):
        vocoder = CausalHift(HiFTConfig())
    assert all(tensor.is_meta for tensor in vocoder.state_dict().values())
    assert vocoder.state_dict().keys() == VOCODER.state_dict().keys()
