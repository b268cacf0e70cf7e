"""Decides text tokens in fixed shapes, ready for a CUDA graph: a token per conversation and call.

Every row is another conversation with settings of its own; nothing is kept between two decisions.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.device import unit_choice
from MiniCPMO45.device.draws import draw_uniforms
from MiniCPMO45.device.kernels.available import HAS_TRITON
from MiniCPMO45.device.transfers import Staging
from MiniCPMO45.device.unit_choice import (
    INTEGERS,
    MOST_CANDIDATES,
    MOST_RECENT,
    N_COLUMNS,
    REALS,
)
from MiniCPMO45.special_tokens import SpecialTokens
from MiniCPMO45.steps import TextDecision
from MiniCPMO45.unit_policy import MIN_TEMPERATURE, UnitPolicy

if HAS_TRITON:
    from MiniCPMO45.device.kernels import unit_choice as card_choice

KEEPS_ALL = 2.0  # a top-p no sum of probabilities reaches
FORMAT = f"={len(INTEGERS)}i{len(REALS)}f"  # recent ids follow
WORDS = struct.Struct(FORMAT)
UNUSED = (0, 0, 0, 1, 1, 0, 0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)  # takes the likeliest token


class UnitSampler:
    """Decides one token for each row of logits."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        """Make the tables; until the first `load` every row takes the likeliest token.

        Args:
            rows: conversations in one call.
            vocabulary: logits per row.
            device: of the logits and of every conversation's generator.
        """
        self._staging = Staging(rows, N_COLUMNS, device)
        self._is_forbidden = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._tokens: SpecialTokens | None = None
        self.load(())

    @staticmethod
    def covers(decision: TextDecision) -> bool:
        """Whether it can be taken here; other decisions are the policy's own."""
        settings = decision.settings
        return (
            type(decision.policy).decide is UnitPolicy.decide
            and (settings.is_greedy or 1 <= settings.top_k <= MOST_CANDIDATES)
            and settings.text_repetition_window_size <= MOST_RECENT
        )

    def load(self, decisions: Sequence[TextDecision | None]) -> None:
        """Set what the rows of the next `choose` are decided by, without waiting for the device.

        Args:
            decisions: at most one per row, all covered; None leaves a row unused. Each that is
                not greedy takes two numbers from its conversation's generator.
        """
        words = self._staging.begin()
        for row, decision in enumerate(decisions):
            if decision is None:
                WORDS.pack_into(words[row].data, 0, *UNUSED)
            else:
                self._forbid(decision)
                _write(words[row], decision)
        for row in range(len(decisions), len(words)):
            WORDS.pack_into(words[row].data, 0, *UNUSED)
        self._staging.send()

    def choose(self, logits: Tensor) -> Tensor:
        """Decide a token per row as it was loaded; `UnitPolicy.settle` has to follow.

        Args:
            logits: [rows, vocabulary], any floating dtype; left alone.

        Returns:
            int64 [rows].
        """
        choice = card_choice if logits.is_cuda and HAS_TRITON else unit_choice
        return choice.choose_tokens(self._staging.device_words, self._is_forbidden, logits)

    def _forbid(self, decision: TextDecision) -> None:
        tokens = decision.policy.tokens
        if tokens is self._tokens:
            return
        forbidden = torch.tensor(tokens.unit_forbidden(), device=self._is_forbidden.device)
        self._is_forbidden.zero_().index_fill_(0, forbidden, True)
        self._tokens = tokens


def _write(words: np.ndarray, decision: TextDecision) -> None:
    """Lay out one row: integers, reals, recent ids."""
    tokens, settings = decision.policy.tokens, decision.settings
    size = settings.text_repetition_window_size
    recent = decision.history[-size:] if size > 0 else []
    scale = settings.listen_prob_scale
    probe, draw = (0.0, 0.0) if settings.is_greedy else draw_uniforms(decision.generator, 2)
    struct.pack_into(
        f"{FORMAT}{len(recent)}i",
        words.data,
        0,
        tokens.chunk_eos,
        tokens.turn_eos,
        tokens.listen,
        settings.is_greedy,
        1 if settings.is_greedy else settings.top_k,
        settings.listen_top_k or 0,
        len(recent),
        max(settings.temperature, MIN_TEMPERATURE),
        settings.top_p if settings.top_p < 1.0 else KEEPS_ALL,
        settings.text_repetition_penalty,
        settings.length_penalty,
        math.log(scale) if scale > 0 else -math.inf,
        probe,
        draw,
        *recent,
    )
