"""Training sequences of the speech decoder: text rows and speech codes in the order of serving.

There are three orders: units of a duplex turn, groups of a streamed reply, and whole replies. In
all of them the text leads: a word that may be incomplete is not spoken yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from MiniCPMO45.configuration_minicpmo import TIMING, TTSConfig
from MiniCPMO45.processing.processor import Span
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from MiniCPMO45.settings import SpeechSampling
from training.nano.layout import DuplexLayout, TurnsLayout
from training.nano.model import SpokenUnits
from training.nano.pace import split_reply
from training.nano.voice.alphabet import SILENCE

UNIT_CODES = TIMING.codes_per_second
GROUP_TOKENS = 10  # Source: docs/specification/model.md#5.4
NO_LABEL = -1
NO_STATE = -1


class UnfitTextError(ValueError):
    """The speech of a text is longer than its units."""


@dataclass(frozen=True)
class Spoken:
    """A text with its speech codes after the lead; `word_codes` has the first code of each word."""

    text: str
    codes: tuple[int, ...]
    word_codes: tuple[int, ...]


@dataclass
class Line:
    """One sequence of the speech decoder, and the sequence of the language model it depends on."""

    context: list[int]  # token ids of the language model
    hidden: Tensor | None = None  # its states [len(context), width]; None if not computed yet
    ids: list[int] = field(default_factory=list)
    is_code: list[bool] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)  # target code of each row, or `NO_LABEL`
    states: list[int] = field(default_factory=list)  # position in `context`, or `NO_STATE`

    def add_text(self, span: Span, markers: Sequence[int]) -> None:
        """Append a span of the context, then markers."""
        start, stop = span
        self.ids += [*self.context[start:stop], *markers]
        self.states += [*range(start, stop), *[NO_STATE] * len(markers)]
        count = stop - start + len(markers)
        self.is_code += [False] * count
        self.labels += [NO_LABEL] * count

    def add_codes(self, codes: Sequence[int], end: int | None) -> None:
        """Append codes; `end` is the target after them, if not None."""
        self.labels[-1] = codes[0] if codes else NO_LABEL if end is None else end
        self.ids += codes
        self.is_code += [True] * len(codes)
        self.states += [NO_STATE] * len(codes)
        self.labels += [*codes[1:], NO_LABEL if end is None else end][: len(codes)]


class LineWriter:
    def __init__(self, tokenizer: MiniCPMOTokenizerFast, config: TTSConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config

    def duplex(self, spoken: Spoken) -> Line:
        """Return a turn in units of one second; raises `UnfitTextError` if it is too long."""
        texts = split_reply(spoken.text)
        context = DuplexLayout(self._tokenizer)
        context.begin("", 0)
        for number, text in enumerate(texts, start=1):
            context.add_input(has_picture=False)
            context.speak(text, ends=number == len(texts), weight=1.0)
        context.close_reply(spoken.text, has_ended=True)
        return self._in_units(Line(context.ids), context.replies[0].units, spoken)

    def streamed(self, spoken: Spoken) -> Line:
        """Return a reply in groups of text tokens; a group ends with its last complete word."""
        return self._in_groups(*self._turn(spoken), spoken)

    def whole(self, spoken: Spoken) -> Line:
        """Return a whole reply; a short one is padded with silence up to the minimum length."""
        line, span = self._turn(spoken)
        line.add_text(span, self._markers(is_text_end=True))
        missing = SpeechSampling().min_codes_per_reply - len(spoken.codes)
        line.add_codes([*spoken.codes, *[SILENCE] * missing], self._config.speech_eos_id)
        return line

    def from_conversation(self, units: SpokenUnits, spoken: Spoken) -> Line:
        """Return a completed reply of a conversation; raises as `duplex`."""
        assert units.has_ended and units.text == spoken.text
        ends = [0, *accumulate(len(ids) for ids in units.ids)]
        line = Line([token for ids in units.ids for token in ids], torch.cat(units.hidden))
        spans = list(pairwise(ends))
        if units.is_duplex:
            return self._in_units(line, spans, spoken)
        return self._in_groups(line, spans[0], spoken)

    def _in_units(self, line: Line, units: Sequence[Span], spoken: Spoken) -> Line:
        codes = fit(spoken, [self._count_words(line.context[start:stop]) for start, stop in units])
        for number, span in enumerate(units):
            line.add_text(span, [self._config.audio_bos_token_id])
            is_last = number + 1 == len(units)
            part = codes[number * UNIT_CODES : (number + 1) * UNIT_CODES]
            line.add_codes(part, self._config.speech_eos_id if is_last else None)
        return line

    def _in_groups(self, line: Line, span: Span, spoken: Spoken) -> Line:
        start, stop = span
        said = 0
        for first in range(start, stop, GROUP_TOKENS):
            last = min(first + GROUP_TOKENS, stop)
            is_last = last == stop
            line.add_text((first, last), self._markers(is_text_end=is_last))
            n_words = self._count_words(line.context[start:last])
            until = len(spoken.codes) if is_last else spoken.word_codes[max(0, n_words - 1)]
            line.add_codes(spoken.codes[said:until], self._config.speech_eos_id)
            said = max(said, until)
        return line

    def _count_words(self, ids: Sequence[int]) -> int:
        return len(self._tokenizer.decode(list(ids), skip_special_tokens=True).split())

    def _turn(self, spoken: Spoken) -> tuple[Line, Span]:
        context = TurnsLayout(self._tokenizer)
        context.open_reply(can_be_spoken=True)
        context.answer(spoken.text, is_one_shot=False)
        return Line(context.ids), context.replies[0].units[0]

    def _markers(self, *, is_text_end: bool) -> list[int]:
        text_end = [self._config.text_eos_token_id] if is_text_end else []
        return [*text_end, self._config.audio_bos_token_id]


def fit(spoken: Spoken, words_per_unit: Sequence[int]) -> list[int]:
    """Delay words to the start of their unit, with silence before them.

    Returns the codes of all units, 25 of each but the last; raises `UnfitTextError` for more.
    """
    due = [unit for unit, count in enumerate(words_per_unit) for _ in range(count)]
    if len(due) != len(spoken.word_codes):
        raise UnfitTextError(f"{len(due)} words in units, {len(spoken.word_codes)} spoken")
    starts = [0, *spoken.word_codes[1:], len(spoken.codes)]
    codes: list[int] = []
    for word, unit in enumerate(due):
        codes += [SILENCE] * (unit * UNIT_CODES - len(codes))
        codes += spoken.codes[starts[word] : starts[word + 1]]
    n_units = len(words_per_unit)
    codes += [SILENCE] * ((n_units - 1) * UNIT_CODES - len(codes))
    while len(codes) > n_units * UNIT_CODES and codes[-1] == SILENCE:
        codes.pop()
    if len(codes) > n_units * UNIT_CODES:
        raise UnfitTextError(f"{len(codes)} codes do not fit {n_units} units")
    return codes
