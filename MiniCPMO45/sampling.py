"""Sampling primitives on one row of logits; each mode composes them in its own order.

Functions return new tensors and leave their input alone. Source: docs/specification/model.md#5.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def penalise_repetition(logits: Tensor, ids: Sequence[int], penalty: float) -> Tensor:
    """Make each distinct id of `ids` less likely: divide positive logits, multiply negative ones.

    Args:
        logits: [V].
        ids: ids that occurred, in any order, repeats allowed.
        penalty: factor >= 1; 1 changes nothing.
    """
    return _scale_at(logits, ids, penalty) if penalty != 1.0 else logits


def penalise_frequency(
    logits: Tensor, ids: Sequence[int], penalty: float, window: int = 16
) -> Tensor:
    """Penalise each id by penalty^(occurrences among the last `window` ids), sign-aware."""
    recent = ids[-window:]
    if penalty == 1.0 or not recent:
        return logits
    index = torch.tensor(recent, device=logits.device)
    counts = torch.zeros_like(logits).index_add_(
        0, index, torch.ones(len(recent), dtype=logits.dtype, device=logits.device)
    )
    factor = torch.full_like(logits, penalty).pow(counts)
    return torch.where(logits < 0, logits * factor, logits / factor)


def scale_terminators(logits: Tensor, ids: Sequence[int], penalty: float) -> Tensor:
    """Make ending less likely for `penalty` > 1: the length penalty on the ids in `ids`."""
    return _scale_at(logits, ids, penalty) if penalty != 1.0 else logits


def add_bias(logits: Tensor, token: int, bias: float) -> Tensor:
    """Add `bias` to one logit, which multiplies the token's odds by e^bias."""
    changed = logits.clone()
    changed[token] += bias
    return changed


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Mask everything below the k-th largest logit; ties at the border stay. k <= 0 keeps all."""
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    border = logits.topk(k).values[-1]
    return logits.masked_fill(logits < border, -torch.inf)


def keep_top_p(logits: Tensor, p: float, *, keep: int = 1) -> Tensor:
    """Mask the tail once the probability before an id exceeds `p`; at least `keep` ids stay."""
    if p >= 1.0:
        return logits
    ordered, index = logits.sort(descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    is_tail = torch.zeros_like(mass, dtype=torch.bool)
    is_tail[1:] = mass[:-1] > p
    is_tail[:keep] = False
    return logits.masked_fill(torch.zeros_like(is_tail).scatter(0, index, is_tail), -torch.inf)


def keep_top_p_ascending(logits: Tensor, p: float, *, keep: int = 3) -> Tensor:
    """Nucleus filter counted from the unlikely end: mask ids whose cumulative mass is <= 1-p."""
    if p >= 1.0:
        return logits
    ordered, index = logits.sort(descending=False)
    is_tail = ordered.softmax(-1).cumsum(-1) <= 1.0 - p
    is_tail[-keep:] = False
    return logits.masked_fill(torch.zeros_like(is_tail).scatter(0, index, is_tail), -torch.inf)


def draw(logits: Tensor, generator: torch.Generator | None) -> int:
    """Draw one id from softmax(logits) with the conversation's generator; None takes the argmax."""
    if generator is None:
        return int(logits.argmax())
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


def _scale_at(logits: Tensor, ids: Sequence[int], penalty: float) -> Tensor:
    if not ids:
        return logits
    index = _distinct(ids, logits)
    found = logits[index]
    return logits.index_put((index,), torch.where(found > 0, found / penalty, found * penalty))


def _distinct(ids: Sequence[int], logits: Tensor) -> Tensor:
    return torch.tensor(sorted(set(ids)), device=logits.device)
