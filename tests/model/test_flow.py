"""Estimator and ODE: history through caches, guidance, schedule, noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from MiniCPMO45.token2wav.flow import Flow, draw_flow_noise
from MiniCPMO45.token2wav.vocoder import Token2Wav
from tests.fakes.toy_vocoder import FlowStreams, Outputs, toy_codes, toy_vocoder, toy_voice

BINS = 80


@pytest.fixture(scope="module")
def vocoder() -> Token2Wav:
    return toy_vocoder()


@pytest.fixture(scope="module")
def flow(vocoder: Token2Wav) -> Flow:
    return vocoder.flow


def plain_estimate(flow: Flow, x: Tensor, condition: Tensor, time: float, owner: Tensor) -> Tensor:
    """Velocity of one guidance row [T, bins], written down without caches.

    Args:
        flow: the weights.
        x: the flow's state [T, bins].
        condition: mu, speaker and prompt [T, 3 * bins].
        time: ODE time.
        owner: index of each frame's chunk [T]; a chunk sees itself and earlier ones.
    """
    estimator: Any = flow.decoder.estimator  # torch does not type its modules' children
    half = torch.arange(128)
    angle = 1000.0 * torch.tensor(time) * torch.exp(-math.log(10_000.0) / 128 * half)
    c = F.silu(estimator.t_embedder.mlp(torch.cat((angle.cos(), angle.sin()))))
    width = c.shape[0]
    h = estimator.in_proj(torch.cat((x, condition), dim=1))
    hidden_from = owner[:, None] < owner[None, :]

    def normed(value: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        return F.layer_norm(value, (width,), eps=1e-6) * (1 + scale) + shift

    for block in estimator.blocks:
        sa, ca, ga, sm, cm, gm, sv, cv, gv = block.adaLN_modulation[1](c).chunk(9)
        attn, inner = block.attn, normed(h, ca, sa)
        q, k, v = (
            linear(inner).unflatten(1, (-1, attn.head_dim))
            for linear in (attn.to_q, attn.to_k, attn.to_v)
        )
        scores = torch.einsum("ihd,jhd->hij", attn.q_norm(q), attn.k_norm(k))
        scores = (scores / math.sqrt(attn.head_dim)).masked_fill(hidden_from, -math.inf)
        h = h + ga * attn.proj(torch.einsum("hij,jhd->ihd", scores.softmax(2), v).flatten(1))
        first, norm, second = (block.conv.block[key] for key in ("1", "3", "6"))
        y = F.conv1d(F.pad(normed(h, cv, sv).T[None], (2, 0)), first.weight, first.bias)
        y = F.mish(norm(y[0].T))
        y = F.conv1d(F.pad(y.T[None], (2, 0)), second.weight, second.bias)
        h = h + gv * y[0].T
        fc1, fc2 = block.mlp.fc1, block.mlp.fc2
        h = h + gm * fc2(F.gelu(fc1(normed(h, cm, sm)), approximate="tanh"))
    shift, scale = estimator.final_layer.adaLN_modulation[1](c).chunk(2)
    return estimator.final_layer.linear(normed(h, scale, shift))


def plain_flow(
    flow: Flow, mu: Tensor, speaker: Tensor, prompt: Tensor, noise: Tensor, pieces: list[int]
) -> Tensor:
    """Two Euler steps over all chunks at once [T, bins]."""
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))
    condition = torch.cat((mu, speaker.expand_as(mu), prompt), dim=1)
    x, times = noise, [0.0, 1.0 - math.cos(math.pi / 4), 1.0]
    for start, end in zip(times[:-1], times[1:], strict=True):
        given = plain_estimate(flow, x, condition, start, owner)
        free = plain_estimate(flow, x, torch.zeros_like(condition), start, owner)
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
