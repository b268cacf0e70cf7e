"""Items of a Realtime conversation, in order. Pure.

Bounded: beyond `max_items` or `max_chars` the oldest items are dropped, beyond `max_audio_s` the
oldest audio, whose text is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final, Literal

from pybase64 import b64encode_as_string

from core.protocols.events import MS_PER_S
from core.protocols.openai_events import Json
from core.schemas import realtime_session as schemas
from core.schemas.limits import MIB
from core.schemas.realtime_session import AudioFormat

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system"]
ROOT: Final = "root"
KEPT_ITEMS: Final = 4  # the last two turns are always kept
RETRIEVED_S: Final = 30.0  # audio in `retrieved`; some clients accept no larger message
RETRIEVED_MAX_BYTES: Final = 600_000  # 800,000 characters of Base64


@dataclass(frozen=True)
class AudioClip:
    """Audio in the client's format."""

    pcm: bytes = field(repr=False)  # empty if dropped
    format: AudioFormat
    duration_ms: int  # also of dropped audio

    @classmethod
    def of(cls, pcm: bytes, audio_format: AudioFormat) -> AudioClip:
        pcm = pcm[: len(pcm) - len(pcm) % audio_format.sample_bytes]
        return cls(pcm, audio_format, len(pcm) * MS_PER_S // audio_format.bytes_per_s)


@dataclass(frozen=True)
class Content:
    """One part of an item: text, audio or a picture."""

    type: str  # as in the protocol
    text: str | None = None  # None if unknown
    audio: AudioClip | None = None
    picture: str | None = field(default=None, repr=False)  # Base64
    # Of the model's speech: end of each piece in characters and bytes.
    marks: tuple[tuple[int, int], ...] = field(default=(), repr=False)

    def played(self, end_ms: int) -> Content:
        """Return the part that was played: whole pieces, then words in proportion."""
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
                    wire["audio"] = b64encode_as_string(_end_of(self.audio))
                return wire
            case "input_image":
                return {"type": self.type}
            case _:
                return {"type": self.type, "text": self.text or ""}


@dataclass(frozen=True)
class Item:
    id: str
    kind: str = "message"  # message, function_call or function_call_output
    role: Role | None = None  # of a message
    status: ItemStatus = "completed"
    content: tuple[Content, ...] = ()  # of a message
    call_id: str = ""  # of a call and its output
    name: str = ""  # of the called function
    arguments: str = ""  # of the call
    output: str = ""  # of the function
    response_id: str = ""  # of the response it is part of, if any
    revision: int = 0  # number of changes, each of which invalidates a cache

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
    def chars(self) -> int:
        """Length of its texts and of its pictures' Base64."""
        parts = sum(len(part.text or "") + len(part.picture or "") for part in self.content)
        return parts + len(self.arguments) + len(self.output)

    @property
    def audio_ms(self) -> int:
        return sum(part.audio.duration_ms for part in self.content if part.audio and part.audio.pcm)


def item_of(given: schemas.ClientItem, item_id: str, audio_format: AudioFormat) -> Item:
    match given:
        case schemas.FunctionCallItem():
            call_id = given.call_id or item_id
            return Item(
                item_id, given.type, call_id=call_id, name=given.name, arguments=given.arguments
            )
        case schemas.FunctionOutputItem():
            return Item(item_id, given.type, call_id=given.call_id, output=given.output)
        case schemas.MessageItem():
            role = given.known_role
            content = tuple(_content(part, role, audio_format) for part in given.content)
            return Item(item_id, role=role, content=content)


@dataclass(frozen=True)
class RealtimeLimits:
    """Limits of a Realtime session. Ours."""

    max_items: int = 500  # beyond it the oldest items are dropped
    # Texts and Base64 of pictures in items; beyond it the oldest items are dropped.
    max_chars: int = 64 * MIB
    # Audio in items; beyond it the oldest audio is dropped, its text kept.
    max_audio_s: float = 600.0
    max_pictures: int = 8  # items that are pictures alone; beyond it the oldest are dropped
    max_session_s: float = 0.0  # longest session; 0 is unlimited
    max_kv_tokens: int = 8_192  # tokens that leave no room for a reply
    kv_reserve_tokens: int = 1_024  # tokens kept free by dropping the oldest items
    max_outside: int = 8  # queued responses outside the conversation


class ItemStore(dict[str, Item]):
    """Items of one conversation by their ids, in its order."""

    def __init__(self, conversation_id: str, limits: RealtimeLimits) -> None:
        super().__init__()
        self.conversation_id = conversation_id
        self._limits = limits

    def previous_of(self, item_id: str) -> str | None:
        before = [*takewhile(lambda known: known != item_id, self)]
        return before[-1] if before else None

    def has_call(self, call_id: str) -> bool:
        calls = (item for item in self.values() if item.kind == "function_call")
        return any(call.call_id == call_id for call in calls)

    def add(self, item: Item, after: str | None = None) -> str | None:
        """Insert an item; return the id of the one before it.

        `after` is the id of a known item, or `ROOT` for the beginning; None is the end.
        """
        following: list[Item] = []
        if after is not None:
            at = 0 if after == ROOT else list(self).index(after) + 1
            following = [self.pop(known) for known in list(self)[at:]]
        self.update({known.id: known for known in (item, *following)})
        previous = self.previous_of(item.id)
        self._drop_surplus(item.id)
        return previous

    def put(self, item: Item) -> None:
        """Update an item, unless it was deleted."""
        if item.id in self:
            self[item.id] = item

    def drop_share(self, share: float, *, least: int) -> bool:
        """Drop a share of the items, the oldest first; return whether there were any.

        System messages are kept, and so are the newest `KEPT_ITEMS` of the others.
        """
        droppable = [item.id for item in self.values() if item.role != "system"]
        count = min(max(least, round(len(droppable) * share)), len(droppable) - KEPT_ITEMS)
        for item_id in droppable[: max(0, count)]:
            del self[item_id]
        return count > 0

    def _drop_surplus(self, newest_id: str) -> None:
        others = [item for item in self.values() if item.id != newest_id]
        left_items = self._limits.max_items - 1
        left_chars = self._limits.max_chars - self[newest_id].chars
        for item in reversed(others):
            left_items, left_chars = left_items - 1, left_chars - item.chars
            if left_items < 0 or left_chars < 0:
                del self[item.id]
        pictures = [item.id for item in self.values() if item.is_picture and item.id != newest_id]
        kept_pictures = self._limits.max_pictures - self[newest_id].is_picture
        for item_id in pictures[: max(0, len(pictures) - kept_pictures)]:
            del self[item_id]
        left_ms = self._limits.max_audio_s * MS_PER_S
        for item in reversed(tuple(self.values())):
            left_ms -= item.audio_ms
            if left_ms < 0 and item.audio_ms and item.id != newest_id:
                silent = tuple(
                    replace(part, audio=replace(part.audio, pcm=b"")) if part.audio else part
                    for part in item.content
                )
                self.put(replace(item, content=silent, revision=item.revision + 1))


def _content(part: schemas.Part, role: Role, audio_format: AudioFormat) -> Content:
    match part:
        case schemas.TextPart():
            return Content("output_text" if role == "assistant" else "input_text", part.text)
        case schemas.AudioPart():
            audio = AudioClip.of(part.audio, audio_format) if part.audio else None
            return Content("input_audio", part.transcript, audio)
        case schemas.SpokenPart():
            return Content("output_audio", part.transcript or "")
        case schemas.PicturePart():
            return Content("input_image", picture=part.base64)


def _whole_words(text: str, share: float) -> int:
    """Return the length of the whole words within a share of a text."""
    cut = int(len(text) * share)
    if cut >= len(text) or text[cut : cut + 1].isspace():
        return cut
    return text.rfind(" ", 0, cut) + 1


def _end_of(audio: AudioClip) -> bytes:
    """Return the last seconds, as much as every client accepts in one message."""
    most = min(round(RETRIEVED_S * audio.format.bytes_per_s), RETRIEVED_MAX_BYTES)
    return audio.pcm[-(most - most % audio.format.sample_bytes) :]
