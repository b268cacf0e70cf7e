"""One text token per row: how a row of the table reads, and the plain twin of the kernels.

The twin decides as `UnitPolicy.decide` does, in fixed shapes and without waiting for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from MiniCPMO45.device.draws import pick

MOST_RECENT = 512  # ids a repetition penalty looks back at
MOST_CANDIDATES = 256  # largest top-k; ties beyond are lost
NO_TOKEN = -1  # of logits that are not numbers
INTEGERS = (
    "chunk_eos",
    "turn_eos",
    "listen",
    "is_greedy",
    "top_k",
    "listen_top_k",
    "n_recent",
)
REALS = (
    "temperature",
    "top_p",
    "repetition_penalty",
    "length_penalty",
    "listen_bias",
    "probe",
    "draw",
)  # the last two are uniform numbers in [0, 1)
N_INTEGERS = len(INTEGERS)
N_WORDS = N_INTEGERS + len(REALS)  # recent ids follow
N_COLUMNS = N_WORDS + MOST_RECENT


def choose_tokens(words: Tensor, is_forbidden: Tensor, logits: Tensor) -> Tensor:
    """Decide a token per row; `UnitPolicy.settle` has to follow.

    Args:
        words: int32 [rows, N_COLUMNS], integers, reals as their bits, recent ids.
        is_forbidden: bool [vocabulary].
        logits: [rows, vocabulary], any floating dtype; left alone.

    Returns:
        int64 [rows]; NO_TOKEN where logits are not numbers.

    Source: docs/specification/model.md#6.5. The probe's draw from all tokens matters only for
        whether it is the chunk's end, so that one uniform number stands for it.
    """
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
    _scale(wide, _recent(words, n_recent), torch.where(n_recent > 0, penalty, 1.0))
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


def _recent(words: Tensor, n_recent: Tensor) -> Tensor:
    """Recent ids int64 [rows, MOST_RECENT]; unused places repeat the first."""
    ids = words[:, N_WORDS:].long()
    places = torch.arange(MOST_RECENT, device=words.device)
    return torch.where(places < n_recent, ids, ids[:, :1])


def _scale(logits: Tensor, ids: Tensor, penalty: Tensor) -> None:
    """Make ids [rows, n] less likely in place, each once however often it is named."""
    found = logits.gather(1, ids)
    logits.scatter_(1, ids, torch.where(found > 0, found / penalty, found * penalty))
