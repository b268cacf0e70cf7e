"""Pure: the next token of a turn-based reply."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from MiniCPMO45.sampling import (
    draw,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
    scale_terminators,
)
from MiniCPMO45.settings import GenerationSettings
from MiniCPMO45.special_tokens import SpecialTokens

PENALTY_WINDOW = 128  # ids the penalty sees; docs/specification/model.md#5.4
MIN_TEMPERATURE = 1e-5


class ReplyPolicy:
    """Draws the tokens of streamed and one-shot replies.

    Attributes:
        tokens: ids of the control tokens.
    """

    def __init__(self, tokens: SpecialTokens, device: torch.device) -> None:
        self.tokens = tokens
        self.device = device
        self._forbidden = {
            wide: torch.tensor(tokens.spoken_reply_forbidden(not wide), device=device)
            for wide in (False, True)
        }

    def next_streamed(
        self,
        logits: Tensor,
        ids: Sequence[int],
        settings: GenerationSettings,
        generator: torch.Generator,
    ) -> int:
        """Draw the next token of a streamed reply.

        Args:
            logits: [vocabulary] after the last row fed.
            ids: tokens of this reply so far.
            settings: the reply's settings.
            generator: the conversation's random generator.

        Source: docs/specification/model.md#5.1 and #5.4.
        """
        logits = logits.float()
        terminators = sorted(self.tokens.reply_terminators)
        if settings.generate_audio and self.tokens.spoken_count(ids) == len(ids):
            forbidden = self._forbidden[settings.forbid_full_width_marks]
            logits = logits.index_fill(0, forbidden, -torch.inf)
        if len(ids) < settings.min_new_tokens:
            logits = self._without(logits, terminators)
        logits = penalise_repetition(logits, ids[-PENALTY_WINDOW:], settings.repetition_penalty)
        logits = scale_terminators(logits, terminators, settings.length_penalty)
        return self._draw(logits, settings, generator)

    def next_one_shot(
        self,
        logits: Tensor,
        ids: Sequence[int],
        settings: GenerationSettings,
        generator: torch.Generator,
    ) -> int:
        """Draw the next token of a one-shot reply: the same without marks and length penalty."""
        logits = logits.float()
        if len(ids) < settings.min_new_tokens:
            logits = self._without(logits, sorted(self.tokens.chat_terminators))
        logits = penalise_repetition(logits, ids, settings.repetition_penalty)
        return self._draw(logits, settings, generator)

    def _without(self, logits: Tensor, ids: Sequence[int]) -> Tensor:
        return logits.index_fill(0, torch.tensor(ids, device=self.device), -torch.inf)

    def _draw(
        self, logits: Tensor, settings: GenerationSettings, generator: torch.Generator
    ) -> int:
        if not settings.do_sample:
            return draw(logits, None)
        logits = logits / max(settings.temperature, MIN_TEMPERATURE)
        return draw(keep_top_p(keep_top_k(logits, settings.top_k), settings.top_p), generator)
