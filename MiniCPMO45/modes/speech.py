"""From text and hidden states to speech codes to waveform, for units and for replies.

Source: docs/specification/model.md#5.6, #5.7, #6.7 and #7.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SpeechTiming, TTSConfig
from MiniCPMO45.engine.kv_cache import KvHandle
from MiniCPMO45.engine.policies import CodeRule
from MiniCPMO45.engine.session import Session
from MiniCPMO45.engine.steps import (
    CODES_PER_REQUEST,
    CODES_PER_UNIT,
    DrawCodes,
    DrawnCodes,
    Emit,
    SpeechCodes,
    SpeechPiece,
    SpokenText,
    Steps,
    TextMarkers,
    Vocode,
)
from MiniCPMO45.kernels.code_choice import PENALTY_WINDOW
from MiniCPMO45.settings import SpeechSampling
from MiniCPMO45.token2wav.vocoder import FEWEST_CODES, WINDOW_CODES, cut_whole_reply, finish_unit


@dataclass(frozen=True)
class CodeBudget:
    """How many codes one call may draw, and how many before speech may end."""

    most: int
    least: int = 0


def condition(
    ids: Sequence[int], hidden: Tensor | None, config: TTSConfig, *, is_text_end: bool
) -> tuple[SpeechPiece, ...]:
    """Lay out what starts a run of codes: spoken text, its end mark if due, audio begin.

    `hidden` [n, hidden] is the language-model state of each id.
    """
    text_end = (config.text_eos_token_id,) if is_text_end else ()
    markers = (*text_end, config.audio_bos_token_id)
    if hidden is None or not ids:
        return (TextMarkers(markers),)
    return (SpokenText(tuple(ids), hidden), TextMarkers(markers))


class CodeRun:
    """One run of speech codes, drawn some at a time; every code but the last is fed back."""

    def __init__(
        self,
        session: Session,
        pieces: tuple[SpeechPiece, ...],
        rule: CodeRule,
        budget: CodeBudget,
        *,
        eos: int,
        history: list[int] | None = None,
    ) -> None:
        """Start a run; the penalty counts `history`, which grows, or this run alone."""
        self.session = session
        self.rule = rule
        self.budget = budget
        self.eos = eos
        self.codes: list[int] = []
        self.has_ended = False
        self._history = self.codes if history is None else history
        self._next_pieces = pieces

    def draw(self, count: int) -> Steps[tuple[int, ...]]:
        """Draw up to `count` codes more, fewer when the run is over; return the new ones."""
        begun = len(self.codes)
        while not self.is_over and len(self.codes) < begun + count:
            wanted = min(begun + count, self.budget.most) - len(self.codes)
            drawn: DrawnCodes = yield self._request(min(wanted, CODES_PER_REQUEST))
            self.has_ended = drawn.has_ended
            self.codes += drawn.codes
            if self._history is not self.codes:
                self._history += drawn.codes
            if drawn.codes:
                self._next_pieces = (SpeechCodes(drawn.codes[-1:]),)
        return tuple(self.codes[begun:])

    def finish(self) -> Steps[list[int]]:
        yield from self.draw(self.budget.most)
        return self.codes

    @property
    def is_over(self) -> bool:
        is_spent = len(self.codes) >= self.budget.most
        return self.has_ended or is_spent or self.session.stop.is_set()

    def _request(self, count: int) -> DrawCodes:
        session, budget = self.session, self.budget
        rows = sum(len(piece.ids) for piece in self._next_pieces)
        return DrawCodes(
            session.speech.kv,
            self._next_pieces,
            self.rule,
            tuple(self._history[-PENALTY_WINDOW:]),
            self.eos,
            session.sampler.generator,
            count=_make_room(session.speech.kv, rows, count),
            least=max(0, budget.least - len(self.codes)),
        )


def _make_room(kv: KvHandle, rows: int, count: int) -> int:
    """Forget the older half of a turn that outgrows the speech decoder, minutes into it.

    Returns how many codes can be drawn after `rows` are fed, at least 1 and at most `count`.
    """
    limit = kv.store.shape.max_position_embeddings
    if kv.length + rows + count - 1 > limit and kv.length > limit // 2:
        kv.drop(0, kv.length - limit // 2)
    return max(1, min(count, limit - kv.length - rows + 1))


def vocode(
    session: Session, codes: Sequence[int], *, is_last: bool, fewest: int = FEWEST_CODES
) -> Steps[Tensor]:
    """Pass new codes, possibly none, to the vocoder: float32 [samples] at 24 kHz, possibly empty.

    A call that is not the last takes at least `fewest` codes.
    """
    waves = []
    vocoder = session.speech.vocoder
    assert vocoder is not None, "speech needs an open voice"
    for piece in session.speech.buffer.push(codes, is_last=is_last, fewest=fewest):
        waves.append((yield Vocode(vocoder, piece.codes, piece.is_last)))
    return torch.cat(waves) if waves else torch.zeros(0)


class Stopwatch:
    """Adds up seconds per stage; each lap runs from the previous lap's end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Count the time since the last lap for `stage`."""
        now = self._clock()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def seconds(self, stage: str) -> float:
        return self._stages.get(stage, 0.0)

    def total(self) -> float:
        return self._clock() - self._start


@dataclass(frozen=True, eq=False)
class EarlyAudio:
    """The first part of a unit's audio, float32 [samples] at 24 kHz, emitted ahead of the rest."""

    text: str
    waveform: np.ndarray


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
    """The speech of one unit.

    `waveform` is float32 [samples] at 24 kHz, without the early part; None when nothing is due.
    """

    waveform: np.ndarray | None = None
    n_codes: int = 0
    early_samples: int = 0


def speak_unit(
    session: Session,
    said: UnitText,
    config: TTSConfig,
    rule: CodeRule,
    watch: Stopwatch,
    *,
    eos: int,
) -> Steps[UnitSpeech]:
    """Speak the text of one duplex unit, at most one second.

    With `DuplexSettings.early_audio`, the first part is emitted as `EarlyAudio` as soon as the
    vocoder can make it. Both parts together are as long as the whole would be.
    """
    is_inside_turn = not said.is_turn_end and session.speech.kv.length > 0
    budget = CodeBudget(CODES_PER_REQUEST, CODES_PER_REQUEST if is_inside_turn else 0)
    pieces = condition(said.ids, said.hidden, config, is_text_end=False)
    watch.lap("tts_prep")
    run = CodeRun(session, pieces, rule, budget, eos=eos)
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
    """Emit the first part if the unit can be cut there; return its samples, or 0.

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


@dataclass(frozen=True, eq=False)
class ReplyPiece:
    """The next part of a streamed reply; `waveform` is float32 [samples] at 24 kHz."""

    text: str
    waveform: np.ndarray | None = None


class ReplySpeech:
    def __init__(self, config: TTSConfig) -> None:
        self.config = config

    def speak_group(
        self,
        session: Session,
        ids: Sequence[int],
        hidden: Tensor,
        sampling: SpeechSampling,
        *,
        is_text_end: bool,
        take_text: Callable[[], str],
    ) -> Steps[None]:
        """Speak one group of text tokens; emits a `ReplyPiece` per second of speech.

        `hidden` [n, hidden] is the language-model state of each id; `take_text` returns the text
        not emitted yet and marks it emitted.
        """
        run = CodeRun(
            session,
            condition(ids, hidden, self.config, is_text_end=is_text_end),
            self._rule(sampling),
            CodeBudget(sampling.max_codes_per_chunk),
            eos=self.config.speech_eos_id,
            history=session.speech.codes,
        )
        while not run.is_over:
            due = CODES_PER_UNIT - len(session.speech.codes) % CODES_PER_UNIT
            if len((yield from run.draw(due))) == due:
                second = session.speech.codes[-CODES_PER_UNIT:]
                wave = yield from vocode(session, second, is_last=False, fewest=WINDOW_CODES)
                if len(wave):
                    yield Emit(ReplyPiece(take_text(), wave.cpu().numpy()))

    def finish(self, session: Session, take_text: Callable[[], str]) -> Steps[None]:
        """Voice the codes that still wait and end the reply; emits the last `ReplyPiece`."""
        spoken = len(session.speech.codes) // CODES_PER_UNIT * CODES_PER_UNIT
        rest = session.speech.codes[spoken:]
        if session.speech.codes:
            wave = yield from vocode(session, rest, is_last=True, fewest=WINDOW_CODES)
            yield Emit(ReplyPiece(take_text(), wave.cpu().numpy()))
        session.reset_speech()

    def speak_whole(
        self, session: Session, ids: Sequence[int], hidden: Tensor, sampling: SpeechSampling
    ) -> Steps[np.ndarray]:
        """Speak a finished reply at once: float32 [samples] at 24 kHz.

        `hidden` [n, hidden] is the language-model state of each id.
        """
        session.reset_speech()
        budget = CodeBudget(sampling.max_codes_per_reply, sampling.min_codes_per_reply)
        run = CodeRun(
            session,
            condition(ids, hidden, self.config, is_text_end=True),
            self._rule(sampling),
            budget,
            eos=self.config.speech_eos_id,
        )
        codes = (yield from run.finish())[: budget.most - 1]
        vocoder = session.speech.vocoder
        assert vocoder is not None, "speech needs an open voice"
        waves = []
        for piece in cut_whole_reply(codes):
            if session.stop.is_set():
                break
            waves.append((yield Vocode(vocoder, piece.codes, piece.is_last)))
        session.reset_speech()
        joined = torch.cat(waves) if waves else torch.zeros(0)
        return joined.cpu().numpy()

    def _rule(self, sampling: SpeechSampling) -> CodeRule:
        return CodeRule(
            temperature=sampling.temperature,
            repetition_penalty=sampling.repetition_penalty,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            is_greedy=sampling.is_greedy,
        )
