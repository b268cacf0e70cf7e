"""The encoder in pieces against a plain masked implementation of the same equations."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from MiniCPMO45.token2wav.flow_encoder import (
    ConformerLayer,
    FlowEncoder,
    UpsampleLayer,
    relative_positions,
)
from MiniCPMO45.token2wav.layers import CausalConv1d
from tests.fakes.toy_vocoder import toy_vocoder


@pytest.fixture(scope="module")
def encoder() -> FlowEncoder:
    """The toy encoder."""
    return toy_vocoder().flow.encoder


def masked_layer(layer: nn.Module, x: Tensor, visible: Tensor) -> Tensor:
    """One layer over a whole sequence [T, C]; query i sees key j where visible[i, j]."""
    assert isinstance(layer, ConformerLayer)
    attn, n_frames, width = layer.self_attn, x.shape[0], x.shape[1]
    heads, head_dim = attn.pos_bias_u.shape
    normed = layer.norm_mha(x)
    q = attn.linear_q(normed).view(n_frames, heads, head_dim)
    k = attn.linear_k(normed).view(n_frames, heads, head_dim)
    v = attn.linear_v(normed).view(n_frames, heads, head_dim)
    index = torch.arange(n_frames)
    distance = (index[:, None] - index[None, :]).double()
    rate = 10_000.0 ** (-torch.arange(0, width, 2).double() / width)
    table = torch.zeros(n_frames, n_frames, width)
    table[..., 0::2] = (distance[..., None] * rate).sin().float()
    table[..., 1::2] = (distance[..., None] * rate).cos().float()
    places = attn.linear_pos(table).view(n_frames, n_frames, heads, head_dim)
    scores = torch.einsum("ihd,jhd->hij", q + attn.pos_bias_u, k)
    scores = scores + torch.einsum("ihd,ijhd->hij", q + attn.pos_bias_v, places)
    scores = (scores / math.sqrt(head_dim)).masked_fill(~visible, float("-inf"))
    mixed = torch.einsum("hij,jhd->ihd", scores.softmax(2), v).reshape(n_frames, width)
    x = x + attn.linear_out(mixed)
    feed = layer.feed_forward
    return x + feed.w_2(F.silu(feed.w_1(layer.norm_ff(x))))


def masked_encoder(encoder: FlowEncoder, x: Tensor, pieces: list[int]) -> Tensor:
    """The whole sequence at once [1, T, C]; each piece sees itself and what came before."""
    width = encoder.config.output_size
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))
    x = encoder.embed.out(x) * math.sqrt(width)
    look, up = encoder.pre_lookahead_layer, encoder.up_layer
    ahead = F.leaky_relu(look.conv1(F.pad(x, (0, 0, 0, 3)).transpose(1, 2)), 0.01)
    past = F.conv1d(F.pad(ahead, (2, 0)), look.conv2.weight, look.conv2.bias)
    x = (past.transpose(1, 2) + x)[0]
    for layer in encoder.encoders:
        x = masked_layer(layer, x, owner[:, None] >= owner[None, :])
    x = F.pad(x.repeat_interleave(2, dim=0).T[None], (4, 0))
    x = F.conv1d(x, up.conv.weight, up.conv.bias).transpose(1, 2)
    x = (encoder.up_embed.out(x) * math.sqrt(width))[0]
    owner = owner.repeat_interleave(2)
    for layer in encoder.up_encoders:
        x = masked_layer(layer, x, owner[:, None] >= owner[None, :])
    return encoder.after_norm(x)


@pytest.mark.parametrize("pieces", [[9], [4, 5], [25, 25, 6], [1, 1, 1, 7]])
def test_pieces_equal_the_whole_with_the_same_visibility(
    encoder: FlowEncoder, pieces: list[int]
) -> None:
    x = torch.randn(1, sum(pieces), encoder.config.input_size)
    caches, out, start = [encoder.new_cache()], [], 0
    with torch.no_grad():
        for index, size in enumerate(pieces):
            is_last = index == len(pieces) - 1
            given = x[:, start : start + size + (0 if is_last else 3)]
            features, caches = encoder(given, caches, is_last=is_last)
            out.append(features[0])
            start += size
        expected = masked_encoder(encoder, x, pieces)
    torch.testing.assert_close(torch.cat(out), expected, atol=2e-5, rtol=1e-4)
    assert caches[0].token_rate.shape[3] == sum(pieces)
    assert caches[0].mel_rate.shape[3] == 2 * sum(pieces)


@pytest.mark.parametrize("cuts", [[1], [3, 4], [1, 2, 3, 4, 5, 6], []])
def test_causal_convolution_may_be_cut_anywhere(cuts: list[int]) -> None:
    conv = CausalConv1d(3, 5, kernel_size=5)
    x = torch.randn(2, 3, 8)
    context = torch.zeros(2, 3, conv.context_frames)
    pieces = []
    with torch.no_grad():
        for piece in x.tensor_split(cuts, dim=2):
            out, context = conv(piece, context)
            pieces.append(out)
        whole = F.conv1d(F.pad(x, (4, 0)), conv.weight, conv.bias)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole)


def test_upsampling_doubles_the_frames() -> None:
    layer = UpsampleLayer(4)
    out, context = layer(torch.randn(1, 3, 4), torch.zeros(1, 4, 4))
    assert out.shape == (1, 6, 4) and context.shape == (1, 4, 4)


def test_positions_depend_on_the_distance_only() -> None:
    table = relative_positions(3, 8, 6, torch.zeros(1))
    longer = relative_positions(3, 10, 6, torch.zeros(1))
    assert table.shape == (10, 6)
    assert torch.equal(longer[2:], table)
    assert torch.equal(table[7], torch.tensor([0.0, 1.0] * 3))


def test_streams_answered_together_equal_each_alone(encoder: FlowEncoder) -> None:
    """Also with histories of different length."""
    x = torch.randn(3, 12, encoder.config.input_size)
    with torch.no_grad():
        caches = [encoder.new_cache() for _ in range(3)]
        _, caches[1:] = encoder(x[1:], caches[1:], is_last=False)
        together, grown = encoder(x, caches, is_last=False)
        for row in range(3):
            alone, (cache,) = encoder(x[row : row + 1], [caches[row]], is_last=False)
            torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(grown[row].mel_rate, cache.mel_rate, atol=1e-5, rtol=1e-5)


def test_a_cache_is_never_written_to(encoder: FlowEncoder) -> None:
    x = torch.randn(1, 12, encoder.config.input_size)
    with torch.no_grad():
        _, (cache,) = encoder(x, [encoder.new_cache()], is_last=False)
        before = [tensor.clone() for tensor in vars(cache).values()]
        first, _ = encoder(x, [cache], is_last=False)
        second, _ = encoder(x, [cache], is_last=False)
    assert torch.equal(first, second)
    assert all(torch.equal(a, b) for a, b in zip(before, vars(cache).values(), strict=True))


@pytest.mark.parametrize("prompt_codes", [20, 50, 80])
def test_each_rate_keeps_prompt_and_newest_second(encoder: FlowEncoder, prompt_codes: int) -> None:
    prompt, total = 2 * prompt_codes, prompt_codes + 120
    with torch.no_grad():
        x = torch.randn(1, total, encoder.config.input_size)
        _, (cache,) = encoder(x, [encoder.new_cache()], is_last=True)
    kept = cache.trim(prompt)
    codes = [*range(prompt_codes), *range(total - 50, total)]
    frames = [*range(prompt), *range(2 * total - 100, 2 * total)]
    assert torch.equal(kept.token_rate, cache.token_rate[:, :, :, codes])
    assert torch.equal(kept.mel_rate, cache.mel_rate[:, :, :, frames])


def test_a_short_history_is_not_trimmed(encoder: FlowEncoder) -> None:
    with torch.no_grad():
        x = torch.randn(1, 30, encoder.config.input_size)
        _, (cache,) = encoder(x, [encoder.new_cache()], is_last=True)
    kept = cache.trim(20)
    assert torch.equal(kept.token_rate, cache.token_rate)
    assert torch.equal(kept.mel_rate, cache.mel_rate)
