"""The items of a Realtime conversation: kept in order, shown to clients, rendered as turns. Pure.

Bounded: at most `max_items` items, of which the oldest leave first, and `max_audio_s` of the user's
audio, of which the oldest is dropped while its words stay.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from core.protocols.events import MS_PER_S
from core.protocols.openai_events import Json
from core.schemas.realtime_items import (
    FunctionCallItem,
    FunctionOutputItem,
    MessageItem,
    PicturePart,
    SoundPart,
    SpokenPart,
    TextPart,
)
from core.schemas.realtime_session import AudioFormat

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system"]
ROOT: Final = "root"
RETRIEVED_S: Final = 30.0  # audio in `retrieved`, as some clients take no larger message
RETRIEVED_MAX_BYTES: Final = 600_000  # 800,000 characters of Base64


@dataclass(frozen=True)
class AudioClip:
    """Audio as the client wrote or reads it."""

    pcm: bytes = field(repr=False)  # its bytes; empty if they were dropped
    format: AudioFormat  # how they are written
    duration_ms: int  # how long it is, or was

    @classmethod
    def of(cls, pcm: bytes, audio_format: AudioFormat) -> AudioClip:
        pcm = pcm[: len(pcm) - len(pcm) % audio_format.sample_bytes]
        return cls(pcm, audio_format, len(pcm) * MS_PER_S // audio_format.bytes_per_s)


@dataclass(frozen=True)
class Content:
    """One part of an item: words, audio, or a picture."""

    type: str  # the protocol's name of its kind
    text: str | None = None  # None if it is not known
    audio: AudioClip | None = None
    picture: str | None = field(default=None, repr=False)  # Base64 of it
    # Of what the model said: where each piece ends, in characters and in bytes.
    marks: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def played(self, end_ms: int) -> Content:
        """Return what was played of it until then: whole pieces, and words in proportion."""
        audio = self.audio
        if audio is None:
            return self
        stop = end_ms * audio.format.rate_hz // MS_PER_S * audio.format.sample_bytes
        chars = bytes_before = 0
        text = self.text or ""
        for chars_end, bytes_end in self.marks:
            if bytes_end > stop:
                share = (stop - bytes_before) / (bytes_end - bytes_before)
                chars += _whole_words(text[chars:chars_end], share)
                break
            chars, bytes_before = chars_end, bytes_end
        else:
            chars, stop = len(text), max(stop, len(audio.pcm))
        kept = tuple(mark for mark in self.marks if mark[0] <= chars and mark[1] <= stop)
        cut = AudioClip(audio.pcm[:stop], audio.format, min(end_ms, audio.duration_ms))
        return replace(self, text=text[:chars].rstrip(), audio=cut, marks=(*kept, (chars, stop)))

    def wire(self, *, with_audio: bool = False) -> Json:
        match self.type:
            case "input_audio" | "output_audio":
                wire: Json = {"type": self.type, "transcript": self.text}
                if with_audio and self.audio is not None and self.audio.pcm:
                    wire["audio"] = base64.b64encode(_end_of(self.audio)).decode("ascii")
                return wire
            case "input_image":
                return {"type": self.type}
            case _:
                return {"type": self.type, "text": self.text or ""}


@dataclass(frozen=True)
class Item:
    """One item."""

    id: str
    kind: str = "message"  # message, function_call or function_call_output
    role: Role | None = None  # of a message
    status: ItemStatus = "completed"  # whether it is complete
    content: tuple[Content, ...] = ()  # of a message
    call_id: str = ""  # of a call and its output
    name: str = ""  # of the called function
    arguments: str = ""  # of the call
    output: str = ""  # of the function
    response_id: str = ""  # which response made it; "" if none did
    revision: int = 0  # counts changes after which a cache no longer holds it as it is

    def wire(self, *, with_audio: bool = False) -> Json:
        wire: Json = {
            "id": self.id,
            "object": "realtime.item",
            "type": self.kind,
            "status": self.status,
        }
        if self.kind == "message":
            parts = [part.wire(with_audio=with_audio) for part in self.content]
            return {**wire, "role": self.role, "content": parts}
        if self.kind == "function_call":
            call = {"call_id": self.call_id, "name": self.name, "arguments": self.arguments}
            return {**wire, **call}
        return {**wire, "call_id": self.call_id, "output": self.output}

    @property
    def text(self) -> str:
        return "".join(part.text or "" for part in self.content)

    @property
    def is_picture(self) -> bool:
        return bool(self.content) and all(part.picture for part in self.content)

    @property
    def audio_ms(self) -> int:
        return sum(part.audio.duration_ms for part in self.content if part.audio and part.audio.pcm)


def item_of(
    given: MessageItem | FunctionCallItem | FunctionOutputItem,
    item_id: str,
    audio_format: AudioFormat,
) -> Item:
    match given:
        case FunctionCallItem():
            call_id = given.call_id or item_id
            return Item(
                item_id, given.type, call_id=call_id, name=given.name, arguments=given.arguments
            )
        case FunctionOutputItem():
            return Item(item_id, given.type, call_id=given.call_id, output=given.output)
        case MessageItem():
            role = given.known_role
            content = tuple(_content(part, role, audio_format) for part in given.content)
            return Item(item_id, role=role, content=content)


@dataclass(frozen=True)
class StoreLimits:
    """How much of a conversation is kept. Ours.

    Attributes:
        max_items: items; the oldest of more are forgotten.
        max_audio_s: the user's audio; of more, the oldest is dropped while its words stay.
        max_pictures: items that are pictures alone; the oldest of more are forgotten.
    """

    max_items: int = 500
    max_audio_s: float = 600.0
    max_pictures: int = 8


class ItemStore:
    """The conversation."""

    def __init__(self, limits: StoreLimits | None = None) -> None:
        self._limits = limits or StoreLimits()
        self._items: dict[str, Item] = {}

    def __iter__(self) -> Iterator[Item]:
        return iter(tuple(self._items.values()))

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._items

    def get(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    def previous_of(self, item_id: str) -> str | None:
        previous = None
        for known in self._items:
            if known == item_id:
                return previous
            previous = known
        return previous

    @property
    def last_id(self) -> str | None:
        return next(reversed(self._items), None)

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Add an item behind another one, or last; return the name of the one before it.

        Args:
            item: With a new name.
            after: Known, or `ROOT` for the beginning; None is last.
        """
        if after is None or after == self.last_id:
            self._items[item.id] = item
        else:
            known = list(self._items.items())
            at = 0 if after == ROOT else list(self._items).index(after) + 1
            self._items = dict([*known[:at], (item.id, item), *known[at:]])
        previous = self.previous_of(item.id)
        self._forget_surplus(item.id)
        return previous

    def put(self, item: Item) -> None:
        """Replace an item by a newer state of it, unless it was deleted."""
        if item.id in self._items:
            self._items[item.id] = item

    def delete(self, item_id: str) -> None:
        self._items.pop(item_id, None)

    def drop_oldest(self, count: int) -> int:
        """Forget the oldest items but those of the system; return how many were."""
        oldest = [item.id for item in self if item.role != "system"][:count]
        for item_id in oldest:
            self.delete(item_id)
        return len(oldest)

    def _forget_surplus(self, newest_id: str) -> None:
        others = [item for item in self if item.id != newest_id]
        surplus = len(self._items) - self._limits.max_items
        for item in others[: max(0, surplus)]:
            self.delete(item.id)
        pictures = [item.id for item in self if item.is_picture]
        for item_id in pictures[: -self._limits.max_pictures]:
            self.delete(item_id)
        left_ms = self._limits.max_audio_s * MS_PER_S
        for item in reversed(tuple(self)):
            left_ms -= item.audio_ms
            if left_ms < 0 and item.audio_ms and item.id != newest_id:
                self.put(_without_audio(item))


def _without_audio(item: Item) -> Item:
    silent = tuple(
        replace(part, audio=replace(part.audio, pcm=b"")) if part.audio else part
        for part in item.content
    )
    return replace(item, content=silent, revision=item.revision + 1)


def _content(
    part: TextPart | SoundPart | SpokenPart | PicturePart, role: Role, audio_format: AudioFormat
) -> Content:
    match part:
        case TextPart():
            return Content("output_text" if role == "assistant" else "input_text", part.text)
        case SoundPart():
            audio = AudioClip.of(part.audio, audio_format) if part.audio else None
            return Content("input_audio", part.transcript, audio)
        case SpokenPart():
            return Content("output_audio", part.transcript or "")
        case PicturePart():
            return Content("input_image", picture=part.base64)


def _whole_words(text: str, share: float) -> int:
    """Return how many characters of a text are whole words within a share of it."""
    cut = int(len(text) * share)
    if cut >= len(text) or text[cut : cut + 1].isspace():
        return cut
    return max(text.rfind(" ", 0, cut) + 1, 0)


def _end_of(audio: AudioClip) -> bytes:
    """Return the last seconds, as much as every client takes in one message."""
    most = min(round(RETRIEVED_S * audio.format.bytes_per_s), RETRIEVED_MAX_BYTES)
    return audio.pcm[-(most - most % audio.format.sample_bytes) :]
