"""The encoder in pieces against whole sequences with the same visibility, as in training."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from MiniCPMO45.token2wav.flow_encoder import TapConvolution, relative_positions, with_past
from tests.fakes.toy_vocoder import FlowStreams, Outputs, toy_codes, toy_vocoder
from training.nano.voice.flow_batch import Layout, encode


@pytest.mark.parametrize("pieces", [[9], [4, 5], [25, 25, 6], [1, 1, 1, 7]])
def test_pieces_equal_the_whole_with_the_same_visibility(pieces: list[int]) -> None:
    vocoder = toy_vocoder()
    features = Outputs(vocoder.flow.encoder)
    codes, streams, start = toy_codes(sum(pieces)), FlowStreams(vocoder, 2 * sum(pieces)), 0
    for size in pieces:
        streams.feed([codes[start : start + size + 3]], [size])
        start += size
    index = torch.arange(start)
    owner = torch.repeat_interleave(torch.arange(len(pieces)), torch.tensor(pieces))
    sees, distance = owner[:, None] >= owner, index[:, None] - index
    layout = Layout(sees[None], distance[None], index[None] >= 0, (start - 1, start - 1))
    with torch.no_grad():
        found = vocoder.flow.encoder_proj(torch.cat(features.all, dim=1))
        expected = encode(vocoder.flow, torch.tensor([codes]), layout)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)
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
