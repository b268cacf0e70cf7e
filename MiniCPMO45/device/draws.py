"""Draws: uniform numbers of a conversation's own generator on the host, and choices by them."""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

PHILOX_STEP = 4  # a CUDA generator counts in fours
SEED_MASK = (1 << 64) - 1
WORD_BITS, FLOAT_BITS = 32, 24  # of a float32 fraction
STATE = struct.Struct("<QQ")


def draw_uniforms(generator: torch.Generator, count: int) -> list[float]:
    """Take numbers from a generator and move it on.

    A CUDA generator is no more than a seed and an offset, both on the host: its numbers here are
    a hash of them. Whoever sets the generator back gets them again.

    Args:
        generator: the conversation's, on any device.
        count: numbers to take.

    Returns:
        Numbers in [0, 1), each of them a float32.
    """
    if generator.device.type == "cpu":
        return torch.rand(count, generator=generator).tolist()
    offset = generator.get_offset()
    generator.set_offset(offset + PHILOX_STEP)
    state = STATE.pack(generator.initial_seed() & SEED_MASK, offset)
    words = struct.unpack(f"<{count}I", hashlib.shake_128(state).digest(4 * count))
    return [(word >> (WORD_BITS - FLOAT_BITS)) * 2.0**-FLOAT_BITS for word in words]


def pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index whose cumulative weight exceeds the uniform share of the total.

    An index of weight 0 is never returned unless all are 0.

    Args:
        weights: float32 [rows, n], not negative, of any sum.
        uniform: float32 [rows, 1] in [0, 1).

    Returns:
        int64 [rows, 1].
    """
    mass = weights.cumsum(-1)
    is_beyond = (mass > uniform * mass[:, -1:]) & (weights > 0)  # sums of a GPU may fall a little
    likeliest = weights.argmax(-1, keepdim=True)
    first = is_beyond.int().argmax(-1, keepdim=True)
    return torch.where(is_beyond.any(-1, keepdim=True), first, likeliest)
