"""Scripted decisions over the real computation.

All forward passes, samplers and vocoder calls run; only their decisions are replaced, so that units
have the same length with any weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import torch

from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.policies import UnitPolicy
from MiniCPMO45.engine.steps import DrawCodes, Request
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # one character a token stays below a unit's limit
MAX_TEXT_TOKENS = 17  # besides speak, turn end and the forced end of a unit of 20 steps


class Act(StrEnum):
    """Decision of a unit; the letters of a pattern."""

    LISTEN = "l"
    SPEAK = "s"
    SPEAK_LAST = "e"  # the turn ends with this unit


def parse_pattern(text: str) -> tuple[Act, ...]:
    """Parse a pattern such as "ls".

    Raises:
        ValueError: it is empty or has other letters.
    """
    known = {act.value for act in Act}
    if not text or set(text) - known:
        raise ValueError(f"a pattern consists of the letters {' '.join(sorted(known))}: {text!r}")
    return tuple(Act(letter) for letter in text)


def text_ids(tokenizer: MiniCPMOTokenizerFast, count: int) -> tuple[int, ...]:
    """Return `count` ids of single letters."""
    return tuple(tokenizer.encode(letter)[0] for letter in LETTERS[:count])


class ScriptedPolicy(UnitPolicy):
    """Samples like the usual policy, then decides by the script; `words` are a unit's text ids."""

    def __init__(self, tokens: SpecialTokens, device: torch.device, words: tuple[int, ...]) -> None:
        super().__init__(tokens, device)
        self.words = words
        self._due: list[int] = []

    def begin(self, act: Act) -> None:
        """Set the decisions of the next unit."""
        tokens = self.tokens
        if act is Act.LISTEN:
            self._due = [tokens.listen]
        else:
            end = [tokens.turn_eos] if act is Act.SPEAK_LAST else []
            self._due = [tokens.speak, *self.words, *end, tokens.chunk_eos]

    def settle(self, token: int, history: list[int]) -> int:
        """Record the sample and return the scripted decision; see `UnitPolicy.settle`."""
        super().settle(token, history)
        return self._due.pop(0)


class ScriptedAnswers:
    """An executor in which speech never ends early; it can synchronise with the device."""

    def __init__(self, executor: Executor, wait: Callable[[], None] | None) -> None:
        self._executor = executor
        self._wait = wait

    def answer(self, requests: Sequence[Request]) -> list[Any]:
        answers = self._executor.answer([_endless(request) for request in requests])
        if self._wait is not None:
            self._wait()
        return answers


def _endless(request: Request) -> Request:
    """Exclude the end code of speech."""
    return replace(request, least=request.count) if isinstance(request, DrawCodes) else request
