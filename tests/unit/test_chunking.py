"""Which codes go out when, and how long the answers are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from MiniCPMO45.token2wav.vocoder import (
    INT16_SCALE,
    CodeChunk,
    SpeechBuffer,
    cut_whole_reply,
    finish_unit,
)
from tests.fakes.vocoder_lengths import count_samples

SILENCE = (4218, 4218, 4218)


def consumed(pieces: list[CodeChunk]) -> list[int]:
    codes: list[int] = []
    for piece in pieces:
        codes += piece.codes if piece.is_last else piece.codes[:-3]
    return codes


def total_samples(pieces: list[CodeChunk]) -> int:
    return sum(count_samples(piece, is_first=i == 0) for i, piece in enumerate(pieces))


def test_a_full_unit_takes_28_codes_and_leaves_three() -> None:
    buffer = SpeechBuffer()
    (piece,) = buffer.push(list(range(25)), is_last=False)
    assert piece == CodeChunk((*SILENCE, *range(25)), is_last=False)
    assert buffer.waiting == [22, 23, 24]
    assert count_samples(piece, is_first=True) == 24_000
    (second,) = buffer.push(list(range(25, 50)), is_last=False)
    assert second.codes == tuple(range(22, 50))


def test_too_few_codes_wait() -> None:
    buffer = SpeechBuffer()
    assert buffer.push([1, 2, 3, 4], is_last=False) == []
    assert buffer.waiting == [*SILENCE, 1, 2, 3, 4]
    (piece,) = buffer.push([5], is_last=False)
    assert len(piece.codes) == 8 and buffer.waiting == [3, 4, 5]


def test_a_turn_without_codes_still_flushes_the_silence() -> None:
    buffer = SpeechBuffer()
    assert buffer.push([], is_last=True) == [CodeChunk(SILENCE, is_last=True)]
    assert buffer.push([], is_last=True) == []


@pytest.mark.parametrize("n_rest", range(3, 8))
def test_the_rest_of_a_turn_brings_the_overlap(n_rest: int) -> None:
    piece = CodeChunk((1,) * n_rest, is_last=True)
    assert count_samples(piece, is_first=False) == (8 + 2 * n_rest) * 480
    assert count_samples(piece, is_first=True) == 2 * n_rest * 480


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_every_code_sounds_once_however_the_turn_is_cut(unit_sizes: list[int]) -> None:
    codes = list(range(sum(unit_sizes)))
    buffer, pieces, start = SpeechBuffer(), [], 0
    for index, size in enumerate(unit_sizes):
        is_last = index == len(unit_sizes) - 1
        pieces += buffer.push(codes[start : start + size], is_last=is_last)
        start += size
    assert consumed(pieces) == [*SILENCE, *codes]
    assert all(len(piece.codes) <= 28 for piece in pieces)
    assert [piece.is_last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    overlap = 3840 if len(pieces) > 1 else 0
    assert total_samples(pieces) == 960 * (len(codes) + 3) + overlap


@pytest.mark.parametrize("n_codes", [0, 1, 27, 28, 29, 52, 53, 54, 78, 100])
def test_a_whole_reply_sounds_once(n_codes: int) -> None:
    codes = list(range(n_codes))
    pieces = cut_whole_reply(codes)
    assert consumed(pieces) == codes
    assert [piece.is_last for piece in pieces[-1:]] == [True] * bool(codes)


def test_samples_are_rounded_towards_zero_and_clipped() -> None:
    samples = np.array([0.0, 0.99999, -0.99999, 2.0, -2.0, 1.9 / 32_767, -1.9 / 32_767])
    steps = finish_unit(samples, is_last=True) * INT16_SCALE
    assert steps.tolist() == [0, 32_766, -32_766, 32_767, -32_767, 1, -1]


def test_a_short_unit_is_padded_in_front_inside_a_turn_only() -> None:
    samples = np.full(10, 0.5, np.float32)
    inside = finish_unit(samples, is_last=False)
    assert inside.shape == (24_000,) and inside.dtype == np.float32
    assert not inside[:-10].any() and np.all(inside[-10:] == np.float32(16_383 / 32_768))
    assert finish_unit(samples, is_last=True).shape == (10,)
    assert finish_unit(np.zeros(30_000), is_last=False).shape == (30_000,)
    assert finish_unit(np.zeros(0), is_last=False).shape == (0,)
