"""Pure decisions about one speech code: which comes next. Knows no conversation and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from MiniCPMO45.sampling import draw, keep_top_k, keep_top_p_ascending, penalise_frequency

PENALTY_WINDOW = 16  # codes the repetition penalty looks back at
MIN_KEPT = 3  # codes a filter always leaves
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class CodeRule:
    """How speech codes are drawn.

    Attributes:
        temperature: divides the logits; 0 with `is_greedy` still scales, which changes nothing.
        repetition_penalty: per occurrence among the last 16 codes.
        top_p: nucleus; 1 keeps all.
        top_k: most likely codes kept; 0 keeps all.
        is_greedy: take the most likely code.
    """

    temperature: float
    repetition_penalty: float
    top_p: float = 1.0
    top_k: int = 0
    is_greedy: bool = False

    @property
    def fewest_kept(self) -> int:
        """Codes the top-k filter leaves; 0 keeps all."""
        return max(self.top_k, MIN_KEPT) if self.top_k else 0

    @property
    def divisor(self) -> float:
        """What logits are divided by."""
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
        """Draw the next code.

        Args:
            logits: float32 [codes].
            codes: codes the penalty sees, oldest first.
            eos: the code that ends speech.
            generator: the conversation's random generator.
            may_end: whether `eos` may be drawn.

        Source: docs/specification/model.md#5.6 and #6.7.
        """
        logits = logits / self.divisor
        if codes:
            logits = penalise_frequency(logits, codes, self.repetition_penalty, PENALTY_WINDOW)
        logits = keep_top_p_ascending(logits, self.top_p, keep=MIN_KEPT)
        logits = keep_top_k(logits, self.fewest_kept)
        if not may_end:
            logits = logits.clone()
            logits[eos] = -torch.inf
        return draw(logits, None if self.is_greedy else generator)
