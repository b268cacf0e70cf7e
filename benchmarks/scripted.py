"""Scripted conversations over the real computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import cycle, islice

import numpy as np
import torch

from benchmarks.inputs import Inputs
from benchmarks.rig import Rig
from core.engine.passes import run_alone
from MiniCPMO45.engine.executor import Executor
from MiniCPMO45.engine.policies import UnitPolicy
from MiniCPMO45.engine.steps import (
    CODES_PER_UNIT,
    Answers,
    Collect,
    DrawCodes,
    OpenVoice,
    Request,
    Steps,
)
from MiniCPMO45.modes.duplex import DuplexCapability, PrefillResult, UnitResult
from MiniCPMO45.modes.prompt_input import Frame
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings

LETTERS = "abcdefghijklmnopqrstuvwxyz"  # one character a token stays below a unit's limit
MAX_TEXT_TOKENS = 17  # besides speak, turn end and the forced end of a unit of 20 steps
FILLER = "a"  # one token each, to make a prompt of any length
WINDOW_SWING = 256  # tokens a cache of a given length may be longer or shorter


class BenchmarkError(RuntimeError):
    """A unit did not follow its script."""


class Act(StrEnum):
    """Decision of a unit; the letters of a pattern."""

    LISTEN = "l"
    SPEAK = "s"
    SPEAK_LAST = "e"  # the turn ends with this unit


def parse_pattern(text: str) -> tuple[Act, ...]:
    """Parse a pattern such as "ls"; ValueError if it is empty or has other letters."""
    known = {act.value for act in Act}
    if not text or set(text) - known:
        raise ValueError(f"a pattern consists of the letters {' '.join(sorted(known))}: {text!r}")
    return tuple(Act(letter) for letter in text)


@dataclass(frozen=True)
class Script:
    pattern: tuple[Act, ...]  # decisions of the units, repeated
    text_tokens: int = 10  # text ids of a speaking unit
    voice_sample_s: float = 5.0  # seconds of audio in the system prompt
    context_tokens: int | None = None  # approximate cache length to keep; None lets it grow
    window: WindowSettings = field(default_factory=WindowSettings)  # without `context_tokens`
    has_early_audio: bool = False

    @property
    def settings(self) -> DuplexSettings:
        window, length = self.window, self.context_tokens
        if length is not None:
            limits = (length + WINDOW_SWING, length - WINDOW_SWING)
            window = WindowSettings(WindowMode.BASIC, *limits)
        return DuplexSettings(force_listen_count=0, window=window, early_audio=self.has_early_audio)


@dataclass(frozen=True)
class Plan:
    script: Script
    units: int  # measured units
    warm_up: int = 0  # units before them
    extra: int = 0  # further units, for a profile
    picture_size: tuple[int, int] | None = None  # width and height; None for audio only
    prefetches: bool = False  # pictures are encoded before their unit's audio is complete
    waits: bool = True  # synchronise with the device after each stage, to measure stages separately
    seed: int = 0  # of inputs and samples
    most_spread: float | None = None  # limit of 99th percentile per median, if any


def text_ids(tokenizer: MiniCPMOTokenizerFast, count: int) -> tuple[int, ...]:
    return tuple(tokenizer.encode(letter)[0] for letter in LETTERS[:count])


class ScriptedPolicy(UnitPolicy):
    """Samples like the usual policy, then decides by the script; `words` are a unit's text ids."""

    def __init__(self, tokens: SpecialTokens, device: torch.device, words: tuple[int, ...]) -> None:
        super().__init__(tokens, device)
        self.words = words
        self._due: list[int] = []

    def begin(self, act: Act) -> None:
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
    """An executor whose speech never ends early, since the code that ends it is excluded."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def submit(self, requests: Sequence[Request]) -> Collect:
        return self._executor.submit(
            [
                replace(each, least=each.count) if isinstance(each, DrawCodes) else each
                for each in requests
            ]
        )


class ScriptedConversation:
    def __init__(self, rig: Rig, script: Script, *, seed: int, first: int = 0) -> None:
        """Open the session; `first` is the first index into the pattern."""
        self.rig = rig
        self.script = script
        self.session = rig.executor.open_session(f"benchmark-{seed}", seed=seed)
        words = text_ids(rig.tokenizer, script.text_tokens)
        self._policy = ScriptedPolicy(rig.tokenizer.special, rig.executor.device, words)
        self._duplex = DuplexCapability(rig.config, rig.tokenizer, self._policy)
        self._acts = islice(cycle(script.pattern), first, None)

    @property
    def prompt_tokens(self) -> int:
        """Prompt length for the requested cache length, with filler."""
        plain = len(self.rig.tokenizer.encode(duplex_prefix() + duplex_suffix()))
        length = self.script.context_tokens
        return plain if length is None else max(plain, length - 2 * WINDOW_SWING)

    def prepare(self, answers: Answers, inputs: Inputs) -> None:
        rig, session = self.rig, self.session
        n_samples = round(self.script.voice_sample_s * SAMPLE_RATE_HZ)
        sample = inputs.sound(n_samples) if n_samples else None
        prefix = duplex_prefix()
        missing = self.prompt_tokens - len(rig.tokenizer.encode(prefix + duplex_suffix()))

        def steps() -> Steps[None]:
            vocoder = yield OpenVoice(rig.voice, session.sampler.generator)
            yield from self._duplex.feed_prompt(
                session,
                prefix + (" " + FILLER) * missing,
                duplex_suffix(),
                settings=self.script.settings,
                voice_sample=sample,
                vocoder=vocoder,
            )

        run_alone(steps(), answers)

    def begin_unit(self) -> tuple[Act, bool]:
        """Return the decision of the next unit, and whether it interrupts a running turn."""
        act = next(self._acts)
        self._policy.begin(act)
        return act, act is Act.LISTEN and not self.session.turn.has_ended

    def unit(
        self, audio: np.ndarray, frames: Sequence[Frame], act: Act, *, cuts: bool
    ) -> Steps[UnitResult]:
        """Feed and generate a unit, before `finalize`; BenchmarkError if it is not as scripted."""
        fed = yield from self._duplex.streaming_prefill(self.session, audio, frames)
        result = yield from self._duplex.streaming_generate(self.session, force_listen=cuts)
        self._check(act, fed, result)
        return result

    def finalize(self) -> Steps[None]:
        return self._duplex.close_unit(self.session)

    def _check(self, act: Act, fed: PrefillResult, result: UnitResult) -> None:
        listens = act is Act.LISTEN
        n_text = self.script.text_tokens + (act is Act.SPEAK_LAST)  # the turn's end is spoken, too
        expected = (0, 0) if listens else (n_text, CODES_PER_UNIT)
        found = (result.n_tokens, result.n_tts_tokens)
        if not fed.success or result.is_listen != listens or found != expected:
            raise BenchmarkError(
                f"a unit told to {act.name} gave {found} text tokens and codes instead of "
                f"{expected} (prefill: {fed.reason or 'success'})"
            )
        wave = result.audio_waveform
        if wave is None or not np.isfinite(wave).all():
            raise BenchmarkError("a unit's sound is missing or not finite")


def kind_of(act: Act, cuts: bool) -> str:
    if act is Act.LISTEN:
        return "listen, cut" if cuts else "listen"
    return "speak" if act is Act.SPEAK else "speak, end"
