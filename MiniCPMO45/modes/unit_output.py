"""The output side of one duplex unit: its text, its voice, and the results handed out.

A unit speaks at most one second, of which the first part may leave early.
Source: docs/specification/model.md#6.4 and #6.7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SpeechTiming, TTSConfig
from MiniCPMO45.engine.policies import MAX_UNIT_CHARACTERS, CodeRule, UnitPolicy
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import (
    CODES_PER_REQUEST,
    CODES_PER_UNIT,
    ChooseToken,
    Emit,
    LlmForward,
    Steps,
    TextDecision,
    TokenIds,
)
from MiniCPMO45.modes.speech import CodeBudget, CodeRun, condition, vocode
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.token2wav.chunks import FEWEST_CODES, finish_unit


class Stopwatch:
    """Adds up seconds per stage; each lap runs from the previous lap's end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under `stage`."""
        now = self._clock()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def seconds(self, stage: str) -> float:
        """Seconds booked under `stage`, 0 if it never ran."""
        return self._stages.get(stage, 0.0)

    def total(self) -> float:
        return self._clock() - self._start


class UnitOrderError(RuntimeError):
    """prefill, generate and finalize were called out of order."""


@dataclass(frozen=True)
class PrefillResult:
    """Outcome of feeding one unit's input; costs in seconds.

    Unless `success`, nothing was fed, for the `reason`. `cost_feed` is the language model's pass
    over the input.
    """

    success: bool
    reason: str = ""
    vision_slices: int = 0
    cost_feed: float = 0.0
    cost_all: float = 0.0


@dataclass(frozen=True, eq=False)
class EarlyAudio:
    """The first part of a unit's sound, handed out while the rest is made.

    Attributes:
        waveform: float32 [samples] at 24 kHz.
    """

    text: str
    waveform: np.ndarray


@dataclass(frozen=True, eq=False)
class UnitResult:
    """What the model did in one unit; costs in seconds.

    Attributes:
        audio_waveform: float32 [samples] at 24 kHz; silence when listening; without the part that
            was handed out early.
        current_time: units heard so far.
        cost_llm: deciding and decoding text.
        cost_tts_prep: building the speech condition and its first step.
        cost_token2wav: codes to waveform.
        vision_tokens: their embeddings.
        barge_in: a running turn was cut by this unit.
    """

    is_listen: bool
    text: str = ""
    audio_waveform: np.ndarray | None = None
    end_of_turn: bool = False
    current_time: int = 0
    cost_llm: float = 0.0
    cost_tts_prep: float = 0.0
    cost_tts: float = 0.0
    cost_token2wav: float = 0.0
    cost_all: float = 0.0
    n_tokens: int = 0
    n_tts_tokens: int = 0
    vision_slices: int = 0
    vision_tokens: int = 0
    barge_in: bool = False
    early_samples: int = 0


FEWEST_STEPS: Final = 3  # the decision to listen or to speak, one token of text, the unit's end


@dataclass
class UnitDraft:
    """A unit's text while it is being decoded.

    Attributes:
        ids: spoken ids; the unit's first decision is not among them.
        hidden: hidden state [hidden] of each of them.
        terminator: id to feed when the unit is finalized.
    """

    ids: list[int] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    terminator: int | None = None
    is_listen: bool = False
    end_of_turn: bool = False
    barge_in: bool = False


class UnitDecoder:
    def __init__(self, tokenizer: MiniCPMOTokenizerFast, policy: UnitPolicy) -> None:
        self.tokenizer = tokenizer
        self.tokens = tokenizer.special
        self.policy = policy

    def decode(
        self, session: Session, logits: Tensor, force_listen: bool, force_speak: bool = False
    ) -> Steps[UnitDraft]:
        """Decide tokens until the unit ends.

        `logits` [vocabulary] follow the unit's input. `force_listen` ends a running turn first;
        `force_speak` speaks unless the model has to listen. The terminator is not in the cache yet.

        Source: docs/specification/model.md#6.4.
        """
        turn, settings, draft = session.turn, session.settings, UnitDraft()
        override = turn.force_next_listen or force_listen
        turn.force_next_listen = False
        is_early = turn.decisions < settings.force_listen_count and not force_speak
        force = override or is_early
        turn.decisions += 1
        if override and not turn.has_ended:
            yield from self._interrupt(session)
            draft.barge_in = True
        decision = None if force else self._decision(session)
        last = max(settings.max_new_speak_tokens_per_chunk, FEWEST_STEPS) - 1
        token: int | None = None
        for step in range(last):
            if session.stop.is_set():
                return draft
            if step == 0 and decision is not None:
                if force_speak:
                    token = self.policy.settle(self.tokens.speak, decision.history)
                else:
                    token = yield ChooseToken(logits, decision)
            token = self.tokens.listen if token is None else token
            if self._ends_unit(session, draft, token, step):
                return draft
            if token == self.tokens.listen:
                token = self.tokens.tts_bos  # a running turn cannot turn silent without ending
            turn.has_ended = False
            if step > 0 and self._is_full([*draft.ids, token]):
                draft.terminator = self.tokens.chunk_eos
                return draft
            output = yield LlmForward(
                session.kv,
                (TokenIds((token,)),),
                wants_logits=False,
                decision=decision if step + 1 < last else None,
            )
            draft.end_of_turn = turn.has_ended = token == self.tokens.turn_eos
            if step > 0:
                draft.ids.append(token)
                draft.hidden.append(output.hidden[-1])
            token = output.token
        draft.terminator = self.tokens.chunk_eos
        return draft

    def _decision(self, session: Session) -> TextDecision:
        sampler = session.sampler
        return TextDecision(self.policy, sampler.history, session.settings, sampler.generator)

    def _ends_unit(self, session: Session, draft: UnitDraft, token: int, step: int) -> bool:
        """Whether `token` ends the unit instead of being fed; completes the draft if so."""
        tokens = self.tokens
        if draft.end_of_turn:
            draft.terminator = token if token in tokens.chunk_terminators else tokens.chunk_eos
            return True
        if token == tokens.listen and not session.turn.has_ended:
            return False
        draft.is_listen = token == tokens.listen
        if draft.is_listen:
            draft.end_of_turn = False
        if token in tokens.chunk_terminators:
            draft.terminator = token
            return True
        return False

    def _interrupt(self, session: Session) -> Steps[None]:
        """End the running turn in the cache and forget its speech."""
        yield LlmForward(session.kv, (TokenIds((self.tokens.turn_eos,)),), wants_logits=False)
        session.turn.has_ended = True
        session.reset_speech()
        session.sampler.history.clear()

    def _is_full(self, ids: list[int]) -> bool:
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return len(text) >= MAX_UNIT_CHARACTERS


TIMING = SpeechTiming()
EARLY_CODES = FEWEST_CODES - TIMING.lookahead_codes  # of the vocoder's smallest call


@dataclass(frozen=True, eq=False)
class UnitText:
    """What a unit says.

    Attributes:
        hidden: [n, hidden] language-model state of each id; None without ids.
        is_turn_end: the turn ends in this unit, so speech may end early and is flushed.
    """

    ids: tuple[int, ...]
    hidden: Tensor | None
    text: str
    is_turn_end: bool


@dataclass(frozen=True, eq=False)
class UnitSpeech:
    """What one unit sounds like.

    Attributes:
        waveform: float32 [samples] at 24 kHz, without the part that left early; None when nothing
            is due.
    """

    waveform: np.ndarray | None = None
    n_codes: int = 0
    early_samples: int = 0


def speak_unit(
    session: Session, said: UnitText, config: TTSConfig, rule: CodeRule, watch: Stopwatch
) -> Steps[UnitSpeech]:
    """Speak the text of one duplex unit, at most one second.

    With `DuplexSettings.early_audio`, the first part is emitted as `EarlyAudio` as soon as the
    vocoder can make it. Both parts together are as long as the whole would be.
    """
    is_inside_turn = not said.is_turn_end and session.speech.kv.length > 0
    budget = CodeBudget(CODES_PER_REQUEST, CODES_PER_REQUEST if is_inside_turn else 0)
    pieces = condition(said.ids, said.hidden, config, is_text_end=False)
    watch.lap("tts_prep")
    run = CodeRun(session, pieces, rule, budget, eos=config.speech_eos_id)
    n_early, early_samples = 0, 0
    # With more than the look-ahead waiting, two parts would be longer than the whole.
    waiting = len(session.speech.buffer.waiting)
    if session.settings.early_audio and waiting == TIMING.lookahead_codes:
        is_padded = not said.is_turn_end and not is_inside_turn
        early_samples = yield from _speak_early(session, run, said, watch, is_padded)
        n_early = EARLY_CODES if early_samples else 0
    codes = (yield from run.finish())[:CODES_PER_UNIT]
    watch.lap("tts")
    if session.stop.is_set():
        return UnitSpeech(None, len(codes), early_samples)
    samples = yield from vocode(session, codes[n_early:], is_last=said.is_turn_end)
    wave = finish_unit(
        samples.cpu().numpy(),
        is_last=said.is_turn_end,
        unit_samples=TIMING.sample_rate_hz - early_samples,
    )
    watch.lap("token2wav")
    if said.is_turn_end:
        session.reset_speech()
    return UnitSpeech(wave if len(wave) else None, len(codes), early_samples)


def _speak_early(
    session: Session, run: CodeRun, said: UnitText, watch: Stopwatch, is_padded: bool
) -> Steps[int]:
    """Emit the first part if the unit can be cut there; returns its samples, or 0.

    Zeros will lead a padded unit that has too few codes. As many as are missing have to leave
    first, so that all codes must be drawn before.
    """
    yield from run.draw(run.budget.most if is_padded else EARLY_CODES)
    watch.lap("tts")
    codes = run.codes[:CODES_PER_UNIT]
    rest = len(codes) - EARLY_CODES
    is_too_short = rest < (EARLY_CODES if is_padded else 0)  # for two calls of the vocoder
    if session.stop.is_set() or is_too_short:
        return 0
    samples = yield from vocode(session, codes[:EARLY_CODES], is_last=False)
    wave = finish_unit(
        samples.cpu().numpy(),
        is_last=not is_padded,
        unit_samples=TIMING.sample_rate_hz - rest * TIMING.samples_per_code,
    )
    watch.lap("token2wav")
    yield Emit(EarlyAudio(said.text, wave))
    return len(wave)
