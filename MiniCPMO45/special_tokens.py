"""The control tokens that the model works with, looked up once by name.

No id is written down anywhere: a vocabulary of another size has other ids. The lists derived from
them (terminators, forbidden marks, fixed prefixes) live here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

# Marks a spoken reply may not contain. Source: docs/specification/model.md#5.4.
ASCII_MARKS = (":", "#", "@", "*", "(", ")", "[", "]", "&", "/", "$")
FULL_WIDTH_MARKS = ("：", "；", "“", "”", "‘", "’", "【", "】", "「", "」", "（", "）")

UNK_TOKEN = "<unk>"
TOOL_CALL = "<tool_call>"  # begins a function call; an ordinary entry, too
END_OF_SEQUENCE = "</s>"  # an ordinary entry of the published vocabulary; absent from others


class TokenizerError(ValueError):
    """A checkpoint's tokenizer cannot be read, or lacks tokens the model cannot work without."""


class Vocabulary(Protocol):
    """What the look-up needs of a tokenizer."""

    @property
    def bad_token_ids(self) -> tuple[int, ...]:
        """Ids that must never be spoken."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids flagged special."""

    def token_id(self, token: str) -> int | None:
        """The id of an exact vocabulary entry."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""


def _named(token: str) -> Any:  # Any: stands where the dataclass expects the field's own type
    return field(metadata={"token": token})


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the control tokens and of fixed texts. Source: docs/specification/model.md#3.1."""

    end_of_sequence: int | None
    tool_call: int | None
    special_ids: frozenset[int]
    bad_token_ids: tuple[int, ...]
    ascii_mark_ids: tuple[int, ...]
    full_width_mark_ids: tuple[int, ...]
    unk: int = _named(UNK_TOKEN)
    endoftext: int = _named("<|endoftext|>")
    im_start: int = _named("<|im_start|>")
    im_end: int = _named("<|im_end|>")
    image_start: int = _named("<image>")
    image_end: int = _named("</image>")
    slice_start: int = _named("<slice>")
    slice_end: int = _named("</slice>")
    image_id_start: int = _named("<image_id>")
    image_id_end: int = _named("</image_id>")
    unit_start: int = _named("<unit>")
    unit_end: int = _named("</unit>")
    audio_start: int = _named("<|audio_start|>")
    audio_end: int = _named("<|audio_end|>")
    tts_bos: int = _named("<|tts_bos|>")
    tts_eos: int = _named("<|tts_eos|>")
    listen: int = _named("<|listen|>")
    speak: int = _named("<|speak|>")
    turn_eos: int = _named("<|turn_eos|>")
    chunk_eos: int = _named("<|chunk_eos|>")
    chunk_tts_eos: int = _named("<|chunk_tts_eos|>")
    tts_pad: int = _named("<|tts_pad|>")

    @classmethod
    def look_up(cls, vocabulary: Vocabulary) -> SpecialTokens:
        """Find every token by name.

        Args:
            vocabulary: a loaded tokenizer.

        Raises:
            TokenizerError: some names are missing; the message lists all of them.
        """
        names = {f.name: f.metadata["token"] for f in fields(cls) if "token" in f.metadata}
        found = {name: vocabulary.token_id(token) for name, token in names.items()}
        missing = [names[name] for name, value in found.items() if value is None]
        if missing:
            raise TokenizerError(
                f"the vocabulary lacks {len(missing)} control tokens: {' '.join(missing)}"
            )
        return cls(
            **{name: value for name, value in found.items() if value is not None},
            end_of_sequence=vocabulary.token_id(END_OF_SEQUENCE),
            tool_call=vocabulary.token_id(TOOL_CALL),
            special_ids=vocabulary.special_ids,
            bad_token_ids=vocabulary.bad_token_ids,
            ascii_mark_ids=_single_ids(vocabulary, ASCII_MARKS),
            full_width_mark_ids=_single_ids(vocabulary, FULL_WIDTH_MARKS),
        )

    @property
    def chat_terminators(self) -> frozenset[int]:
        """Ids that end a one-shot reply: `<|im_end|>`, `<|endoftext|>`."""
        return frozenset((self.im_end, self.endoftext))

    @property
    def reply_terminators(self) -> frozenset[int]:
        """Ids that end a streamed reply: `<|tts_eos|>`, `<|im_end|>` and `</s>` where it exists."""
        extra = () if self.end_of_sequence is None else (self.end_of_sequence,)
        return frozenset((self.tts_eos, self.im_end, *extra))

    @property
    def chunk_terminators(self) -> frozenset[int]:
        """Ids that end a duplex unit: listen, end of chunk, end of spoken chunk."""
        return frozenset((self.listen, self.chunk_eos, self.chunk_tts_eos))

    @property
    def unit_controls(self) -> frozenset[int]:
        """Control ids a duplex unit may hold; none of them is text."""
        return self.chunk_terminators | {
            self.unit_start,
            self.unit_end,
            self.speak,
            self.tts_bos,
            self.tts_eos,
            self.tts_pad,
            self.turn_eos,
        }

    @property
    def untold_ids(self) -> frozenset[int]:
        """Ids left out when spoken text is carried over: special ones and unit controls."""
        return self.special_ids | self.unit_controls

    def spoken_count(self, ids: Sequence[int]) -> int:
        """Return how many tokens of a reply are said aloud: those before a function call."""
        return ids.index(self.tool_call) if self.tool_call in ids else len(ids)

    def spoken_reply_forbidden(self, full_width_marks_allowed: bool = False) -> tuple[int, ...]:
        """Return the sorted ids a spoken streamed reply may not contain.

        Args:
            full_width_marks_allowed: D11, only `<unk>` stands for all full-width marks.

        Source: docs/specification/model.md#5.4.
        """
        wide = () if full_width_marks_allowed else self.full_width_mark_ids
        return tuple(sorted({*self.ascii_mark_ids, *wide, *self.bad_token_ids, self.unk}))

    def unit_forbidden(self) -> tuple[int, ...]:
        """Return the sorted ids a duplex decision may not draw after the chunk-end probe.

        Source: docs/specification/model.md#6.5.
        """
        return tuple(sorted({*self.bad_token_ids, self.tts_pad, self.chunk_eos}))


def _single_ids(vocabulary: Vocabulary, marks: tuple[str, ...]) -> tuple[int, ...]:
    """Ids of the marks that are one token each, in the order given."""
    encoded = (vocabulary.encode(mark) for mark in marks)
    return tuple(ids[0] for ids in encoded if len(ids) == 1)
