"""Draws text tokens and speech codes in fixed shapes, ready for a CUDA graph: one a row and call.

Every row is another conversation with settings of its own. What a run of codes needs is loaded at
its start; afterwards code follows code without the host.
"""

from __future__ import annotations

import hashlib
import math
import struct
from array import array
from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.engine.policies import MIN_TEMPERATURE, CodeRule, UnitPolicy
from MiniCPMO45.engine.steps import CODES_PER_REQUEST, DrawCodes, TextDecision
from MiniCPMO45.kernels import code_choice, unit_choice
from MiniCPMO45.kernels.code_choice import PENALTY_WINDOW
from MiniCPMO45.kernels.device import Staging
from MiniCPMO45.processing.tokenizer import SpecialTokens
from MiniCPMO45.settings import GREEDY

PHILOX_STEP = 4  # a CUDA generator counts in fours
SEED_MASK = (1 << 64) - 1
WORD_BITS, FLOAT_BITS = 32, 24  # of a float32 fraction
STATE = struct.Struct("<QQ")


def draw_uniforms(generator: torch.Generator, count: int) -> list[float]:
    """Take numbers from a generator and move it on.

    A CUDA generator is no more than a seed and an offset, both on the host: its numbers here are
    a hash of them. A generator that is set back gives them again.

    Returns:
        Numbers in [0, 1), each of them a float32.
    """
    if generator.device.type == "cpu":
        return torch.rand(count, generator=generator).tolist()
    offset = generator.get_offset()
    generator.set_offset(offset + PHILOX_STEP)
    state = STATE.pack(generator.initial_seed() & SEED_MASK, offset)
    words = struct.unpack(f"<{count}I", hashlib.shake_128(state).digest(4 * count))
    return [(word >> (WORD_BITS - FLOAT_BITS)) * 2.0**-FLOAT_BITS for word in words]


KEEPS_ALL = 2.0  # a top-p no sum of probabilities reaches
UNIT_FORMAT = f"={len(unit_choice.INTEGERS)}i{len(unit_choice.REALS)}f"  # recent ids follow
UNIT_WORDS = struct.Struct(UNIT_FORMAT)
UNUSED_TOKEN = (0, 0, 0, 1, 1, 0, 0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)  # takes the likeliest token


class UnitSampler:
    """Decides one token for each row of logits."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        """Make the tables; until the first `load` every row takes the likeliest token.

        Args:
            rows: conversations in one call.
            vocabulary: logits per row.
            device: of the logits and of every conversation's generator.
        """
        self._staging = Staging(rows, unit_choice.N_COLUMNS, device)
        self._is_forbidden = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        self._tokens: SpecialTokens | None = None
        self.load(())

    @staticmethod
    def covers(decision: TextDecision) -> bool:
        """Whether it can be taken here; other decisions are the policy's own."""
        settings = decision.settings
        return (
            type(decision.policy).decide is UnitPolicy.decide
            and (
                settings.decode_mode == GREEDY or 1 <= settings.top_k <= unit_choice.MOST_CANDIDATES
            )
            and settings.text_repetition_window_size <= unit_choice.MOST_RECENT
        )

    def load(self, decisions: Sequence[TextDecision | None]) -> None:
        """Set what the rows of the next `choose` are decided by, without waiting for the device.

        Args:
            decisions: at most one per row, all covered; None leaves a row unused. Each that is
                not greedy takes two numbers from its conversation's generator.
        """
        words = self._staging.begin()
        for row, decision in zip_longest(words, decisions):
            if decision is None:
                UNIT_WORDS.pack_into(row.data, 0, *UNUSED_TOKEN)
            else:
                self._forbid(decision)
                _write_decision(row, decision)
        self._staging.send()

    def choose(self, logits: Tensor) -> Tensor:
        """Decide a token per row as it was loaded; `UnitPolicy.settle` has to follow.

        Args:
            logits: [rows, vocabulary], any floating dtype; left alone.

        Returns:
            int64 [rows].
        """
        return unit_choice.choose_tokens(self._staging.device_words, self._is_forbidden, logits)

    def _forbid(self, decision: TextDecision) -> None:
        tokens = decision.policy.tokens
        if tokens is self._tokens:
            return
        forbidden = torch.tensor(tokens.unit_forbidden(), device=self._is_forbidden.device)
        self._is_forbidden.zero_().index_fill_(0, forbidden, True)
        self._tokens = tokens


def _write_decision(words: np.ndarray, decision: TextDecision) -> None:
    """Lay out one row: integers, reals, recent ids."""
    tokens, settings = decision.policy.tokens, decision.settings
    size = settings.text_repetition_window_size
    recent = decision.history[-size:] if size > 0 else []
    scale = settings.listen_prob_scale
    is_greedy = settings.decode_mode == GREEDY
    probe, draw = (0.0, 0.0) if is_greedy else draw_uniforms(decision.generator, 2)
    struct.pack_into(
        f"{UNIT_FORMAT}{len(recent)}i",
        words.data,
        0,
        tokens.chunk_eos,
        tokens.turn_eos,
        tokens.listen,
        is_greedy,
        1 if is_greedy else settings.top_k,
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


CODE_WORDS = struct.Struct(f"={len(code_choice.INTEGERS)}i{len(code_choice.REALS)}f")
UNUSED_CODE = (0, 1, 1, 0, 0, 0, 0, 0, 1.0, 1.0, 1.0)  # takes the likeliest code


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
        self._staging = Staging(rows, code_choice.UNIFORM + CODES_PER_REQUEST, device)
        self.load(())

    @property
    def has_ended(self) -> Tensor:
        """Which rows drew the end, bool [rows]; what they draw afterwards means nothing."""
        return self._staging.device_words[:, code_choice.INTEGERS.index("has_ended")] > 0

    @staticmethod
    def covers(request: DrawCodes) -> bool:
        """Whether its codes can be drawn here; others are drawn by the rule itself."""
        rule = request.rule
        is_bounded = (
            rule.is_greedy
            or not _is_filtered(rule)
            or 1 <= rule.top_k <= code_choice.MOST_CANDIDATES
        )
        is_usual = type(rule).choose is CodeRule.choose
        return is_usual and is_bounded and request.count <= CODES_PER_REQUEST

    def load(self, requests: Sequence[DrawCodes]) -> None:
        """Begin runs, without waiting for the device.

        Args:
            requests: at most one per row, all covered. Each that is not greedy takes as many
                numbers from its conversation's generator as it may draw codes.
        """
        words = self._staging.begin()
        words[:, code_choice.N_WORDS : code_choice.UNIFORM] = code_choice.NO_CODE
        for row, request in zip_longest(words, requests):
            if request is None:
                CODE_WORDS.pack_into(row.data, 0, *UNUSED_CODE)
            else:
                _write_codes(row, request)
        self._staging.send()

    def choose(self, logits: Tensor) -> Tensor:
        """Draw the next code of every run and remember it.

        Args:
            logits: [rows, codes], any floating dtype; left alone.

        Returns:
            int64 [rows].
        """
        return code_choice.choose_codes(self._staging.device_words, self.drawn, logits)


def _is_filtered(rule: CodeRule) -> bool:
    return rule.top_p < 1.0 or rule.top_k > 0


def _write_codes(words: np.ndarray, request: DrawCodes) -> None:
    """Lay out one row: integers, reals, codes heard, uniform numbers."""
    rule, heard = request.rule, request.heard[-PENALTY_WINDOW:]
    CODE_WORDS.pack_into(
        words.data,
        0,
        request.eos,
        rule.is_greedy,
        min(max(rule.fewest_kept, 1), code_choice.MOST_CANDIDATES),
        _is_filtered(rule),
        request.least,
        len(heard),
        0,
        0,
        rule.divisor,
        rule.top_p if rule.top_p < 1.0 else KEEPS_ALL,
        rule.repetition_penalty,
    )
    words[code_choice.N_WORDS : code_choice.N_WORDS + len(heard)] = array("i", heard)
    if not rule.is_greedy:
        numbers = words[code_choice.UNIFORM : code_choice.UNIFORM + request.count].view(np.float32)
        numbers[:] = draw_uniforms(request.generator, request.count)
