"""Pure decisions: the next token of a unit or a reply, and the next speech code, from logits.

Functions on one row of logits return new tensors and do not change their input; each policy
composes them in its own order. Source: docs/specification/model.md#5.1, #5.4, #6.5 and #6.7.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.kernels.code_choice import MIN_KEPT, PENALTY_WINDOW
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import GREEDY, DuplexSettings, GenerationSettings


def penalise_repetition(logits: Tensor, ids: Sequence[int], penalty: float) -> Tensor:
    """Divide positive logits [V] of each distinct id by the penalty, multiply negative ones."""
    if penalty == 1.0 or not ids:
        return logits
    index = torch.tensor(sorted(set(ids)), device=logits.device)
    found = logits[index]
    return logits.index_put((index,), torch.where(found > 0, found / penalty, found * penalty))


def penalise_frequency(logits: Tensor, ids: Sequence[int], penalty: float) -> Tensor:
    """Penalise each id by penalty^(occurrences among the last 16 ids), sign-aware."""
    recent = ids[-PENALTY_WINDOW:]
    if penalty == 1.0 or not recent:
        return logits
    index = torch.tensor(recent, device=logits.device)
    counts = torch.bincount(index, minlength=len(logits))
    factor = torch.full_like(logits, penalty).pow(counts)
    return torch.where(logits < 0, logits * factor, logits / factor)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Mask logits below the k-th largest; ties with it stay. k <= 0 keeps all."""
    if k <= 0 or k >= logits.shape[-1]:
        return logits
    border = logits.topk(k).values[-1]
    return logits.masked_fill(logits < border, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Mask ids whose preceding cumulative probability exceeds `p`."""
    if p >= 1.0:
        return logits
    ordered, index = logits.sort(descending=True)
    mass = ordered.softmax(-1).cumsum(-1)
    is_tail = torch.zeros_like(mass, dtype=torch.bool)
    is_tail[1:] = mass[:-1] > p
    return logits.masked_fill(torch.zeros_like(is_tail).scatter(0, index, is_tail), -torch.inf)


def keep_top_p_ascending(logits: Tensor, p: float) -> Tensor:
    """Mask ids whose cumulative probability from the least likely on is at most 1 - p.

    The three likeliest stay.
    """
    if p >= 1.0:
        return logits
    ordered, index = logits.sort(descending=False)
    is_tail = ordered.softmax(-1).cumsum(-1) <= 1.0 - p
    is_tail[-MIN_KEPT:] = False
    return logits.masked_fill(torch.zeros_like(is_tail).scatter(0, index, is_tail), -torch.inf)


def draw(logits: Tensor, generator: torch.Generator | None) -> int:
    """Draw one id from softmax(logits) with the conversation's generator; None takes the argmax."""
    if generator is None:
        return int(logits.argmax())
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


PHILOX_STEP = 4  # a CUDA generator counts in fours
SEED_MASK = (1 << 64) - 1
WORD_BITS, FLOAT_BITS = 32, 24  # of a float32 fraction
STATE = struct.Struct("<QQ")


def draw_uniforms(generator: torch.Generator, count: int) -> list[float]:
    """Draw float32 numbers in [0, 1) from a generator.

    A CUDA generator is a seed and an offset on the host: its numbers are a hash of these, so that a
    restored generator yields them again.
    """
    if generator.device.type == "cpu":
        return torch.rand(count, generator=generator).tolist()
    offset = generator.get_offset()
    generator.set_offset(offset + PHILOX_STEP)
    state = STATE.pack(generator.initial_seed() & SEED_MASK, offset)
    words = struct.unpack(f"<{count}I", hashlib.shake_128(state).digest(4 * count))
    return [(word >> (WORD_BITS - FLOAT_BITS)) * 2.0**-FLOAT_BITS for word in words]


KEEPS_ALL = 2.0  # a top-p that no sum of probabilities reaches
MAX_UNIT_CHARACTERS = 28  # characters at which a unit is cut; docs/specification/model.md#6.4
MIN_TEMPERATURE = 1e-5  # below it a draw is the argmax anyway


class UnitPolicy:
    def __init__(self, tokens: SpecialTokens, device: torch.device) -> None:
        self.tokens = tokens
        self._forbidden = torch.tensor(tokens.unit_forbidden(), device=device)
        self._non_text = tokens.non_text_ids

    def decide(
        self,
        logits: Tensor,
        history: list[int],
        settings: DuplexSettings,
        generator: torch.Generator,
    ) -> int:
        """Decide one token from logits [vocabulary]; `history`, oldest first, is extended in place.

        The result is text, listen, turn end or a unit terminator.
        Source: docs/specification/model.md#6.5.
        """
        tokens = self.tokens
        source = None if settings.decode_mode == GREEDY else generator
        logits = logits.float()
        if draw(logits, source) == tokens.chunk_eos:
            return self.settle(tokens.chunk_eos, history)
        logits = logits.index_fill(0, self._forbidden, -torch.inf)
        size = settings.text_repetition_window_size
        recent = history[-size:] if size > 0 else []
        logits = penalise_repetition(logits, recent, settings.text_repetition_penalty)
        logits = penalise_repetition(logits, (tokens.turn_eos,), settings.length_penalty)
        scale, top_k = settings.listen_prob_scale, settings.listen_top_k
        if scale != 1.0:  # which multiplies the odds of listening
            logits = logits.clone()
            logits[tokens.listen] += math.log(scale) if scale > 0 else -math.inf
        if top_k is not None and int((logits > logits[tokens.listen]).sum()) < top_k:
            return tokens.listen  # what the rank decides is not remembered
        if source is not None:
            logits = logits / max(settings.temperature, MIN_TEMPERATURE)
            logits = keep_top_p(keep_top_k(logits, settings.top_k), settings.top_p)
        return self.settle(draw(logits, source), history)

    def settle(self, token: int, history: list[int]) -> int:
        """Record a drawn token in `history` and return it."""
        if token not in self._non_text:
            history.append(token)
        return token


REPLY_PENALTY_WINDOW = 128  # ids that are penalised; docs/specification/model.md#5.4


class ReplyPolicy:
    def __init__(self, tokens: SpecialTokens, device: torch.device) -> None:
        self.tokens = tokens
        self._forbidden = {
            wide: torch.tensor(tokens.spoken_reply_forbidden(not wide), device=device)
            for wide in (False, True)
        }

    def next_token(
        self,
        logits: Tensor,
        ids: Sequence[int],
        settings: GenerationSettings,
        generator: torch.Generator,
        *,
        is_one_shot: bool = False,
    ) -> int:
        """Draw the next token of a reply from logits [vocabulary] and its tokens so far.

        A one-shot reply is drawn without marks and length penalty.
        Source: docs/specification/model.md#5.1 and #5.4.
        """
        logits, tokens = logits.float(), self.tokens
        terminators = sorted(tokens.chat_terminators if is_one_shot else tokens.reply_terminators)
        if not is_one_shot and settings.generate_audio and tokens.spoken_count(ids) == len(ids):
            forbidden = self._forbidden[settings.forbid_full_width_marks]
            logits = logits.index_fill(0, forbidden, -torch.inf)
        if len(ids) < settings.min_new_tokens:
            endings = torch.tensor(terminators, device=logits.device)
            logits = logits.index_fill(0, endings, -torch.inf)
        recent = ids if is_one_shot else ids[-REPLY_PENALTY_WINDOW:]
        logits = penalise_repetition(logits, recent, settings.repetition_penalty)
        if not is_one_shot:
            logits = penalise_repetition(logits, terminators, settings.length_penalty)
        if not settings.do_sample:
            return draw(logits, None)
        logits = logits / max(settings.temperature, MIN_TEMPERATURE)
        return draw(keep_top_p(keep_top_k(logits, settings.top_k), settings.top_p), generator)


@dataclass(frozen=True)
class CodeRule:
    """Sampling of speech codes.

    Logits are divided by `temperature`, even if `is_greedy`. `repetition_penalty` applies per
    occurrence among the last 16 codes; a `top_p` of 1 and a `top_k` of 0 keep all.
    """

    temperature: float
    repetition_penalty: float
    top_p: float = 1.0
    top_k: int = 0
    is_greedy: bool = False

    @property
    def fewest_kept(self) -> int:
        """Number of codes that the top-k filter keeps; 0 keeps all."""
        return max(self.top_k, MIN_KEPT) if self.top_k else 0

    @property
    def divisor(self) -> float:
        return max(self.temperature, MIN_TEMPERATURE)

    def choose(
        self,
        logits: Tensor,
        codes: Sequence[int],
        eos: int,
        generator: torch.Generator,
        *,
        may_end: bool,
    ) -> int:
        """Draw the next code from logits, float32 [codes]; `codes` are penalised, oldest first.

        Source: docs/specification/model.md#5.6 and #6.7.
        """
        logits = penalise_frequency(logits / self.divisor, codes, self.repetition_penalty)
        logits = keep_top_p_ascending(logits, self.top_p)
        logits = keep_top_k(logits, self.fewest_kept)
        if not may_end:
            logits = logits.clone()
            logits[eos] = -torch.inf
        return draw(logits, None if self.is_greedy else generator)
