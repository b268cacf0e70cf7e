"""The borders of sampling filters among the values of one program, found bit by bit."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def ordered_bits(value):
    """Map float32 to uint32 in the same order."""
    bits = value.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def largest_with_count(order, count):
    """Return a border that `count` values reach, or more if they are tied; 0 if too few do."""
    border, bit = tl.full((), 0, tl.uint32), tl.full((), 0x80000000, tl.uint32)
    while bit > 0:
        trial = border | bit
        reached = tl.sum((order >= trial).to(tl.int32), 0)
        border = tl.where(reached >= count, trial, border)
        bit = tl.where(reached == count, 0, bit >> 1).to(tl.uint32)
    return border


@triton.jit
def largest_with_mass(order, weight, limit, IS_STRICT: tl.constexpr):
    """Return the largest border whose values weigh `limit` at least, or more if strict; else 0."""
    border, bit = tl.full((), 0, tl.uint32), tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        trial = border | bit
        mass = tl.sum(tl.where(order >= trial, weight, 0.0), 0)
        is_enough = mass > limit if IS_STRICT else mass >= limit
        border = tl.where(is_enough, trial, border)
        bit = bit >> 1
    return border
