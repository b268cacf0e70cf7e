"""Pure decisions of one duplex unit: which token comes next, and when a unit is full."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from MiniCPMO45.compat import Compat
from MiniCPMO45.sampling import (
    add_bias,
    divide_repeated,
    draw,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    scale_terminators,
)
from MiniCPMO45.settings import DuplexSettings
from MiniCPMO45.special_tokens import SpecialTokens

MAX_UNIT_CHARACTERS = 28  # characters at which a unit is cut; docs/specification/model.md#6.4
MIN_TEMPERATURE = 1e-5  # below it a draw is the argmax anyway


class UnitPolicy:
    """Decides one token at a time from logits, settings and what was decided before.

    Attributes:
        tokens: ids of the control tokens.
        compat: which reference defects to reproduce.
    """

    def __init__(self, tokens: SpecialTokens, device: torch.device, compat: Compat) -> None:
        self.tokens = tokens
        self.compat = compat
        self._forbidden = torch.tensor(tokens.unit_forbidden(), device=device)
        self._untold = tokens.untold_ids

    def decide(
        self,
        logits: Tensor,
        history: list[int],
        settings: DuplexSettings,
        generator: torch.Generator,
    ) -> int:
        """Take one decision and record it in `history`.

        Args:
            logits: [vocabulary] after the last row fed.
            history: decisions so far, oldest first; extended in place.
            settings: the conversation's settings.
            generator: the conversation's random generator.

        Returns:
            The decided id: text, listen, turn end or a unit terminator.

        Source: docs/specification/model.md#6.5.
        """
        tokens, compat = self.tokens, self.compat
        source = None if settings.is_greedy else generator
        if not compat.sample_in_model_dtype:
            logits = logits.float()
        if draw(logits, source) == tokens.chunk_eos:
            return self.settle(tokens.chunk_eos, history)
        logits = logits.index_fill(0, self._forbidden, -torch.inf)
        logits = self._penalise(logits, history, settings)
        biased = tokens.im_end if compat.listen_bias_on_im_end else tokens.listen
        if settings.listen_prob_scale != 1.0:
            logits = self._bias(logits, biased, settings.listen_prob_scale)
        if settings.listen_top_k is not None and _rank(logits, biased) < settings.listen_top_k:
            return self.settle(biased, [])  # what the rank decides is not remembered
        if source is not None:
            logits = logits / max(settings.temperature, MIN_TEMPERATURE)
            logits = keep_top_p(keep_top_k(logits, settings.top_k), settings.top_p)
        return self.settle(draw(logits, source), history)

    def settle(self, token: int, history: list[int]) -> int:
        """Record a drawn token, wherever it was drawn, and return what is decided.

        Args:
            token: the id that was drawn.
            history: decisions so far, oldest first; extended in place.
        """
        if token == self.tokens.chunk_eos:
            return token
        if self.compat.unsigned_repetition_penalty or token not in self._untold:
            history.append(token)
        return token

    def _penalise(self, logits: Tensor, history: list[int], settings: DuplexSettings) -> Tensor:
        size = settings.text_repetition_window_size
        recent = history[-size:] if size > 0 else []
        is_unsigned = self.compat.unsigned_repetition_penalty
        penalise = divide_repeated if is_unsigned else penalise_repetition
        logits = penalise(logits, recent, settings.text_repetition_penalty)
        return scale_terminators(logits, (self.tokens.turn_eos,), settings.length_penalty)

    def _bias(self, logits: Tensor, token: int, scale: float) -> Tensor:
        if self.compat.listen_bias_on_im_end:
            changed = logits.clone()
            changed[token] *= scale
            return changed
        return add_bias(logits, token, math.log(scale) if scale > 0 else -math.inf)


def _rank(logits: Tensor, token: int) -> int:
    return int((logits > logits[token]).sum())
