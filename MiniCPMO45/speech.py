"""From text and hidden states to speech codes to waveform, chunk by chunk.

Two callers share the drawing of codes: a duplex unit (at most one second per unit) and a
turn-based reply (a chunk per group of text tokens). Source: model specification, 5.6, 5.7, 6.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import SpeechTiming, TTSConfig
from MiniCPMO45.kv_cache import KvHandle
from MiniCPMO45.sampling import draw, keep_top_k, keep_top_p_ascending, penalise_frequency
from MiniCPMO45.session import Session
from MiniCPMO45.steps import (
    SpeechCodes,
    SpeechForward,
    SpeechPiece,
    SpokenText,
    Steps,
    TextMarkers,
    Vocode,
)
from MiniCPMO45.stopwatch import Stopwatch
from MiniCPMO45.token2wav.chunking import FEWEST_CODES, finish_unit

PENALTY_WINDOW = 16  # codes the repetition penalty looks back at
MIN_KEPT = 3  # codes a filter always leaves
CODES_PER_UNIT = SpeechTiming().codes_per_second
MIN_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class CodeRule:
    """How speech codes are drawn.

    Attributes:
        temperature: divides the logits; 0 with `is_greedy` still scales, which changes nothing.
        repetition_penalty: per occurrence among the last 16 codes.
        top_p: nucleus; 1 keeps all.
        top_k: most likely codes kept; 0 keeps all.
        is_greedy: take the most likely code.
        filters_first: filter the first code of a turn, too.
    """

    temperature: float
    repetition_penalty: float
    top_p: float = 1.0
    top_k: int = 0
    is_greedy: bool = False
    filters_first: bool = True

    def choose(
        self,
        logits: Tensor,
        codes: Sequence[int],
        eos: int,
        generator: torch.Generator,
        *,
        may_end: bool,
    ) -> int:
        """Draw the next code.

        Args:
            logits: float32 [codes].
            codes: codes the penalty sees, oldest first.
            eos: the code that ends speech.
            generator: the conversation's random generator.
            may_end: whether `eos` may be drawn.
        """
        logits = logits / max(self.temperature, MIN_TEMPERATURE)
        if codes:
            logits = penalise_frequency(logits, codes, self.repetition_penalty, PENALTY_WINDOW)
        if codes or self.filters_first:
            logits = keep_top_p_ascending(logits, self.top_p, keep=MIN_KEPT)
            logits = keep_top_k(logits, max(self.top_k, MIN_KEPT) if self.top_k else 0)
        if not may_end:
            logits = logits.clone()
            logits[eos] = -torch.inf
        return draw(logits, None if self.is_greedy else generator)


@dataclass(frozen=True)
class CodeBudget:
    """How many codes one call may draw.

    Attributes:
        most: decoding steps at most.
        least: steps during which speech may not end.
    """

    most: int
    least: int = 0


def condition(
    ids: Sequence[int], hidden: Tensor | None, config: TTSConfig, *, is_text_end: bool
) -> tuple[SpeechPiece, ...]:
    """Lay out what starts a run of codes: spoken text, its end mark if due, audio begin.

    Args:
        ids: spoken text ids; may be empty.
        hidden: [n, hidden] language-model state of each id.
        config: the speech decoder's marker ids.
        is_text_end: the reply's text is complete.
    """
    text_end = (config.text_eos_token_id,) if is_text_end else ()
    markers = (*text_end, config.audio_bos_token_id)
    if hidden is None or not ids:
        return (TextMarkers(markers),)
    return (SpokenText(tuple(ids), hidden), TextMarkers(markers))


class CodeRun:
    """One run of speech codes, drawn one at a time; every code but the last is fed back.

    Attributes:
        codes: codes drawn so far, without the end of speech.
        has_ended: the model ended the run itself.
    """

    def __init__(
        self,
        session: Session,
        pieces: tuple[SpeechPiece, ...],
        rule: CodeRule,
        budget: CodeBudget,
        *,
        eos: int,
        heard: list[int] | None = None,
    ) -> None:
        """Start a run.

        Args:
            session: the conversation; its speech cache grows.
            pieces: what starts the run.
            rule: how to draw.
            budget: limits in codes.
            eos: the code that ends speech.
            heard: codes the penalty sees, extended in place; None for this run's alone.
        """
        self.session = session
        self.rule = rule
        self.budget = budget
        self.eos = eos
        self.codes: list[int] = []
        self.has_ended = False
        self._heard = self.codes if heard is None else heard
        self._next_pieces = pieces

    def next(self) -> Steps[int | None]:
        """Draw the next code; None when the run is over."""
        session, step = self.session, len(self.codes)
        if self.has_ended or step >= self.budget.most or session.stop.is_set():
            return None
        _make_room(session.speech.kv, sum(len(piece.ids) for piece in self._next_pieces))
        logits = yield SpeechForward(session.speech.kv, self._next_pieces)
        code = self.rule.choose(
            logits,
            self._heard,
            self.eos,
            session.sampler.generator,
            may_end=step >= self.budget.least,
        )
        if code == self.eos:
            self.has_ended = True
            return None
        self.codes.append(code)
        if self._heard is not self.codes:
            self._heard.append(code)
        self._next_pieces = (SpeechCodes((code,)),)
        return code

    def finish(self) -> Steps[list[int]]:
        """Draw the rest of the run and return all its codes."""
        while (yield from self.next()) is not None:
            pass
        return self.codes


def _make_room(kv: KvHandle, rows: int) -> None:
    """Forget the older half of a turn that outgrows the speech decoder, minutes into it."""
    limit = kv.store.shape.max_position_embeddings
    if kv.length + rows > limit and kv.length > limit // 2:
        kv.drop(0, kv.length - limit // 2)


@dataclass(frozen=True, eq=False)
class UnitSpeech:
    """What one unit sounds like.

    Attributes:
        waveform: float32 [samples] at 24 kHz; None when nothing is due.
        n_codes: speech codes drawn.
    """

    waveform: np.ndarray | None = None
    n_codes: int = 0


def vocode(
    session: Session, codes: Sequence[int], *, is_last: bool, fewest: int = FEWEST_CODES
) -> Steps[Tensor]:
    """Give codes to the vocoder and return what it can say by now.

    Args:
        session: the conversation; a voice is open.
        codes: new codes, possibly none.
        is_last: the turn ends with them.
        fewest: codes a call that is not the last takes at least.

    Returns:
        float32 [samples] at 24 kHz, possibly empty.
    """
    waves = []
    vocoder = session.speech.vocoder
    assert vocoder is not None, "speech needs an open voice"
    for piece in session.speech.buffer.push(codes, is_last=is_last, fewest=fewest):
        waves.append((yield Vocode(vocoder, piece.codes, piece.is_last)))
    return torch.cat(waves) if waves else torch.zeros(0)


def speak_unit(
    session: Session,
    ids: Sequence[int],
    hidden: Tensor | None,
    is_turn_end: bool,
    config: TTSConfig,
    rule: CodeRule,
    watch: Stopwatch,
) -> Steps[UnitSpeech]:
    """Speak the text of one duplex unit, at most one second.

    Args:
        session: the conversation; a voice is open.
        ids: spoken ids of the unit; may be empty.
        hidden: [n, hidden] language-model state of each id.
        is_turn_end: the turn ends in this unit, so speech may end early and is flushed.
        config: the speech decoder's ids.
        rule: how codes are drawn.
        watch: books "tts_prep", "tts" and "token2wav".

    Source: model specification, section 6.7.
    """
    may_end_early = is_turn_end or session.speech.kv.length == 0
    budget = CodeBudget(CODES_PER_UNIT + 1, least=0 if may_end_early else CODES_PER_UNIT + 1)
    pieces = condition(ids, hidden, config, is_text_end=False)
    watch.lap("tts_prep")
    run = CodeRun(session, pieces, rule, budget, eos=config.speech_eos_id)
    codes = (yield from run.finish())[:CODES_PER_UNIT]
    watch.lap("tts")
    samples = yield from vocode(session, codes, is_last=is_turn_end)
    wave = finish_unit(samples.cpu().numpy(), is_last=is_turn_end)
    watch.lap("token2wav")
    if is_turn_end:
        session.reset_speech()
    return UnitSpeech(wave if len(wave) else None, len(codes))
