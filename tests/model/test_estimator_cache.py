"""Columns stay where they are; what is remembered equals plain concatenation and cutting."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from MiniCPMO45.token2wav.estimator_cache import SPARE_FRAMES, EstimatorCache

STEPS, DEPTH, HEADS, HEAD_DIM = 2, 3, 2, 4


def new_cache(capacity: int) -> EstimatorCache:
    attention = torch.full((STEPS, DEPTH, 2, HEADS, capacity, 2 * HEAD_DIM), float("nan"))
    return EstimatorCache(attention, torch.zeros(STEPS, DEPTH, 2, 6, 2))


def run_chunk(cache: EstimatorCache, chunk: Tensor, prompt_frames: int) -> list[Tensor]:
    """Write one chunk [steps, depth, 2, heads, T, 2 * d]; returns what each call could see."""
    seen = []
    writers = cache.begin(chunk.shape[4])
    for step, writer in enumerate(writers):
        for block in range(DEPTH):
            key, value = chunk[step, block].split(HEAD_DIM, dim=3)
            keys, values = writer.extend(block, key, value)
            seen.append(torch.cat((keys, values), dim=3).clone())
            writer.keep_convolution(block, chunk[step, block].sum().expand(2, 6, 2))
    cache.commit(writers, chunk.shape[4], prompt_frames)
    return seen


def sort_columns(columns: Tensor) -> Tensor:
    """Order columns [2, heads, T, 2 * d] by their first value; attention ignores the order."""
    return columns[:, :, columns[0, 0, :, 0].argsort()]


@given(
    prompt_frames=st.integers(1, 130),
    chunks=st.lists(st.sampled_from([10, 26, 50, 56, 100]), max_size=8),
)
def test_equals_concatenation_and_trimming(prompt_frames: int, chunks: list[int]) -> None:
    cache = new_cache(prompt_frames + SPARE_FRAMES)
    generator = torch.Generator().manual_seed(5)
    expected, numbered = torch.zeros(STEPS, DEPTH, 2, HEADS, 0, 2 * HEAD_DIM), 0
    for n_frames in (prompt_frames, *chunks):
        shape = (STEPS, DEPTH, 2, HEADS, n_frames, 2 * HEAD_DIM)
        chunk = torch.randn(shape, generator=generator)
        chunk[:, :, 0, 0, :, 0] = torch.arange(n_frames) + numbered  # no two columns sort alike
        numbered += n_frames
        expected = torch.cat((chunk, expected), dim=4)
        seen = run_chunk(cache, chunk, prompt_frames)
        for index, columns in enumerate(seen):
            wanted = expected[index // DEPTH, index % DEPTH]
            assert torch.equal(sort_columns(columns), sort_columns(wanted))
        if expected.shape[4] > prompt_frames + 100:
            kept = (expected[:, :, :, :, :prompt_frames], expected[:, :, :, :, -100:])
            expected = torch.cat(kept, dim=4)
        assert torch.equal(cache.ordered_attention(), expected)
        assert sorted(cache.columns) == list(range(cache.length))


def test_a_chunk_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        new_cache(20).begin(21)


def test_an_abandoned_chunk_changes_nothing() -> None:
    cache = new_cache(40)
    run_chunk(cache, torch.randn(STEPS, DEPTH, 2, HEADS, 10, 2 * HEAD_DIM), 40)
    before = cache.clone()
    writers = cache.begin(20)
    writers[0].extend(0, torch.zeros(2, HEADS, 20, HEAD_DIM), torch.zeros(2, HEADS, 20, HEAD_DIM))
    writers[0].keep_convolution(0, torch.zeros(2, 6, 2))
    assert torch.equal(cache.ordered_attention(), before.ordered_attention())
    assert torch.equal(cache.convolution, before.convolution)


def test_clone_is_independent_and_load_copies() -> None:
    base = new_cache(10)
    run_chunk(base, torch.randn(STEPS, DEPTH, 2, HEADS, 10, 2 * HEAD_DIM), 10)
    cache = new_cache(60)
    cache.load(base)
    copy = cache.clone()
    run_chunk(cache, torch.randn(STEPS, DEPTH, 2, HEADS, 20, 2 * HEAD_DIM), 10)
    assert (base.length, copy.length, cache.length) == (10, 10, 30)
    assert torch.equal(copy.ordered_attention(), base.ordered_attention())
    assert torch.equal(copy.convolution, base.convolution)
    assert not torch.equal(cache.convolution, base.convolution)
