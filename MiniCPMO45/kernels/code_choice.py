"""Sampling of one speech code per row, from parameters in a table of words.

In plain PyTorch it draws as `CodeRule.choose` does, in fixed shapes and without waiting for the
device. The thresholds of the sampling filters are found by bisection over bits.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from MiniCPMO45.kernels.device import (
    await_rows,
    dependent_launch,
    let_next_start,
    runs_kernels,
    tl,
    triton,
)


@triton.jit
def ordered_bits(value):
    """Map float32 to uint32, preserving order."""
    bits = value.to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@triton.jit
def largest_with_count(order, count):
    """Return a threshold that `count` values reach, or more with ties; 0 if fewer values exist."""
    border, bit = tl.full((), 0, tl.uint32), tl.full((), 0x80000000, tl.uint32)
    while bit > 0:
        trial = border | bit
        reached = tl.sum((order >= trial).to(tl.int32), 0)
        border = tl.where(reached >= count, trial, border)
        bit = tl.where(reached == count, 0, bit >> 1).to(tl.uint32)
    return border


@triton.jit
def nucleus(order, weight, top_p, KEEPS_EQUAL: tl.constexpr):
    """Mask of the values preceded by weights below a share of the total, or equal to it.

    The largest comes first; ties are ordered by place.
    """
    limit = top_p * tl.sum(weight, 0)
    border, bit = tl.full((), 0, tl.uint32), tl.full((), 0x80000000, tl.uint32)
    for _ in range(32):
        trial = border | bit
        mass = tl.sum(tl.where(order >= trial, weight, 0.0), 0)
        is_enough = mass > limit if KEEPS_EQUAL else mass >= limit
        border = tl.where(is_enough, trial, border)
        bit = bit >> 1
    is_tie = (order == border).to(tl.int32)
    rank = tl.cumsum(is_tie, 0) - is_tie
    before = tl.sum(tl.where(order > border, weight, 0.0), 0) + rank.to(tl.float32) * weight
    is_within = before <= limit if KEEPS_EQUAL else before < limit
    return (order > border) | ((is_tie > 0) & is_within)


def pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the first index whose cumulative weight exceeds the uniform share of the total.

    An index of weight 0 is never returned unless all are 0. `weights` are float32 [rows, n] of any
    sum, `uniform` [rows, 1] in [0, 1); the result is int64 [rows, 1].
    """
    mass = weights.cumsum(-1)
    # A GPU's cumulative sums may decrease slightly.
    is_beyond = (mass > uniform * mass[:, -1:]) & (weights > 0)
    likeliest = weights.argmax(-1, keepdim=True)
    first = is_beyond.int().argmax(-1, keepdim=True)
    return torch.where(is_beyond.any(-1, keepdim=True), first, likeliest)


PENALTY_WINDOW = 16  # codes the repetition penalty looks back at
MIN_KEPT = 3  # codes a filter always keeps

MOST_CANDIDATES = 256  # largest top-k; ties beyond are lost


class CodeWords(NamedTuple):
    """Parameters of a row, 32 bits each. The defaults take the likeliest code."""

    eos: int = 0
    is_greedy: int = 1
    top_k: int = 1
    is_filtered: int = 0
    least: int = 0
    n_recent: int = 0
    step: int = 0  # codes drawn so far; it and `has_ended` change with every code
    has_ended: int = 0
    divisor: float = 1.0
    top_p: float = 1.0
    penalty: float = 1.0


CODE_FORMAT = struct.Struct("=8i3f")
N_INTEGERS = CodeWords._fields.index("divisor")
N_WORDS = len(CodeWords._fields)
UNIFORM = N_WORDS + PENALTY_WINDOW  # after the ring of recent codes: a uniform number per code
NO_CODE = -1  # an empty place of the ring, or a draw from logits that are not finite


def choose_codes(words: Tensor, drawn: Tensor, logits: Tensor) -> Tensor:
    """Draw and record the next code of every row: int64 [rows].

    Args:
        words: int32 [rows, UNIFORM + most]: bits of `CodeWords`, ring, uniform numbers; updated.
        drawn: int64 [rows, most], codes drawn, the end of speech included; NO_CODE where logits are
            not numbers; a step beyond them repeats the last; updated.
        logits: [rows, codes], any floating dtype; unchanged.

    Source: docs/specification/model.md#5.6 and #6.7.
    """
    if runs_kernels(logits):
        rows, n_codes = logits.shape
        out, sizes = drawn.new_empty(rows), (n_codes, drawn.shape[1])
        options = {"BLOCK": triton.next_power_of_2(n_codes), "num_warps": WARPS}
        options |= dependent_launch(logits)
        _choose_code[(rows,)](logits, words, drawn, out, *sizes, **options)
        return out
    integers = words[:, :N_INTEGERS].long().split(1, dim=1)  # [rows, 1] each
    eos, is_greedy, top_k, is_filtered, least, n_recent, step, has_ended = integers
    divisor, top_p, penalty = words[:, N_INTEGERS:N_WORDS].view(torch.float32).split(1, dim=1)
    ring = words[:, N_WORDS:UNIFORM].long()
    column = step.clamp(max=drawn.shape[1] - 1)
    uniform = words[:, UNIFORM:].view(torch.float32).gather(1, column)

    scaled = _penalise(logits / divisor, ring, penalty)
    is_barred = step < least
    found = scaled.gather(1, eos)
    ending = scaled.scatter(1, eos, found.masked_fill(is_barred, -torch.inf))

    total = scaled.logsumexp(-1, keepdim=True)
    weights = ending.softmax(-1)
    if bool((is_filtered > 0).any()):
        values, ids = scaled.topk(min(MOST_CANDIDATES, scaled.shape[1]))
        chances = (values - total).exp()
        is_kept = chances.cumsum(-1) - chances < top_p
        is_kept[:, :MIN_KEPT] = True
        is_kept &= values >= values.gather(1, top_k - 1)
        is_kept &= ~(is_barred & (ids == eos))
        filtered = torch.zeros_like(scaled).scatter_(1, ids, chances * is_kept)
        weights = torch.where(is_filtered > 0, filtered, weights)
    code = pick(weights, uniform)
    code = torch.where(is_greedy > 0, ending.argmax(-1, keepdim=True), code)

    drawn.scatter_(1, column, code.masked_fill(total.isnan(), NO_CODE))
    ring.scatter_(1, (n_recent + step) % PENALTY_WINDOW, code)
    words[:, N_WORDS:UNIFORM] = ring
    changed = torch.cat((step + 1, has_ended | (code == eos)), dim=1)
    words[:, N_INTEGERS - 2 : N_INTEGERS] = changed
    return code[:, 0]


def _penalise(logits: Tensor, ring: Tensor, penalty: Tensor) -> Tensor:
    ids = ring.clamp(min=0)  # an empty place names code 0 and is not counted
    counts = (ring[:, :, None] == ids[:, None, :]).sum(1)  # [rows, PENALTY_WINDOW]
    factor = penalty.pow(counts)
    found = logits.gather(1, ids)
    return logits.scatter(1, ids, torch.where(found < 0, found * factor, found / factor))


WARPS = 16


@triton.jit
def _keep(value, weight, top_k, top_p, MIN_KEPT: tl.constexpr = MIN_KEPT):
    """Mask of the codes that pass the nucleus and top-k filters; ties are ordered by code."""
    order = ordered_bits(value)
    kept = nucleus(order, weight, top_p, False)
    border = largest_with_count(order, MIN_KEPT)
    is_tie = (order == border).to(tl.int32)
    rank = tl.sum((order > border).to(tl.int32), 0) + tl.cumsum(is_tie, 0) - is_tie
    kept = kept | (order > border) | ((is_tie > 0) & (rank < MIN_KEPT))
    return kept & (order >= largest_with_count(order, top_k))


@triton.jit
def _choose_code(
    logits, words, drawn, out, n_codes, most, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
    N_INTEGERS: tl.constexpr = N_INTEGERS, N_WORDS: tl.constexpr = N_WORDS,
    UNIFORM: tl.constexpr = UNIFORM, WINDOW: tl.constexpr = PENALTY_WINDOW,
    NO_CODE: tl.constexpr = NO_CODE,
):  # fmt: skip
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    word = words + row * (UNIFORM + most)
    eos, is_greedy = tl.load(word), tl.load(word + 1) > 0
    top_k, is_filtered, least = tl.load(word + 2), tl.load(word + 3) > 0, tl.load(word + 4)
    n_recent, step, has_ended = tl.load(word + 5), tl.load(word + 6), tl.load(word + 7)
    divisor = tl.load(word + N_INTEGERS).to(tl.float32, bitcast=True)
    top_p = tl.load(word + N_INTEGERS + 1).to(tl.float32, bitcast=True)
    penalty = tl.load(word + N_INTEGERS + 2).to(tl.float32, bitcast=True)
    column = tl.minimum(step, most - 1)
    share = tl.load(word + UNIFORM + column).to(tl.float32, bitcast=True)

    code = tl.arange(0, BLOCK)
    is_code = code < n_codes
    value = tl.load(logits + row * n_codes + code, mask=is_code, other=float("-inf"))
    value = tl.div_rn(value.to(tl.float32), divisor)
    factor = tl.full((BLOCK,), 1.0, tl.float32)
    for place in tl.static_range(WINDOW):
        factor = tl.where(code == tl.load(word + N_WORDS + place), factor * penalty, factor)
    value = tl.where(value < 0, value * factor, tl.div_rn(value, factor))

    weight = tl.exp(value - tl.max(value, 0))
    total = tl.sum(weight, 0)
    kept = is_code
    if is_filtered:
        kept = kept & _keep(value, weight, top_k, top_p)
    kept = kept & ((code != eos) | (step >= least))

    value = tl.where(kept, value, float("-inf"))
    likeliest = tl.min(tl.where(value == tl.max(value, 0), code, n_codes - 1), 0)
    weight = tl.where(kept, weight, 0.0)
    beyond = (tl.cumsum(weight, 0) > share * tl.sum(weight, 0)) & (weight > 0)
    first = tl.min(tl.where(beyond, code, BLOCK), 0)
    chosen = tl.where(is_greedy | (first == BLOCK), likeliest, first)

    tl.store(out + row, chosen.to(tl.int64))
    tl.store(drawn + row * most + column, tl.where(total == total, chosen, NO_CODE).to(tl.int64))
    tl.store(word + N_WORDS + (n_recent + step) % WINDOW, chosen)
    tl.store(word + 6, step + 1)
    tl.store(word + 7, has_ended | (chosen == eos).to(tl.int32))
