"""Rotary positions: the table, and that a moved key is a key computed elsewhere."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from MiniCPMO45.kernels.products import Rope, rotate

HEAD_DIM = 16
THETA = 1_000_000.0
CPU = torch.device("cpu")
NEAR = 500  # positions at which float32 angles are still good to 1e-4

positions = st.integers(0, NEAR)


def _rope() -> Rope:
    return Rope.build(HEAD_DIM, THETA, device=CPU)


def _bare_keys(count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 2, HEAD_DIM, generator=generator)  # [n, heads, d]


def _keys_at(rope: Rope, bare: Tensor, start: int) -> Tensor:
    """Keys as the decoder computes them, laid out as the cache holds them [heads, n, d]."""
    cos, sin = rope.tables(torch.arange(start, start + len(bare)), bare.dtype)
    return rotate(bare, cos, sin).transpose(0, 1)


def test_frequencies_fall_from_one_geometrically() -> None:
    expected = [THETA ** (-2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]
    torch.testing.assert_close(_rope().frequencies, torch.tensor(expected))


def test_position_zero_rotates_nothing() -> None:
    bare = _bare_keys(1)
    assert torch.equal(_keys_at(_rope(), bare, 0), bare.transpose(0, 1))


def test_rotation_turns_each_pair_of_halves_by_position_times_frequency() -> None:
    bare, position = _bare_keys(1), 7
    angles = position * _rope().frequencies
    first, second = bare[0, 0].chunk(2)
    turned = torch.cat(
        (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    )
    torch.testing.assert_close(_keys_at(_rope(), bare, position)[0, 0], turned)


@given(start=positions, target=positions, count=st.integers(0, 5))
def test_a_moved_key_equals_one_computed_there(start: int, target: int, count: int) -> None:
    rope, bare = _rope(), _bare_keys(count)
    moved = rope.move(_keys_at(rope, bare, start), start, target)
    torch.testing.assert_close(moved, _keys_at(rope, bare, target), atol=1e-4, rtol=0)


@given(st.lists(st.integers(0, NEAR), min_size=2, max_size=8))
def test_a_chain_of_moves_equals_one(stops: list[int]) -> None:
    rope, bare = _rope(), _bare_keys(2)
    keys = _keys_at(rope, bare, stops[0])
    for start, target in zip(stops, stops[1:], strict=False):
        keys = rope.move(keys, start, target)
    torch.testing.assert_close(keys, _keys_at(rope, bare, stops[-1]), atol=2e-4, rtol=0)


def test_a_move_in_half_precision_rounds_once() -> None:
    rope, bare = _rope(), _bare_keys(4)
    half = _keys_at(rope, bare, 90).bfloat16()
    moved = rope.move(half, 90, 30)
    assert moved.dtype == torch.bfloat16
    assert torch.equal(moved, rope.move(half.float(), 90, 30).bfloat16())


def test_a_move_to_the_same_place_changes_no_bit() -> None:
    keys = _keys_at(_rope(), _bare_keys(3), 9)
    assert torch.equal(_rope().move(keys, 9, 9), keys)
