"""One speech code per row in one program each: penalty, filters, draw and notes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from MiniCPMO45.code_rule import MIN_KEPT, PENALTY_WINDOW
from MiniCPMO45.device.code_choice import N_INTEGERS, N_WORDS, NO_CODE, UNIFORM
from MiniCPMO45.device.kernels.borders import (
    largest_with_count,
    largest_with_mass,
    ordered_bits,
)
from MiniCPMO45.device.kernels.launch import await_rows, let_next_start, overlaps_launches

WARPS = 16


@triton.jit
def _keep(value, weight, top_k, top_p, MIN_KEPT: tl.constexpr):
    """Which codes the nucleus and the top-k filter leave; ties count in the order of the codes."""
    order = ordered_bits(value)
    limit = top_p * tl.sum(weight, 0)
    border = largest_with_mass(order, weight, limit, False)
    is_tie = (order == border).to(tl.int32)
    rank = tl.cumsum(is_tie, 0) - is_tie
    before = tl.sum(tl.where(order > border, weight, 0.0), 0) + rank.to(tl.float32) * weight
    kept = (order > border) | ((is_tie > 0) & (before < limit))
    border = largest_with_count(order, MIN_KEPT)
    is_tie = (order == border).to(tl.int32)
    rank = tl.sum((order > border).to(tl.int32), 0) + tl.cumsum(is_tie, 0) - is_tie
    kept = kept | (order > border) | ((is_tie > 0) & (rank < MIN_KEPT))
    return kept & (order >= largest_with_count(order, top_k))


@triton.jit
def _choose_code(
    logits,
    words,
    drawn,
    out,
    n_codes,
    most,
    N_INTEGERS: tl.constexpr,
    N_WORDS: tl.constexpr,
    UNIFORM: tl.constexpr,
    WINDOW: tl.constexpr,
    MIN_KEPT: tl.constexpr,
    NO_CODE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    word = words + row * (UNIFORM + most)
    eos, is_greedy = tl.load(word), tl.load(word + 1) > 0
    top_k, is_filtered, least = tl.load(word + 2), tl.load(word + 3) > 0, tl.load(word + 4)
    n_heard, step, has_ended = tl.load(word + 5), tl.load(word + 6), tl.load(word + 7)
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
        kept = kept & _keep(value, weight, top_k, top_p, MIN_KEPT)
    kept = kept & ((code != eos) | (step >= least))

    value = tl.where(kept, value, float("-inf"))
    likeliest = tl.min(tl.where(value == tl.max(value, 0), code, n_codes - 1), 0)
    weight = tl.where(kept, weight, 0.0)
    beyond = (tl.cumsum(weight, 0) > share * tl.sum(weight, 0)) & (weight > 0)
    first = tl.min(tl.where(beyond, code, BLOCK), 0)
    chosen = tl.where(is_greedy | (first == BLOCK), likeliest, first)

    tl.store(out + row, chosen.to(tl.int64))
    tl.store(drawn + row * most + column, tl.where(total == total, chosen, NO_CODE).to(tl.int64))
    tl.store(word + N_WORDS + (n_heard + step) % WINDOW, chosen)
    tl.store(word + 6, step + 1)
    tl.store(word + 7, has_ended | (chosen == eos).to(tl.int32))


def choose_codes(words: Tensor, drawn: Tensor, logits: Tensor) -> Tensor:
    """Draw the next code of every row and note it; see the plain twin."""
    rows, n_codes = logits.shape
    out = drawn.new_empty(rows)
    overlaps = overlaps_launches(logits)
    _choose_code[(rows,)](
        logits,
        words,
        drawn,
        out,
        n_codes,
        drawn.shape[1],
        N_INTEGERS=N_INTEGERS,
        N_WORDS=N_WORDS,
        UNIFORM=UNIFORM,
        WINDOW=PENALTY_WINDOW,
        MIN_KEPT=MIN_KEPT,
        NO_CODE=NO_CODE,
        BLOCK=triton.next_power_of_2(n_codes),
        OVERLAPS=overlaps,
        num_warps=WARPS,
        launch_pdl=overlaps,
    )
    return out
