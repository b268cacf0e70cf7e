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
    TapConvolution,
    relative_positions,
    with_past,
)
from tests.fakes.toy_vocoder import FlowStreams, Outputs, toy_codes, toy_vocoder


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
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))
    x = encoder.embed(x)
    look, up = encoder.pre_lookahead_layer, encoder.up_layer
    padded = F.pad(x, (0, 0, 0, 3)).transpose(1, 2)
    ahead = F.leaky_relu(F.conv1d(padded, look.conv1.weight, look.conv1.bias), 0.01)
    past = F.conv1d(F.pad(ahead, (2, 0)), look.conv2.weight, look.conv2.bias)
    x = (past.transpose(1, 2) + x)[0]
    for layer in encoder.encoders:
        x = masked_layer(layer, x, owner[:, None] >= owner[None, :])
    x = F.pad(x.repeat_interleave(2, dim=0).T[None], (4, 0))
    x = F.conv1d(x, up.conv.weight, up.conv.bias).transpose(1, 2)
    x = encoder.up_embed(x)[0]
    owner = owner.repeat_interleave(2)
    for layer in encoder.up_encoders:
        x = masked_layer(layer, x, owner[:, None] >= owner[None, :])
    return encoder.after_norm(x)


@pytest.mark.parametrize("pieces", [[9], [4, 5], [25, 25, 6], [1, 1, 1, 7]])
def test_pieces_equal_the_whole_with_the_same_visibility(pieces: list[int]) -> None:
    vocoder = toy_vocoder()
    encoder, features = vocoder.flow.encoder, Outputs(vocoder.flow.encoder)
    codes, streams, start = toy_codes(sum(pieces)), FlowStreams(vocoder, 2 * sum(pieces)), 0
    for size in pieces:
        streams.feed([codes[start : start + size + 3]], [size])
        start += size
    with torch.no_grad():
        embedded = vocoder.flow.input_embedding(torch.tensor([codes]))
        expected = masked_encoder(encoder, embedded, pieces)
    torch.testing.assert_close(torch.cat(features.all, dim=1)[0], expected, atol=2e-5, rtol=1e-4)
    assert [ring.length for ring in streams.rings[0]] == [2 * start, start, 2 * start]


@pytest.mark.parametrize("sizes", [(9, 9, 9), (9, 4, 6)])
def test_streams_of_any_age_answered_together_equal_each_alone(sizes: tuple[int, ...]) -> None:
    """Also with ends at different places, where batches are padded."""
    vocoder = toy_vocoder()
    features = Outputs(vocoder.flow.encoder)
    rows = range(3)
    codes = [toy_codes(12, seed) for seed in rows]
    together, alone = (FlowStreams(vocoder, 60, n_rows=3) for _ in range(2))
    for streams in (together, alone):
        for row in (1, 2):
            streams.feed([toy_codes(8 + row, row)], [5 + row], [row])
    del features.all[:]
    given = [each[: n + 3] for each, n in zip(codes, sizes, strict=True)]
    mel = together.feed(given, sizes, rows)
    for row, n in zip(rows, sizes, strict=True):
        expected = alone.feed([given[row]], [n], [row])
        torch.testing.assert_close(mel[row, : 2 * n], expected[0], atol=1e-4, rtol=1e-4)
        ours, theirs = features.all[0][row, : 2 * n], features.all[-1][0]
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        mine, other = (streams.bases[row].memory for streams in (together, alone))
        count = together.rings[row][2].length
        torch.testing.assert_close(
            mine.caches[2][:, :, :, :count], other.caches[2][:, :, :, :count], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("cuts", [[1], [3, 4], [1, 2, 3, 4, 5, 6], []])
def test_causal_convolution_may_be_cut_anywhere(cuts: list[int]) -> None:
    conv = TapConvolution(3, 5, kernel_size=5)
    x, tail, pieces = torch.randn(2, 8, 3), torch.zeros(2, 4, 3), []
    with torch.no_grad():
        for piece in x.tensor_split(cuts, dim=1):
            joined, tail = with_past(piece, tail, None)
            pieces.append(conv(joined))
        whole = F.conv1d(F.pad(x.transpose(1, 2), (4, 0)), conv.weight, conv.bias)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole.transpose(1, 2))


def test_a_tail_ends_where_its_stream_does() -> None:
    x, tail = torch.randn(2, 5, 3), torch.randn(2, 2, 3)
    joined, after = with_past(x, tail, torch.tensor([[5], [1]]))
    assert torch.equal(joined, torch.cat((tail, x), dim=1))
    assert torch.equal(after[0], x[0, 3:])
    assert torch.equal(after[1], torch.stack((tail[1, 1], x[1, 0])))


def test_positions_depend_on_the_distance_only() -> None:
    table = relative_positions(3, 8, 6, torch.zeros(1))
    longer = relative_positions(3, 10, 6, torch.zeros(1))
    assert table.shape == (10, 6)
    assert torch.equal(longer[2:], table)
    assert torch.equal(table[7], torch.tensor([0.0, 1.0] * 3))
