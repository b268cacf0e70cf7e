"""Estimator and ODE: history through caches as without them in training, schedule, noise."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from MiniCPMO45.token2wav.flow import Flow, draw_flow_noise
from MiniCPMO45.token2wav.vocoder import Token2Wav
from tests.fakes.toy_vocoder import FlowStreams, Outputs, toy_codes, toy_vocoder, toy_voice
from training.nano.voice.flow_batch import estimate

BINS = 80


@pytest.fixture(scope="module")
def vocoder() -> Token2Wav:
    return toy_vocoder()


@pytest.fixture(scope="module")
def flow(vocoder: Token2Wav) -> Flow:
    return vocoder.flow


def plain_flow(
    flow: Flow, mu: Tensor, speaker: Tensor, prompt: Tensor, noise: Tensor, pieces: list[int]
) -> Tensor:
    """Two Euler steps over all chunks at once [T, bins]; a chunk sees itself and earlier ones."""
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))
    sees = (owner[:, None] >= owner[None, :]).expand(2, -1, -1)
    condition = torch.cat((mu, speaker.expand_as(mu), prompt), dim=1)
    rows = torch.stack((condition, torch.zeros_like(condition)))
    x, times = noise, [0.0, 1.0 - math.cos(math.pi / 4), 1.0]
    for start, end in pairwise(times):
        given, free = estimate(
            flow.decoder.estimator, x.expand(2, -1, -1), rows, torch.full((2,), start), sees
        )
        x = x + (end - start) * (1.7 * given - 0.7 * free)
    return x


def test_chunks_through_caches_equal_one_masked_run(vocoder: Token2Wav) -> None:
    """The codes' features are taken as they are; the encoder has a test of its own."""
    flow, pieces = vocoder.flow, [10, 5, 8]
    features, streams = Outputs(flow.encoder), FlowStreams(vocoder, 2 * sum(pieces))
    codes, out, start = toy_codes(sum(pieces)), [], 0
    for size in pieces:
        out.append(streams.feed([codes[start : start + size + 3]], [size])[0])
        start += size
    features.close()
    base = streams.bases[0]
    frames = [2 * size for size in pieces]
    with torch.no_grad():
        mu = flow.encoder_proj(torch.cat(features.all, dim=1)[0])
        expected = plain_flow(flow, mu, base.speaker, torch.zeros_like(mu), base.noise[0].T, frames)
    torch.testing.assert_close(torch.cat(out), expected, atol=1e-4, rtol=1e-4)


def test_the_voice_s_mel_is_a_condition_of_its_prompt(vocoder: Token2Wav) -> None:
    flow, voice = vocoder.flow, toy_voice(12)
    mels, features = Outputs(flow), Outputs(flow.encoder)
    base = vocoder.set_up(voice)
    mels.close()
    features.close()
    with torch.no_grad():
        mu, noise = flow.encoder_proj(features.all[0][0]), base.noise[0, :, : voice.frames].T
        expected = plain_flow(flow, mu, base.speaker, voice.mel[0], noise, [voice.frames])
    torch.testing.assert_close(mels.all[0][0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("n_steps", [1, 5, 10])
def test_the_schedule_is_a_quarter_of_a_cosine(flow: Flow, n_steps: int) -> None:
    schedule = flow.make_schedule(n_steps)
    times = torch.tensor([0.0, *schedule.deltas]).cumsum(0)
    expected = [1.0 - math.cos(math.pi / 2 * k / n_steps) for k in range(n_steps + 1)]
    torch.testing.assert_close(times, torch.tensor(expected), atol=1e-6, rtol=0.0)
    assert schedule.blocks.shape[:3] == (n_steps, 2, 9)


def test_no_step_is_refused(flow: Flow) -> None:
    with pytest.raises(ValueError, match="at least one step"):
        flow.make_schedule(0)


def test_longer_noise_begins_with_the_shorter() -> None:
    short, long = draw_flow_noise(30, BINS), draw_flow_noise(1000, BINS)
    assert short.shape == (1, BINS, 30) and torch.equal(long[:, :, :30], short)
    assert not torch.equal(draw_flow_noise(30, BINS, seed=1), short)
    assert abs(long.mean()) < 0.02 and abs(long.std() - 1.0) < 0.02


def test_the_speaker_vector_is_normalised(flow: Flow) -> None:
    speaker = torch.randn(1, 192)
    with torch.no_grad():
        scaled = flow.project_speaker(speaker * 7)
        torch.testing.assert_close(flow.project_speaker(speaker), scaled)
