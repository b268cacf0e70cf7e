"""Pure decisions of one duplex unit: which token comes next, and when a unit is full."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from MiniCPMO45.sampling import (
    add_bias,
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
    """

    def __init__(self, tokens: SpecialTokens, device: torch.device) -> None:
        self.tokens = tokens
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
        tokens = self.tokens
        source = None if settings.is_greedy else generator
        logits = logits.float()
        if draw(logits, source) == tokens.chunk_eos:
            return self.settle(tokens.chunk_eos, history)
        logits = logits.index_fill(0, self._forbidden, -torch.inf)
        logits = self._penalise(logits, history, settings)
        scale, top_k = settings.listen_prob_scale, settings.listen_top_k
        if scale != 1.0:
            bias = math.log(scale) if scale > 0 else -math.inf
            logits = add_bias(logits, tokens.listen, bias)
        if top_k is not None and _rank(logits, tokens.listen) < top_k:
            return tokens.listen  # what the rank decides is not remembered
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
        if token not in self._untold:
            history.append(token)
        return token

    def _penalise(self, logits: Tensor, history: list[int], settings: DuplexSettings) -> Tensor:
        size = settings.text_repetition_window_size
        recent = history[-size:] if size > 0 else []
        logits = penalise_repetition(logits, recent, settings.text_repetition_penalty)
        return scale_terminators(logits, (self.tokens.turn_eos,), settings.length_penalty)


def _rank(logits: Tensor, token: int) -> int:
    return int((logits > logits[token]).sum())
