"""Sampling of one text token per row, from parameters in a table of words.

In plain PyTorch it decides as `UnitPolicy.decide` does, in fixed shapes. On a card the scan masks
and penalises, and leaves the largest value of every group of neighbours. As many values as the
top-k filter wants are at least as large as that many groups' largest, so that the choice reads
only those groups.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from MiniCPMO45.kernels.code_choice import largest_with_count, nucleus, ordered_bits, pick
from MiniCPMO45.kernels.device import (
    await_rows,
    dependent_launch,
    let_next_start,
    runs_kernels,
    tl,
    triton,
)

MOST_RECENT = 512  # ids a repetition penalty looks back at
MOST_CANDIDATES = 256  # largest top-k; ties beyond are lost
NO_TOKEN = -1  # of logits that are not numbers


class UnitWords(NamedTuple):
    """Parameters of a row, 32 bits each. The defaults take the likeliest token.

    `probe` and `draw` are uniform numbers in [0, 1).
    """

    chunk_eos: int = 0
    turn_eos: int = 0
    listen: int = 0
    is_greedy: int = 1
    top_k: int = 1
    listen_top_k: int = 0
    n_recent: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0
    listen_bias: float = 0.0
    probe: float = 0.0
    draw: float = 0.0


UNIT_FORMAT = "=7i7f"  # of `UnitWords`; recent ids follow
N_INTEGERS = UnitWords._fields.index("temperature")
N_WORDS = len(UnitWords._fields)
N_COLUMNS = N_WORDS + MOST_RECENT


def choose_tokens(words: Tensor, is_forbidden: Tensor, logits: Tensor) -> Tensor:
    """Choose a token per row, int64 [rows]; NO_TOKEN where logits are not numbers.

    `UnitPolicy.settle` must follow.

    Args:
        words: int32 [rows, N_COLUMNS]: bits of `UnitWords`, recent ids.
        is_forbidden: bool [vocabulary].
        logits: [rows, vocabulary], any floating dtype; unchanged.

    Source: docs/specification/model.md#6.5. The probe's draw from all tokens matters only for
        whether it is the chunk's end, so one uniform number is enough.
    """
    if runs_kernels(logits):
        return _launch_choose_tokens(words, is_forbidden, logits)
    integers = words[:, :N_INTEGERS].long().split(1, dim=1)  # [rows, 1] each
    chunk_eos, turn_eos, listen, is_greedy, top_k, listen_top_k, n_recent = integers
    reals = words[:, N_INTEGERS:N_WORDS].view(torch.float32).split(1, dim=1)
    temperature, top_p, penalty, length_penalty, bias, probe, uniform = reals
    is_greedy = is_greedy > 0

    wide = logits.float()
    total = wide.logsumexp(-1, keepdim=True)
    chance = (wide.gather(1, chunk_eos) - total).exp()
    is_likeliest = wide.argmax(-1, keepdim=True) == chunk_eos
    ends = torch.where(is_greedy, is_likeliest, probe < chance)

    wide = wide.masked_fill(is_forbidden, -torch.inf)
    ids = words[:, N_WORDS:].long()
    places = torch.arange(MOST_RECENT, device=words.device)
    recent = torch.where(places < n_recent, ids, ids[:, :1])  # unused places repeat the first
    _scale(wide, recent, torch.where(n_recent > 0, penalty, 1.0))
    _scale(wide, turn_eos, length_penalty)
    wide.scatter_add_(1, listen, bias)
    rank = (wide > wide.gather(1, listen)).sum(-1, keepdim=True)

    values, ids = wide.topk(min(MOST_CANDIDATES, wide.shape[1]))
    values = values / temperature
    values = values.masked_fill(values < values.gather(1, top_k - 1), -torch.inf)
    weights = values.softmax(-1)
    before = weights.cumsum(-1) - weights
    weights = torch.zeros_like(wide).scatter_(1, ids, weights * (before <= top_p))

    token = torch.where(is_greedy, wide.argmax(-1, keepdim=True), pick(weights, uniform))
    token = torch.where(rank < listen_top_k, listen, token)
    return torch.where(ends, chunk_eos, token).masked_fill(total.isnan(), NO_TOKEN)[:, 0]


def _scale(logits: Tensor, ids: Tensor, penalty: Tensor) -> None:
    """Penalise ids [rows, n] in place, repeated ids once."""
    found = logits.gather(1, ids)
    logits.scatter_(1, ids, torch.where(found > 0, found / penalty, found * penalty))


BLOCK = 1024  # logits of one program of the scan
GROUP = 32  # adjacent tokens of which the scan keeps the largest
SCAN_WARPS = 4
CHOICE_WARPS = 16
FEW_GROUPS = 32  # enough for a usual top-k; fewer are read faster


@triton.jit
def _real(word, PLACE: tl.constexpr, N_INTEGERS: tl.constexpr = N_INTEGERS):
    return tl.load(word + N_INTEGERS + PLACE).to(tl.float32, bitcast=True)


@triton.jit
def _penalised(value, penalty):
    return tl.where(value > 0, tl.div_rn(value, penalty), value * penalty)


@triton.jit
def _adjusted(value, token, is_forbidden, is_recent, word):
    """Forbid, penalise and bias raw logits of some tokens."""
    value = tl.where(is_forbidden, float("-inf"), value)
    value = tl.where(is_recent, _penalised(value, _real(word, 2)), value)
    is_turn_end = token == tl.load(word + 1)
    value = tl.where(is_turn_end, _penalised(value, _real(word, 3)), value)
    return tl.where(token == tl.load(word + 2), value + _real(word, 4), value)


@triton.jit
def _scan(
    logits, words, forbidden, adjusted, largest, raw_largest, raw_token, raw_sum, above_listen,
    vocabulary, OVERLAPS: tl.constexpr, N_COLUMNS: tl.constexpr = N_COLUMNS,
    N_WORDS: tl.constexpr = N_WORDS, RECENT: tl.constexpr = MOST_RECENT,
    BLOCK: tl.constexpr = BLOCK, GROUP: tl.constexpr = GROUP,
):  # fmt: skip
    let_next_start(OVERLAPS)
    block, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks = tl.num_programs(0)
    word = words + row * N_COLUMNS
    token = block * BLOCK + tl.arange(0, BLOCK)
    is_token = token < vocabulary
    is_barred = tl.load(forbidden + token, mask=is_token, other=1) > 0
    await_rows(OVERLAPS)
    own = logits + row * vocabulary
    raw = tl.load(own + token, mask=is_token, other=float("-inf")).to(tl.float32)
    top = tl.max(raw, 0)
    at = row * blocks + block
    tl.store(raw_largest + at, top)
    tl.store(raw_token + at, tl.min(tl.where(raw == top, token, vocabulary - 1), 0))
    tl.store(raw_sum + at, tl.sum(tl.exp(raw - top), 0))
    place = tl.arange(0, RECENT)
    recent = tl.load(word + N_WORDS + place, mask=place < tl.load(word + 6), other=-1)
    inside = recent - block * BLOCK
    is_inside = (recent >= 0) & (inside >= 0) & (inside < BLOCK)
    is_recent = token < 0
    if tl.max(is_inside.to(tl.int32), 0) > 0:  # few blocks hold one, and counting is slow
        is_recent = tl.histogram(inside, BLOCK, mask=is_inside) > 0
    value = _adjusted(raw, token, is_barred, is_recent, word)
    tl.store(adjusted + at * BLOCK + tl.arange(0, BLOCK), value)
    groups = tl.max(tl.reshape(value, [BLOCK // GROUP, GROUP]), 1)
    tl.store(largest + at * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP), groups)
    if tl.load(word + 5) > 0:
        listen = tl.load(word + 2)
        listening = tl.load(own + listen).to(tl.float32)
        is_repeated = tl.max((recent == listen).to(tl.int32), 0) > 0
        is_mute = tl.load(forbidden + listen) > 0
        listening = _adjusted(listening, listen, is_mute, is_repeated, word)
        tl.store(above_listen + at, tl.sum((value > listening).to(tl.int32), 0))


@triton.jit
def _ends_unit(
    logits, word, raw_largest, raw_token, raw_sum, blocks, vocabulary, BLOCKS: tl.constexpr
):
    """Whether the probe, greedy or drawn, is the chunk's end. Also whether logits are finite."""
    block = tl.arange(0, BLOCKS)
    is_block = block < blocks
    tops = tl.load(raw_largest + block, mask=is_block, other=float("-inf"))
    sums = tl.load(raw_sum + block, mask=is_block, other=0.0)
    tokens = tl.load(raw_token + block, mask=is_block, other=vocabulary)
    top = tl.max(tops, 0)
    total = tl.sum(tl.where(is_block, sums * tl.exp(tops - top), 0.0), 0)
    likeliest = tl.min(tl.where(tops == top, tokens, vocabulary), 0)
    chunk_eos = tl.load(word)
    chance = tl.exp(tl.load(logits + chunk_eos).to(tl.float32) - top) / total
    is_drawn = _real(word, 5) < chance
    return tl.where(tl.load(word + 3) > 0, likeliest == chunk_eos, is_drawn), total == total


@triton.jit
def _chosen_groups(largest, mine, top_k, n_groups, GROUPS: tl.constexpr, CANDIDATES: tl.constexpr):
    """Write the groups that may hold one of the top-k to `mine`, in order; return their number."""
    group = tl.arange(0, GROUPS)
    tops = tl.load(largest + group, mask=group < n_groups, other=float("-inf"))
    order = ordered_bits(tops)
    is_chosen = (order >= largest_with_count(order, top_k)) & (group < n_groups)
    place = tl.cumsum(is_chosen.to(tl.int32), 0) - 1
    tl.store(mine + place, group, mask=is_chosen & (place < CANDIDATES))
    tl.debug_barrier()
    return tl.minimum(tl.sum(is_chosen.to(tl.int32), 0), CANDIDATES)


@triton.jit
def _pick_among(
    values, groups, n_groups, word, vocabulary, MOST: tl.constexpr, GROUP: tl.constexpr = GROUP
):
    """Return the likeliest token of the groups, or one drawn from those that pass the filters."""
    lane = tl.arange(0, MOST * GROUP)
    is_lane = lane // GROUP < n_groups
    token = tl.load(groups + lane // GROUP, mask=is_lane, other=0) * GROUP + lane % GROUP
    is_lane = is_lane & (token < vocabulary)
    value = tl.load(values + token, mask=is_lane, other=float("-inf"))
    likeliest = tl.min(tl.where(is_lane & (value == tl.max(value, 0)), token, vocabulary - 1), 0)
    value = tl.div_rn(value, _real(word, 0))
    top_p, uniform = _real(word, 1), _real(word, 6)
    order = ordered_bits(value)
    kept = (order >= largest_with_count(order, tl.load(word + 4))) & (value > float("-inf"))
    weight = tl.where(kept, tl.exp(value - tl.max(value, 0)), 0.0)
    kept = kept & nucleus(order, weight, top_p, True)
    weight = tl.where(kept, weight, 0.0)
    beyond = (tl.cumsum(weight, 0) > uniform * tl.sum(weight, 0)) & (weight > 0)
    drawn = tl.min(tl.where(beyond, token, vocabulary), 0)
    return tl.where((tl.load(word + 3) > 0) | (drawn == vocabulary), likeliest, drawn)


@triton.jit
def _choose(
    logits, words, adjusted, largest, raw_largest, raw_token, raw_sum, above_listen, chosen_groups,
    out, vocabulary, blocks, BLOCKS: tl.constexpr, GROUPS: tl.constexpr, OVERLAPS: tl.constexpr,
    N_COLUMNS: tl.constexpr = N_COLUMNS, BLOCK: tl.constexpr = BLOCK, GROUP: tl.constexpr = GROUP,
    CANDIDATES: tl.constexpr = MOST_CANDIDATES, FEW: tl.constexpr = FEW_GROUPS,
    NO_TOKEN: tl.constexpr = NO_TOKEN,
):  # fmt: skip
    let_next_start(OVERLAPS)
    await_rows(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    word = words + row * N_COLUMNS
    top_k = tl.load(word + 4)
    n_groups = blocks * (BLOCK // GROUP)
    mine = chosen_groups + row * CANDIDATES
    n_chosen = _chosen_groups(largest + row * n_groups, mine, top_k, n_groups, GROUPS, CANDIDATES)

    values = adjusted + row * blocks * BLOCK
    if n_chosen <= FEW:
        chosen = _pick_among(values, mine, n_chosen, word, vocabulary, FEW)
    else:
        chosen = _pick_among(values, mine, n_chosen, word, vocabulary, CANDIDATES)

    listen_top_k = tl.load(word + 5)
    block = tl.arange(0, BLOCKS)
    counts = tl.load(above_listen + row * blocks + block, mask=block < blocks, other=0)
    if listen_top_k > 0:
        chosen = tl.where(tl.sum(counts, 0) < listen_top_k, tl.load(word + 2), chosen)
    at = row * blocks
    ends, is_sound = _ends_unit(
        logits + row * vocabulary, word, raw_largest + at, raw_token + at, raw_sum + at,
        blocks, vocabulary, BLOCKS,
    )  # fmt: skip
    chosen = tl.where(ends, tl.load(word), chosen)
    tl.store(out + row, tl.where(is_sound, chosen, NO_TOKEN).to(tl.int64))


def _launch_choose_tokens(words: Tensor, is_forbidden: Tensor, logits: Tensor) -> Tensor:
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, BLOCK)
    adjusted = logits.new_empty(rows, blocks, BLOCK, dtype=torch.float32)
    largest = logits.new_empty(rows, blocks, BLOCK // GROUP, dtype=torch.float32)
    tops, sums = logits.new_empty(2, rows, blocks, dtype=torch.float32)
    tokens, counts = logits.new_empty(2, rows, blocks, dtype=torch.int32)
    groups = logits.new_empty(rows, MOST_CANDIDATES, dtype=torch.int32)
    out = logits.new_empty(rows, dtype=torch.int64)
    scanned = (adjusted, largest, tops, tokens, sums, counts)
    overlap, forbidden = dependent_launch(logits), is_forbidden.view(torch.int8)
    _scan[(blocks, rows)](
        logits, words, forbidden, *scanned, vocabulary, num_warps=SCAN_WARPS, **overlap
    )
    sizes = {"BLOCKS": triton.next_power_of_2(blocks), "num_warps": CHOICE_WARPS}
    sizes["GROUPS"] = triton.next_power_of_2(blocks * (BLOCK // GROUP))
    _choose[(rows,)](logits, words, *scanned, groups, out, vocabulary, blocks, **sizes, **overlap)
    return out
