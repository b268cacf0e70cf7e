"""Speech synthesis: text and hidden states to speech codes to waveform, for units and replies.

Source: docs/specification/model.md#5.6, #5.7, #6.7 and #7.5.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import TIMING, TTSConfig
from MiniCPMO45.engine.kv_cache import CacheFullError, KvHandle, Rows
from MiniCPMO45.engine.policies import CodeRule
from MiniCPMO45.engine.session import Session, UnitDraft, share_of
from MiniCPMO45.engine.steps import (
    CODES_PER_REQUEST,
    CODES_PER_UNIT,
    DrawCodes,
    DrawnCodes,
    Emit,
    Steps,
    Vocode,
)
from MiniCPMO45.kernels.code_choice import PENALTY_WINDOW
from MiniCPMO45.settings import GREEDY, SpeechSampling
from MiniCPMO45.token2wav.vocoder import (
    FEWEST_CODES,
    WINDOW_CODES,
    CodeChunk,
    cut_whole_reply,
    finish_unit,
)

LEAST_ROWS = 256  # ours: of a turn that shares the cache, seven seconds
EARLY_CODES = FEWEST_CODES - TIMING.lookahead_codes  # consumed by the vocoder's smallest call


def condition(
    ids: Sequence[int], hidden: Tensor | None, config: TTSConfig, *, is_text_end: bool
) -> Rows:
    """Return the speech decoder's condition: spoken text, end of text if it is due, audio start.

    `hidden` [n, hidden] is the language-model state of each id.
    """
    text_end = (config.text_eos_token_id,) if is_text_end else ()
    spoken = () if hidden is None or not ids else ((0, hidden),)
    return Rows((*ids, *text_end, config.audio_bos_token_id), spoken)


@dataclass(eq=False)
class CodeRun:
    """`least` to `most` codes after one condition, generated on demand.

    All but the last are fed back. The repetition penalty counts the codes of `history`, to which
    new ones are appended.
    """

    session: Session
    next_rows: Rows
    rule: CodeRule
    eos: int
    first_row_id: int  # of code 0 in `Rows`
    most: int
    least: int = 0
    history: list[int] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)
    has_ended: bool = False
    can_shrink: bool = True  # the older half of the cache may be dropped for memory

    def draw(self, count: int) -> Steps[tuple[int, ...]]:
        """Generate up to `count` further codes and return them; fewer at the end of the run."""
        start = len(self.codes)
        while not self.is_over and len(self.codes) < start + count:
            wanted = min(start + count, self.most) - len(self.codes)
            drawn: DrawnCodes = yield self._request(min(wanted, CODES_PER_REQUEST))
            self.has_ended = drawn.has_ended
            self.codes += drawn.codes
            self.history += drawn.codes
            if drawn.codes:
                self.next_rows = Rows((self.first_row_id + drawn.codes[-1],))
        return tuple(self.codes[start:])

    def finish(self) -> Steps[list[int]]:
        yield from self.draw(self.most)
        return self.codes

    @property
    def is_over(self) -> bool:
        return self.has_ended or len(self.codes) >= self.most or self.session.stop.is_set()

    def _request(self, count: int) -> DrawCodes:
        kv = self.session.speech.kv
        limit = kv.store.shape.max_position_embeddings
        if self.can_shrink:
            limit = min(limit, share_of(kv.store, LEAST_ROWS) or limit)
        return DrawCodes(
            kv,
            self.next_rows,
            self.rule,
            tuple(self.history[-PENALTY_WINDOW:]),
            self.eos,
            self.session.sampler.generator,
            count=_fit_context(kv, len(self.next_rows), count, limit),
            least=max(0, self.least - len(self.codes)),
        )


def _fit_context(kv: KvHandle, rows: int, count: int, limit: int) -> int:
    """Return how many of `count` codes, at least 1, fit a context of `limit` after `rows` rows.

    A longer turn loses the older part of it, down to half of the limit.
    """
    if kv.length + rows + count - 1 > limit and kv.length > limit // 2:
        kv.drop(0, kv.length - limit // 2)
    return max(1, min(count, limit - kv.length - rows + 1))


Waves = list[Tensor]
"""Consecutive parts of a waveform: float32 [samples] at 24 kHz, on the host."""


def _joined(waves: Waves) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *(wave.numpy() for wave in waves)])


def _vocode_chunks(session: Session, chunks: Iterable[CodeChunk]) -> Steps[Waves]:
    vocoder, waves = session.speech.vocoder, []
    assert vocoder is not None, "speech needs an open voice"
    for chunk in chunks:
        waves.append((yield Vocode(vocoder, chunk.codes, chunk.is_last)))
    return waves


def vocode(
    session: Session, codes: Sequence[int], *, is_last: bool, fewest: int = FEWEST_CODES
) -> Steps[Waves]:
    """Append codes, possibly none, and return the waveform due.

    Except at the end, calls of fewer than `fewest` codes are deferred.
    """
    chunks = session.speech.buffer.push(codes, is_last=is_last, fewest=fewest)
    return (yield from _vocode_chunks(session, chunks))


class Stopwatch:
    """Seconds per stage; each lap starts at the end of the previous one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def lap(self, stage: str) -> None:
        """Add the time since the previous lap to `stage`."""
        now = self._clock()
        self.seconds[stage] += now - self._last
        self._last = now

    def total(self) -> float:
        return self._clock() - self._start


@dataclass(frozen=True, eq=False)
class UnitSound:
    """Audio of a unit, or of its beginning, as the vocoder computed it."""

    waves: Waves
    is_last: bool  # the turn ends with them, so they are not padded
    unit_samples: int  # samples to which they are padded otherwise

    @property
    def n_samples(self) -> int:
        n_samples = sum(len(wave) for wave in self.waves)
        if self.is_last or n_samples == 0:
            return n_samples
        return max(n_samples, self.unit_samples)

    @cached_property
    def waveform(self) -> np.ndarray:
        """float32 [n_samples] at 24 kHz, computed on the thread that reads it first.

        On the engine's thread, each of these operations would release the interpreter's lock and
        wait for it, during which no conversation continues.
        """
        samples = _joined(self.waves)
        return finish_unit(samples, is_last=self.is_last, unit_samples=self.unit_samples)


def speak_unit(
    session: Session, draft: UnitDraft, config: TTSConfig, watch: Stopwatch, *, eos: int
) -> Steps[tuple[UnitSound | None, int]]:
    """Synthesise one duplex unit, at most one second; `eos` is the end code.

    With `DuplexSettings.early_audio`, the beginning is emitted as `UnitSound` as soon as the
    vocoder can compute it. Both parts together have the length of the whole. Returns the audio
    without the early part, None if nothing is due; and the number of codes.
    """
    if session.speech.vocoder is None or session.stop.is_set():
        return None, 0
    settings = session.settings
    rule = CodeRule(
        temperature=settings.tts_temperature,
        repetition_penalty=settings.tts_repetition_penalty,
        top_p=settings.tts_top_p,
        top_k=settings.tts_top_k,
        is_greedy=settings.decode_mode == GREEDY,
    )
    is_last = draft.end_of_turn
    is_inside_turn = not is_last and session.speech.kv.length > 0
    hidden = torch.cat(draft.hidden) if draft.hidden else None
    rows = condition(draft.ids, hidden, config, is_text_end=False)
    watch.lap("tts_prep")
    most, first = CODES_PER_REQUEST, config.num_text_tokens
    run = CodeRun(session, rows, rule, eos, first, most, least=most if is_inside_turn else 0)
    n_early, early_samples = 0, 0
    # With more codes waiting than the look-ahead, two parts would be longer than the whole.
    waiting = len(session.speech.buffer.waiting)
    if settings.early_audio and waiting == TIMING.lookahead_codes:
        is_padded = not is_last and not is_inside_turn
        early_samples = yield from _speak_early(session, run, watch, is_padded)
        n_early = EARLY_CODES if early_samples else 0
    codes = (yield from run.finish())[:CODES_PER_UNIT]
    watch.lap("tts")
    if session.stop.is_set():
        return None, len(codes)
    waves = yield from vocode(session, codes[n_early:], is_last=is_last)
    sound = UnitSound(waves, is_last, TIMING.sample_rate_hz - early_samples)
    watch.lap("token2wav")
    if is_last:
        session.reset_speech()
    return sound if waves else None, len(codes)


def _speak_early(session: Session, run: CodeRun, watch: Stopwatch, is_padded: bool) -> Steps[int]:
    """Emit the beginning of a unit if it can be split; return its samples, or 0.

    A padded unit with too few codes begins with zeros. Their number depends on the number of codes,
    so all codes have to be generated first.
    """
    yield from run.draw(run.most if is_padded else EARLY_CODES)
    watch.lap("tts")
    codes = run.codes[:CODES_PER_UNIT]
    rest = len(codes) - EARLY_CODES
    is_too_short = rest < (EARLY_CODES if is_padded else 0)  # for two calls of the vocoder
    if session.stop.is_set() or is_too_short:
        return 0
    waves = yield from vocode(session, codes[:EARLY_CODES], is_last=False)
    unit_samples = TIMING.sample_rate_hz - rest * TIMING.samples_per_code
    sound = UnitSound(waves, not is_padded, unit_samples)
    watch.lap("token2wav")
    yield Emit(sound)
    return sound.n_samples


@dataclass(frozen=True, eq=False)
class ReplyChunk:
    """The next part of a streamed reply; `waveform` is float32 [samples] at 24 kHz."""

    text: str
    waveform: np.ndarray | None = None


def speak_group(
    session: Session,
    ids: Sequence[int],
    hidden: Tensor,
    config: TTSConfig,
    sampling: SpeechSampling,
    *,
    is_text_end: bool,
    take_text: Callable[[], str],
) -> Steps[None]:
    """Synthesise one group of text tokens of a reply; emits a `ReplyChunk` per second of speech.

    `hidden` [n, hidden] is the language-model state of each of `ids`. `take_text` returns the text
    not emitted yet and marks it as emitted.
    """
    codes, most = session.speech.codes, sampling.max_codes_per_chunk
    rows = condition(ids, hidden, config, is_text_end=is_text_end)
    rule, eos, first = _code_rule(sampling), config.speech_eos_id, config.num_text_tokens
    run = CodeRun(session, rows, rule, eos, first, most, history=codes)
    while not run.is_over:
        due = CODES_PER_UNIT - len(codes) % CODES_PER_UNIT
        if len((yield from run.draw(due))) == due:
            second = codes[-CODES_PER_UNIT:]
            waves = yield from vocode(session, second, is_last=False, fewest=WINDOW_CODES)
            if waves:
                yield Emit(ReplyChunk(take_text(), _joined(waves)))


def finish_speech(session: Session, take_text: Callable[[], str]) -> Steps[None]:
    """Synthesise the remaining codes and end the reply; emits the last `ReplyChunk`."""
    codes = session.speech.codes
    if codes:
        rest = codes[len(codes) // CODES_PER_UNIT * CODES_PER_UNIT :]
        waves = yield from vocode(session, rest, is_last=True, fewest=WINDOW_CODES)
        yield Emit(ReplyChunk(take_text(), _joined(waves)))
    session.reset_speech()


def speak_whole(
    session: Session,
    ids: Sequence[int],
    hidden: Tensor,
    config: TTSConfig,
    sampling: SpeechSampling,
) -> Steps[np.ndarray]:
    """Synthesise a finished reply, whose arguments are as for `speak_group`: float32 [samples].

    Text beyond half of the decoder's context is not spoken: the other half holds the codes, which
    do not suffice for so much text. If the memory of all conversations is used up, speech ends
    early.
    """
    session.reset_speech()
    most_ids = session.speech.kv.store.shape.max_position_embeddings // 2
    rows = condition(ids[:most_ids], hidden[:most_ids], config, is_text_end=True)
    rule, eos, first = _code_rule(sampling), config.speech_eos_id, config.num_text_tokens
    most, least = sampling.max_codes_per_reply, sampling.min_codes_per_reply
    # The reply's whole text is at the start of the cache.
    run = CodeRun(session, rows, rule, eos, first, most, least, can_shrink=False)
    with suppress(CacheFullError):
        yield from run.finish()
    codes = run.codes[: run.most - 1]
    chunks = takewhile(lambda _: not session.stop.is_set(), cut_whole_reply(codes))
    waves = yield from _vocode_chunks(session, chunks)
    session.reset_speech()
    return _joined(waves)


def _code_rule(sampling: SpeechSampling) -> CodeRule:
    return CodeRule(**{each.name: vars(sampling)[each.name] for each in fields(CodeRule)})
