"""Draws speech codes in fixed shapes, ready for a CUDA graph: a code per conversation and call.

What a run needs is loaded at its start; afterwards code follows code without the host.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.code_rule import PENALTY_WINDOW, CodeRule
from MiniCPMO45.device import code_choice
from MiniCPMO45.device.code_choice import (
    INTEGERS,
    MOST_CANDIDATES,
    N_WORDS,
    NO_CODE,
    REALS,
    UNIFORM,
)
from MiniCPMO45.device.draws import draw_uniforms
from MiniCPMO45.device.kernels.available import HAS_TRITON
from MiniCPMO45.device.transfers import Staging
from MiniCPMO45.speech import CODES_PER_REQUEST
from MiniCPMO45.steps import DrawCodes

if HAS_TRITON:
    from MiniCPMO45.device.kernels import code_choice as card_choice

KEEPS_ALL = 2.0  # a top-p no sum of probabilities reaches
WORDS = struct.Struct(f"={len(INTEGERS)}i{len(REALS)}f")
UNUSED = (0, 1, 1, 0, 0, 0, 0, 0, 1.0, 1.0, 1.0)  # takes the likeliest code


class CodeSampler:
    """Draws the codes of a run in each row, one per call.

    Attributes:
        drawn: int64 [rows, CODES_PER_REQUEST], codes since `load`, the end of speech included.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        """Make the tables; until the first `load` every row takes the likeliest code.

        Args:
            rows: runs at once.
            device: of the logits.
        """
        self.drawn = torch.zeros(rows, CODES_PER_REQUEST, dtype=torch.int64, device=device)
        self._staging = Staging(rows, UNIFORM + CODES_PER_REQUEST, device)
        self.load(())

    @property
    def has_ended(self) -> Tensor:
        """Which rows drew the end, bool [rows]; what they draw afterwards means nothing."""
        return self._staging.device_words[:, INTEGERS.index("has_ended")] > 0

    @staticmethod
    def covers(request: DrawCodes) -> bool:
        """Whether its codes can be drawn here; others are drawn by the rule itself."""
        rule = request.rule
        is_bounded = rule.is_greedy or not _is_filtered(rule) or 1 <= rule.top_k <= MOST_CANDIDATES
        is_usual = type(rule).choose is CodeRule.choose
        return is_usual and is_bounded and request.count <= CODES_PER_REQUEST

    def load(self, requests: Sequence[DrawCodes]) -> None:
        """Begin runs, without waiting for the device.

        Args:
            requests: at most one per row, all covered. Each that is not greedy takes as many
                numbers from its conversation's generator as it may draw codes.
        """
        words = self._staging.begin()
        words[:, N_WORDS:UNIFORM] = NO_CODE
        for row, request in enumerate(requests):
            _write(words[row], request)
        for row in range(len(requests), len(words)):
            WORDS.pack_into(words[row].data, 0, *UNUSED)
        self._staging.send()

    def choose(self, logits: Tensor) -> Tensor:
        """Draw the next code of every run and remember it.

        Args:
            logits: [rows, codes], any floating dtype; left alone.

        Returns:
            int64 [rows].
        """
        choice = card_choice if logits.is_cuda and HAS_TRITON else code_choice
        return choice.choose_codes(self._staging.device_words, self.drawn, logits)


def _is_filtered(rule: CodeRule) -> bool:
    return rule.top_p < 1.0 or rule.top_k > 0


def _write(words: np.ndarray, request: DrawCodes) -> None:
    """Lay out one row: integers, reals, codes heard, uniform numbers."""
    rule, heard = request.rule, request.heard[-PENALTY_WINDOW:]
    WORDS.pack_into(
        words.data,
        0,
        request.eos,
        rule.is_greedy,
        min(max(rule.fewest_kept, 1), MOST_CANDIDATES),
        _is_filtered(rule),
        request.least,
        len(heard),
        0,
        0,
        rule.divisor,
        rule.top_p if rule.top_p < 1.0 else KEEPS_ALL,
        rule.repetition_penalty,
    )
    words[N_WORDS : N_WORDS + len(heard)] = array("i", heard)
    if not rule.is_greedy:
        numbers = words[UNIFORM : UNIFORM + request.count].view(np.float32)
        numbers[:] = draw_uniforms(request.generator, request.count)
