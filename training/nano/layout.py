"""A training sequence: token ids with slots for sound and pictures, and what is to be learned.

Written with the prompts, marks and order of the served paths; a test holds both side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.prompts import Span, TurnOpening
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast
from training.nano.hearing import ROWS_PER_UNIT

PICTURE_ROWS = 64
TEXT, CHUNK_END, TURN_END = 1.0, 1.0, 2.0


@dataclass(frozen=True)
class SpokenReply:
    """Where a reply stands in a sequence.

    Attributes:
        text: the reply, also what was not said of it.
        units: positions of the spoken ids of each unit, the turn end among them; a turn-based
            reply is one unit.
    """

    text: str
    units: tuple[Span, ...]
    has_ended: bool
    intent: str = ""


@dataclass
class Layout:
    """A sequence being written.

    Attributes:
        weights: how much it counts to predict each id from those before it; 0 for what is given.
        units: first position of each unit's sound rows, in stream order.
        heard: ids of the words in the units' sound, in their order.
    """

    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    clips: list[Span] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    replies: list[SpokenReply] = field(default_factory=list)
    heard: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def give(self, ids: Sequence[int]) -> None:
        """Append ids that are fed, not learned."""
        self.ids += ids
        self.weights += [0.0] * len(ids)

    def say(self, ids: Sequence[int], weight: float) -> Span:
        """Append ids the model has to say; returns their positions."""
        start = len(self.ids)
        self.ids += ids
        self.weights += [weight] * len(ids)
        return start, len(self.ids)

    def unlearn(self, reply: SpokenReply, decode: Callable[[list[int]], str], until: str) -> None:
        """Take away the weight of a reply's words up to and with the first occurrence of some."""
        told = ""
        for position in (at for span in reply.units for at in range(*span)):
            if until in told:
                return
            told += decode([self.ids[position]])
            self.weights[position] = 0.0

    def place(self, ids: Sequence[int], clips: Sequence[Span], pictures: Sequence[Span]) -> None:
        start = len(self.ids)
        self.clips += [(start + first, start + stop) for first, stop in clips]
        self.pictures += [start + first for first, _ in pictures]
        self.give(ids)


class DuplexLayout(Layout):
    """The sequence of a duplex conversation. Source: `MiniCPMO45.modes.duplex`, `.speech`."""

    def __init__(self, tokenizer: MiniCPMOTokenizerFast) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._tokens = tokenizer.special
        self._saying: list[Span] = []

    def begin(self, system_text: str, n_voice_rows: int) -> None:
        self.give(self._tokenizer.encode(prompts.duplex_prefix(system_text)))
        if n_voice_rows:
            self.place([self._tokens.unk] * n_voice_rows, [(0, n_voice_rows)], [])
        self.give(self._tokenizer.encode(prompts.duplex_suffix()))

    def hear(self, *, has_picture: bool) -> None:
        """Write the input of the next unit."""
        tokens = self._tokens
        self.give([tokens.unit_start])
        if has_picture:
            self.give([tokens.image_start])
            self.place([tokens.unk] * PICTURE_ROWS, [], [(0, PICTURE_ROWS)])
            self.give([tokens.image_end])
        self.units.append(len(self))
        self.give([tokens.unk] * ROWS_PER_UNIT)

    def listen(self, weight: float) -> None:
        """Close a unit in which nothing is said."""
        self.say([self._tokens.listen], weight)
        self.give([self._tokens.unit_end])

    def speak(self, text: str, *, ends: bool, weight: float) -> None:
        """Write what a unit says, possibly nothing; `weight` is that of the decision to speak."""
        tokens = self._tokens
        self.say([tokens.speak], weight)
        start, stop = self.say(self._tokenizer.encode(text), TEXT)
        if ends:
            _, stop = self.say([tokens.turn_eos], TURN_END)
        self._saying.append((start, stop))
        self.say([tokens.chunk_eos], CHUNK_END)
        self.give([tokens.unit_end])

    def interrupt(self, weight: float) -> None:
        """Write the unit in which a running turn gives way."""
        self.say([self._tokens.turn_eos, self._tokens.listen], weight)
        self.give([self._tokens.unit_end])

    def close_reply(self, text: str, *, has_ended: bool, intent: str = "") -> None:
        """Remember the units written by `speak` since the last call as one reply."""
        self.replies.append(SpokenReply(text, tuple(self._saying), has_ended, intent))
        self._saying = []


class TurnsLayout(Layout):
    """The sequence of a conversation in turns. Source: `MiniCPMO45.modes.streaming`, `.chat`."""

    def __init__(self, tokenizer: MiniCPMOTokenizerFast) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._tokens = tokenizer.special
        self.opening = TurnOpening.FIRST

    def open_reply(self, *, can_be_spoken: bool) -> None:
        self.give(self._tokenizer.encode(prompts.reply_prefix(use_tts_template=can_be_spoken)))

    def answer(self, text: str, *, is_one_shot: bool, intent: str = "") -> None:
        """Write a reply and its end; in one shot the end of the message is learned, too."""
        span = self.say(self._tokenizer.encode(text), TEXT)
        self.replies.append(SpokenReply(text, (span,), has_ended=True, intent=intent))
        self.say([self._tokens.tts_eos], TURN_END)
        if is_one_shot:
            self.say([self._tokens.im_end], TURN_END)
        self.opening = TurnOpening.AFTER_REPLY

    def next_user(self, rendered: Sequence[int]) -> Sequence[int]:
        """Return a rendered user piece without the end mark that `answer` wrote already."""
        if self.opening is TurnOpening.AFTER_REPLY:
            assert rendered[0] == self._tokens.tts_eos
            return rendered[1:]
        return rendered
