"""One speech code per row: how a row of the table reads, and the plain twin of the kernel.

The twin draws as `CodeRule.choose` does, in fixed shapes and without waiting for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.code_rule import MIN_KEPT, PENALTY_WINDOW
from MiniCPMO45.device.draws import pick

MOST_CANDIDATES = 256  # largest top-k; ties beyond are lost
INTEGERS = (
    "eos",
    "is_greedy",
    "top_k",
    "is_filtered",
    "least",
    "n_heard",
    "step",  # codes drawn so far; it and what follows change with every code
    "has_ended",
)
REALS = ("divisor", "top_p", "penalty")
N_INTEGERS = len(INTEGERS)
N_WORDS = N_INTEGERS + len(REALS)
UNIFORM = N_WORDS + PENALTY_WINDOW  # the ring of codes heard, then a uniform number per code
NO_CODE = -1  # an empty place of the ring; also what is noted when logits are not numbers


def choose_codes(words: Tensor, drawn: Tensor, logits: Tensor) -> Tensor:
    """Draw the next code of every row and note it.

    Args:
        words: int32 [rows, UNIFORM + most], integers, reals as their bits, ring, uniform numbers;
            updated.
        drawn: int64 [rows, most], codes drawn, the end of speech included; NO_CODE where logits
            are not numbers; a step beyond them repeats the last; updated.
        logits: [rows, codes], any floating dtype; left alone.

    Returns:
        int64 [rows].

    Source: docs/specification/model.md#5.6 and #6.7.
    """
    integers = words[:, :N_INTEGERS].long().split(1, dim=1)  # [rows, 1] each
    eos, is_greedy, top_k, is_filtered, least, n_heard, step, has_ended = integers
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
    ring.scatter_(1, (n_heard + step) % PENALTY_WINDOW, code)
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
