"""A buffer in pieces holds what one long tensor would hold."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from MiniCPMO45.processing.mel import SHORT_PIECE_SAMPLES, SampleBuffer

LONG = SHORT_PIECE_SAMPLES + 7


@given(
    st.lists(st.tuples(st.sampled_from([0, 1, 5, 400, LONG]), st.integers(0, 300)), max_size=8),
    st.integers(0, 3 * LONG),
    st.integers(0, 3 * LONG),
)
def test_it_equals_one_tensor(steps: list[tuple[int, int]], start: int, count: int) -> None:
    buffer, plain, position = SampleBuffer(), torch.zeros(0), 0
    for length, dropped in steps:
        samples = torch.arange(position, position + length).float()
        position += length
        buffer, plain = buffer.append(samples), torch.cat((plain, samples))
        dropped = min(dropped, buffer.length)
        buffer, plain = buffer.drop(dropped), plain[dropped:]
        assert buffer.length == len(plain)
        assert torch.equal(buffer.between(0, buffer.length), plain)
    assert torch.equal(buffer.between(start, start + count), plain[start : start + count])


def test_growing_copies_nothing_and_changes_no_older_buffer() -> None:
    first = SampleBuffer().append(torch.zeros(LONG))
    second = first.append(torch.ones(LONG))
    assert second.pieces[0] is first.pieces[0]
    assert first.length == LONG and second.length == 2 * LONG


def test_short_pieces_are_joined() -> None:
    buffer = SampleBuffer()
    for _ in range(100):
        buffer = buffer.append(torch.zeros(320))
    assert len(buffer.pieces) <= 1 + 100 * 320 // SHORT_PIECE_SAMPLES


def test_what_is_dropped_is_let_go() -> None:
    buffer = SampleBuffer().append(torch.zeros(LONG)).drop(LONG - 10)
    assert buffer.nbytes == 10 * 4
    [piece] = buffer.pieces
    assert piece.untyped_storage().nbytes() == 10 * 4
