"""A scripted conversation: preparation and units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice

import numpy as np
import torch

from benchmarks.inputs import Inputs
from benchmarks.rig import Rig
from benchmarks.scripted import Act, ScriptedPolicy, text_ids
from core.engine.passes import run_alone
from MiniCPMO45.engine.steps import CODES_PER_UNIT, Answers, Steps
from MiniCPMO45.modes.duplex import DuplexCapability, PrefillResult, UnitResult
from MiniCPMO45.modes.prompt_input import Frame
from MiniCPMO45.processing.mel import SAMPLE_RATE_HZ
from MiniCPMO45.processing.prompts import duplex_prefix, duplex_suffix
from MiniCPMO45.settings import DuplexSettings, WindowMode, WindowSettings

FILLER = "a"  # one token each, to make a prompt of any length
WINDOW_SWING = 256  # tokens a cache of a given length may be longer or shorter


class BenchmarkError(RuntimeError):
    """A unit did not follow its script."""


@dataclass(frozen=True)
class Script:
    """Contents of a conversation.

    Attributes:
        pattern: decisions of the units, repeated.
        text_tokens: text ids of a speaking unit.
        voice_sample_s: seconds of audio in the system prompt.
        context_tokens: approximate cache length to maintain; None lets the cache grow.
        window: sliding window, unless `context_tokens` is set.
        has_early_audio: units emit early audio.
    """

    pattern: tuple[Act, ...]
    text_tokens: int = 10
    voice_sample_s: float = 5.0
    context_tokens: int | None = None
    window: WindowSettings = field(default_factory=WindowSettings)
    has_early_audio: bool = False

    @property
    def settings(self) -> DuplexSettings:
        return DuplexSettings(
            force_listen_count=0, window=self._window, early_audio=self.has_early_audio
        )

    @property
    def _window(self) -> WindowSettings:
        length = self.context_tokens
        if length is None:
            return self.window
        limits = (length + WINDOW_SWING, length - WINDOW_SWING)
        return WindowSettings(WindowMode.BASIC, *limits)


def acts_of(pattern: Sequence[Act], count: int) -> tuple[Act, ...]:
    """Return the decisions of the first `count` units."""
    return tuple(islice(cycle(pattern), count))


class Talker:
    def __init__(self, rig: Rig, script: Script, *, seed: int, first: int = 0) -> None:
        """Open the session; `first` is the first index into the pattern."""
        self.rig = rig
        self.script = script
        self.session = rig.executor.open_session(f"benchmark-{seed}", seed=seed)
        words = text_ids(rig.tokenizer, script.text_tokens)
        tokens, device = rig.tokenizer.special, rig.executor.device
        self._policy = ScriptedPolicy(tokens, device, words)
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
        assert rig.executor.vocoder is not None
        with torch.inference_mode():
            stream = rig.executor.vocoder.new_state(rig.voice, session.sampler.generator)
        n_samples = round(self.script.voice_sample_s * SAMPLE_RATE_HZ)
        prefix = duplex_prefix()
        missing = self.prompt_tokens - len(rig.tokenizer.encode(prefix + duplex_suffix()))
        steps = self._duplex.feed_prompt(
            session,
            prefix + (" " + FILLER) * missing,
            duplex_suffix(),
            settings=self.script.settings,
            voice_sample=inputs.sound(n_samples) if n_samples else None,
            vocoder=stream,
        )
        run_alone(steps, answers)

    def begin_unit(self) -> tuple[Act, bool]:
        """Return the decision of the next unit, and whether it interrupts a running turn."""
        act = next(self._acts)
        self._policy.begin(act)
        return act, act is Act.LISTEN and not self.session.turn.has_ended

    def unit(
        self, audio: np.ndarray, frames: Sequence[Frame], act: Act, *, cuts: bool
    ) -> Steps[UnitResult]:
        """Feed and generate a unit; `finalize` must follow.

        Raises:
            BenchmarkError: the unit did not follow the script.
        """
        fed = yield from self._duplex.streaming_prefill(self.session, audio, frames)
        result = yield from self._duplex.streaming_generate(self.session, force_listen=cuts)
        self._check(act, fed, result)
        return result

    def finalize(self) -> Steps[None]:
        return self._duplex.close_unit(self.session)

    def close(self) -> None:
        self.session.close()

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
    """Return the name of a kind of unit."""
    if act is Act.LISTEN:
        return "listen, cut" if cuts else "listen"
    return "speak" if act is Act.SPEAK else "speak, end"
