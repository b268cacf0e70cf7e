"""One conversation that does what its script says: prepared, then unit after unit."""

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
    """What a conversation consists of.

    Attributes:
        pattern: what the units do, repeated.
        text_tokens: text ids of a speaking unit.
        voice_sample_s: seconds of sound in the system prompt.
        context_tokens: length the cache is kept at, more or less; None lets it grow from a short
            prompt on.
        window: when old units leave the cache, if it is not kept at a length.
        has_early_audio: the beginning of a unit's sound is handed out ahead.
    """

    pattern: tuple[Act, ...]
    text_tokens: int = 10
    voice_sample_s: float = 5.0
    context_tokens: int | None = None
    window: WindowSettings = field(default_factory=WindowSettings)
    has_early_audio: bool = False

    @property
    def settings(self) -> DuplexSettings:
        """Settings of the conversation."""
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
    """Return what the first `count` units do."""
    return tuple(islice(cycle(pattern), count))


class Talker:
    """A session and its script.

    Attributes:
        session: the conversation.
        script: what it consists of.
    """

    def __init__(self, rig: Rig, script: Script, *, seed: int, first: int = 0) -> None:
        """Open the session.

        Args:
            rig: the model.
            script: what the conversation consists of.
            seed: of its draws.
            first: place in the pattern to begin at.
        """
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
        """Length of the prompt that makes the cache as long as asked for, filler included."""
        plain = len(self.rig.tokenizer.encode(duplex_prefix() + duplex_suffix()))
        length = self.script.context_tokens
        return plain if length is None else max(plain, length - 2 * WINDOW_SWING)

    def prepare(self, answers: Answers, inputs: Inputs) -> None:
        """Feed the prompt and open the voice."""
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
        """Return what the next unit does, and whether it cuts a running turn."""
        act = next(self._acts)
        self._policy.begin(act)
        return act, act is Act.LISTEN and not self.session.turn.has_ended

    def unit(
        self, audio: np.ndarray, frames: Sequence[Frame], act: Act, *, cuts: bool
    ) -> Steps[UnitResult]:
        """Feed a unit and answer it; `finalize` follows.

        Raises:
            BenchmarkError: it said more or less than the script.
        """
        fed = yield from self._duplex.streaming_prefill(self.session, audio, frames)
        result = yield from self._duplex.streaming_generate(self.session, force_listen=cuts)
        self._check(act, fed, result)
        return result

    def finalize(self) -> Steps[None]:
        """Close the unit."""
        return self._duplex.close_unit(self.session)

    def close(self) -> None:
        """Free everything."""
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
    """Return what a unit is called in tables."""
    if act is Act.LISTEN:
        return "listen, cut" if cuts else "listen"
    return "speak" if act is Act.SPEAK else "speak, end"
