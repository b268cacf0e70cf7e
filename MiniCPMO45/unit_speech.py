"""The voice of one duplex unit: at most one second, of which the first part may leave early.

Source: docs/specification/model.md#6.7.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from MiniCPMO45.code_rule import CodeRule
from MiniCPMO45.configuration_minicpmo import SpeechTiming, TTSConfig
from MiniCPMO45.session import Session
from MiniCPMO45.speech import (
    CODES_PER_REQUEST,
    CODES_PER_UNIT,
    CodeBudget,
    CodeRun,
    condition,
    vocode,
)
from MiniCPMO45.steps import Emit, Steps
from MiniCPMO45.stopwatch import Stopwatch
from MiniCPMO45.token2wav.chunking import FEWEST_CODES, finish_unit
from MiniCPMO45.unit_results import EarlyAudio

TIMING = SpeechTiming()
EARLY_CODES = FEWEST_CODES - TIMING.lookahead_codes  # of the vocoder's smallest call


@dataclass(frozen=True, eq=False)
class UnitText:
    """What a unit says.

    Attributes:
        ids: spoken ids; may be empty.
        hidden: [n, hidden] language-model state of each id; None without ids.
        text: the same in letters.
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
        n_codes: speech codes drawn.
        early_samples: samples that left early.
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

    Args:
        session: the conversation; a voice is open.
        said: the unit's text.
        config: the speech decoder's ids.
        rule: how codes are drawn.
        watch: books "tts_prep", "tts" and "token2wav".
    """
    is_inside_turn = not said.is_turn_end and session.speech.kv.length > 0
    budget = CodeBudget(CODES_PER_REQUEST, CODES_PER_REQUEST if is_inside_turn else 0)
    pieces = condition(said.ids, said.hidden, config, is_text_end=False)
    watch.lap("tts_prep")
    run = CodeRun(session, pieces, rule, budget, eos=config.speech_eos_id)
    n_early, early_samples = 0, 0
    if session.settings.early_audio and _waits_for_nothing_else(session):
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

    Args:
        session: the conversation.
        run: the unit's codes, none of them drawn yet.
        said: the unit's text.
        watch: books "tts" and "token2wav".
        is_padded: zeros will lead the unit if it has too few codes. As many as are missing have
            to leave first, so that all codes must be drawn before.
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


def _waits_for_nothing_else(session: Session) -> bool:
    """Whether only the look-ahead waits; with more, two parts would be longer than the whole."""
    return len(session.speech.buffer.waiting) == TIMING.lookahead_codes
