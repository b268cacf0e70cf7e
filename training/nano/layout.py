"""Training sequences: token ids with slots for audio and pictures, and loss weights.

The sequences equal those of serving (tested).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from MiniCPMO45.processing import prompts
from MiniCPMO45.processing.processor import Span
from MiniCPMO45.processing.prompts import TurnOpening
from MiniCPMO45.processing.tokenizer import MiniCPMOTokenizerFast, SpecialTokens
from training.nano.hearing import ROWS_PER_UNIT

PICTURE_ROWS = 64
TEXT, CHUNK_END, TURN_END = 1.0, 1.0, 2.0


@dataclass(frozen=True)
class SpokenReply:
    text: str  # the whole reply, even if it was interrupted
    units: tuple[Span, ...]  # positions of each unit's ids and end of turn; one if turn-based
    has_ended: bool
    intent: str = ""


@dataclass
class Layout:
    tokenizer: MiniCPMOTokenizerFast
    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)  # loss weight of each id; 0 for context
    units: list[int] = field(default_factory=list)  # first audio row of each, in stream order
    clips: list[Span] = field(default_factory=list)
    pictures: list[int] = field(default_factory=list)
    replies: list[SpokenReply] = field(default_factory=list)
    transcript: list[int] = field(default_factory=list)  # token ids of the speech in the units

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> SpecialTokens:
        return self.tokenizer.special

    def add_context(self, ids: Sequence[int]) -> None:
        """Append ids without loss."""
        self.ids += ids
        self.weights += [0.0] * len(ids)

    def add_target(self, ids: Sequence[int], weight: float) -> Span:
        """Append ids to be predicted; return their positions."""
        start = len(self.ids)
        self.ids += ids
        self.weights += [weight] * len(ids)
        return start, len(self.ids)

    def mask_until(self, until: str) -> None:
        """Remove the loss of the last reply's tokens up to and including the first `until`."""
        text = ""
        for position in (at for span in self.replies[-1].units for at in range(*span)):
            if until in text:
                return
            text += self.tokenizer.decode([self.ids[position]])
            self.weights[position] = 0.0

    def add_media(
        self, ids: Sequence[int], clips: Sequence[Span], pictures: Sequence[Span]
    ) -> None:
        """Append context with the spans of clips and pictures in it."""
        start = len(self.ids)
        self.clips += [(start + first, start + stop) for first, stop in clips]
        self.pictures += [start + first for first, _ in pictures]
        self.add_context(ids)


@dataclass
class DuplexLayout(Layout):
    """The sequence of a duplex conversation, as in `MiniCPMO45.modes.duplex`."""

    _reply_units: list[Span] = field(default_factory=list)

    def begin(self, system_text: str, n_voice_rows: int) -> None:
        self.add_context(self.tokenizer.encode(prompts.duplex_prefix(system_text)))
        if n_voice_rows:
            self.add_media([self.tokens.unk] * n_voice_rows, [(0, n_voice_rows)], [])
        self.add_context(self.tokenizer.encode(prompts.duplex_suffix()))

    def add_input(self, *, has_picture: bool) -> None:
        """Append the input of the next unit."""
        tokens = self.tokens
        self.add_context([tokens.unit_start])
        if has_picture:
            self.add_context([tokens.image_start])
            self.add_media([tokens.unk] * PICTURE_ROWS, [], [(0, PICTURE_ROWS)])
            self.add_context([tokens.image_end])
        self.units.append(len(self))
        self.add_context([tokens.unk] * ROWS_PER_UNIT)

    def listen(self, weight: float) -> None:
        """End the unit with the decision to listen."""
        self.add_target([self.tokens.listen], weight)
        self.add_context([self.tokens.unit_end])

    def speak(self, text: str, *, ends: bool, weight: float) -> None:
        """End the unit with speech, possibly empty; `weight` is that of the decision to speak."""
        tokens = self.tokens
        self.add_target([tokens.speak], weight)
        start, stop = self.add_target(self.tokenizer.encode(text), TEXT)
        if ends:
            _, stop = self.add_target([tokens.turn_eos], TURN_END)
        self._reply_units.append((start, stop))
        self.add_target([tokens.chunk_eos], CHUNK_END)
        self.add_context([tokens.unit_end])

    def interrupt(self, weight: float) -> None:
        """End the unit with the end of an interrupted turn."""
        self.add_target([self.tokens.turn_eos, self.tokens.listen], weight)
        self.add_context([self.tokens.unit_end])

    def close_reply(self, text: str, *, has_ended: bool, intent: str = "") -> None:
        """Record the units of `speak` since the last call as one reply."""
        self.replies.append(SpokenReply(text, tuple(self._reply_units), has_ended, intent))
        self._reply_units = []


@dataclass
class TurnsLayout(Layout):
    """The sequence of a turn-based conversation, as in `MiniCPMO45.modes.streaming`."""

    opening: TurnOpening = TurnOpening.FIRST

    def open_reply(self, *, can_be_spoken: bool) -> None:
        self.add_context(
            self.tokenizer.encode(prompts.reply_prefix(use_tts_template=can_be_spoken))
        )

    def answer(self, text: str, *, is_one_shot: bool, intent: str = "") -> None:
        """Append a reply and its end; for one-shot replies, also the end of the message."""
        span = self.add_target(self.tokenizer.encode(text), TEXT)
        self.replies.append(SpokenReply(text, (span,), has_ended=True, intent=intent))
        self.add_target([self.tokens.tts_eos], TURN_END)
        if is_one_shot:
            self.add_target([self.tokens.im_end], TURN_END)
        self.opening = TurnOpening.AFTER_REPLY
