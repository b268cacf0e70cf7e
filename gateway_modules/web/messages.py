"""Long messages in parts: JSON texts that are not parsed as a whole, and WebSocket frames.

Messages are long because of their media. Only the text around media is parsed and written; media
are compared and forwarded in the parts in which they arrived. No step handles more than
`SHORT_TEXT_CHARS` at once: even in a thread it would hold the interpreter and stall the loop.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn, TypeVar

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from websockets.frames import apply_mask  # type: ignore[attr-defined]  # the fastest there is

from core.errors import BadPayloadError, TooBigError
from core.schemas.common import check_values, count_values
from core.schemas.limits import JSON_VALUES_MAX, MIB
from gateway_modules.web.limits import READ_BYTES, first_of

JOINED_CHARS: Final = MIB  # a message up to this is one text, a few milliseconds of work
LONG_CHARS: Final = 32 * 1024  # longer strings are extracted; no context holds such a text
SHORT_TEXT_CHARS: Final = 8 * MIB  # limit of the remaining text, some 30 ms of work
PART_CHARS: Final = 256 * 1024  # of a forwarded text
STRINGS_MAX: Final = 2 * JSON_VALUES_MAX  # keys and values
NAME_BYTES: Final = 16  # random, so that no client can forge a placeholder
PARTS_MARK: Final = "takes parts"  # key in a socket's scope: its app accepts texts in parts

# A part up to the end of a string, or to the beginning of the next. Possessive: no backtracking.
PIECE: Final = re.compile(r'((?:[^"\\]++|\\.)*+)("?)', re.DOTALL)


class LongStrings(dict[str, tuple[str, ...]]):
    """Parts of long strings, JSON-escaped, by the placeholders that stand for them in a text."""

    def __init__(self) -> None:
        super().__init__()
        self._name = secrets.token_hex(NAME_BYTES)

    def put(self, parts: Sequence[str]) -> str:
        """Return a string, or a placeholder for a long one."""
        if sum(map(len, parts)) <= LONG_CHARS:
            return "".join(parts)
        name = f"{self._name}-{len(self)}."
        self[name] = tuple(parts)
        return name


class LongText(str):
    """A JSON text with placeholders for its long strings."""

    _strings: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @classmethod
    def of(cls, text: str, strings: Mapping[str, tuple[str, ...]]) -> LongText:
        made = cls(text)
        made._strings = strings
        return made

    @property
    def size_chars(self) -> int:
        return len(self) + sum(len(part) for parts in self._strings.values() for part in parts)

    def with_text(self, text: str) -> LongText:
        return LongText.of(text, self._strings)

    def value(self, string: str) -> Iterator[str]:
        return map(_unescaped, self._strings[string]) if string in self._strings else iter([string])

    def parts(self) -> Iterator[str]:
        names = "|".join(map(re.escape, self._strings)) or "(?!)"
        waiting, waiting_chars = [], 0
        for piece_text in re.split(f"({names})", self):
            for piece in self._strings.get(piece_text) or _cut(piece_text):
                waiting.append(piece)
                waiting_chars += len(piece)
                if waiting_chars >= PART_CHARS:
                    yield "".join(waiting)
                    waiting, waiting_chars = [], 0
        if waiting:
            yield "".join(waiting)


class LongTextReader:
    """Extracts the long strings of a JSON text that arrives in parts."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._text_chars = 0
        self._strings = LongStrings()
        self._string: list[str] = []  # parts of the current, unfinished string
        self._quotation_marks = 0  # an odd number within a string
        self._values = 0
        self._escape = ""  # an incomplete escape sequence at the end of the last part

    def feed(self, part: str) -> None:
        """Raises TooBigError for too many values or too much text, BadPayloadError if not JSON."""
        self._values += count_values(part)
        check_values(self._values)
        part = self._escape + part
        self._escape = "\\" * ((len(part) - len(part.rstrip("\\"))) % 2)
        for found in PIECE.finditer(part, 0, len(part) - len(self._escape)):
            piece, mark = found.groups()
            if self._quotation_marks % 2:
                self._string.append(piece)
            else:
                self._add(piece)
            if mark:
                self._end_string()
                self._add(mark)
                self._quotation_marks += 1
                if self._quotation_marks > 2 * STRINGS_MAX:
                    raise BadPayloadError("The message is not valid JSON.")

    def result(self) -> str:
        self._end_string()
        text = "".join(self._text) + self._escape
        return LongText.of(text, self._strings) if self._strings else text

    def _end_string(self) -> None:
        string, self._string = self._string, []
        self._add(self._strings.put(string))

    def _add(self, text: str) -> None:
        self._text.append(text)
        self._text_chars += len(text)
        if self._text_chars > SHORT_TEXT_CHARS:
            raise TooBigError(
                f"The message has more than {SHORT_TEXT_CHARS // MIB} MiB besides its media."
            )


def read_long(parts: Iterable[str]) -> str:
    reader = LongTextReader()
    for part in parts:
        reader.feed(part)
    return reader.result()


def size_chars(text: str) -> int:
    return text.size_chars if isinstance(text, LongText) else len(text)


def with_strings_of(text: str, changed: str) -> str:
    return text.with_text(changed) if isinstance(text, LongText) else changed


def parts_of(text: str) -> Iterator[str]:
    """Yield a text in parts that do not block the event loop."""
    return text.parts() if isinstance(text, LongText) else iter(_cut(text))


def _cut(text: str) -> list[str]:
    return [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]


def _unescaped(part: str) -> str:
    """Decode a part of a string; one that begins or ends in an escape sequence is unchanged."""
    if "\\" not in part:
        return part
    try:
        return str(json.loads(f'"{part}"', strict=False))
    except ValueError:
        return part


# A quotation mark inside a JSON string is escaped, so this never matches inside one.
TYPE: Final = re.compile(r'"type"\s*:\s*"([\w.]{1,64})"')
WINDOW_CHARS: Final = 256  # writers put the type first or last
PARSED_CHARS: Final = 64 * 1024  # longer texts are searched at both ends only


def peek_type(text: str) -> str:
    """Return a message's type from its beginning or end; "" if it is in neither.

    Assumes that no nested object with a type of its own precedes it.
    """
    found = TYPE.search(text, 0, WINDOW_CHARS)
    if found is None and len(text) > WINDOW_CHARS:
        found = TYPE.search(text, len(text) - WINDOW_CHARS)
    if found is not None:
        return found[1]
    return parse_type(text) if WINDOW_CHARS < len(text) <= PARSED_CHARS else ""


def parse_type(text: str) -> str:
    try:
        kind = parse_object(text).get("type")
    except BadPayloadError:
        return ""
    return kind if isinstance(kind, str) else ""


# Any: JSON.
def parse_object(text: str) -> dict[str, Any]:
    """Raises BadPayloadError."""
    try:
        message = from_json(text)  # refuses half a surrogate pair, which nothing could send
    except ValueError as error:
        raise BadPayloadError("The message is not valid JSON.") from error
    if not isinstance(message, dict):
        raise BadPayloadError("The message is not a JSON object.")
    return message


Result = TypeVar("Result")


async def text_of(request: Request) -> str:
    decoder, reader = codecs.getincrementaldecoder("utf-8")(), LongTextReader()
    try:
        async for block in request.stream():
            reader.feed(decoder.decode(block))
        reader.feed(decoder.decode(b"", final=True))
    except UnicodeDecodeError:
        raise BadPayloadError("The message is not valid JSON.") from None
    return reader.result()


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Cancel work when the client disconnects (ClientDisconnect); its body has been read."""
    return await first_of(work, _disconnect(request))


async def _disconnect(request: Request) -> NoReturn:
    while (await request.receive())["type"] != "http.disconnect":
        continue
    raise ClientDisconnect


# --- WebSocket frames. Source: RFC 6455, section 5.2 ---

# All fragments but the last. A multiple of the mask's length, which restarts in each fragment.
FRAGMENT_BYTES: Final = 64 * 1024

# Parts of a frame's header.
FIN: Final = 0x80
OPCODE: Final = 0x0F
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LENGTH_BYTES: Final = (0,) * 126 + (2, 8)  # of the extended length, by the 7-bit length
MASK_BYTES: Final = 4
HEAD_BYTES: Final = 2 + 8 + MASK_BYTES  # at most
TEXT: Final = 1
BINARY: Final = 2  # the last data opcode; higher ones are control frames

SHORTCUT_MARK: Final = "shortcut"  # key in a socket's scope

Text = bytes | memoryview
"""UTF-8 text."""

Take = Callable[[Text], bool]
"""Handles a text immediately, or returns False."""


@dataclass
class Shortcut:
    """Forwards texts between two sockets without waking their tasks."""

    send: Take  # a text for the peer
    take: Take | None = None  # a text of the peer; None: all go through the task
    is_open: bool = False  # the task waits for a text and none is queued

    def offer(self, text: Text) -> bool:
        self.is_open = self.is_open and self.take is not None and self.take(text)
        return self.is_open


class FrameSplitter:
    """Splits long frames into fragments as they arrive from the network."""

    def __init__(self, limit_bytes: int) -> None:
        """A frame longer than `limit_bytes` is not split, so that the parser refuses it."""
        self._limit_bytes = limit_bytes
        self._head = b""
        self._mask = b""
        self._fin = 0
        self._frame_bytes = 0  # of the current frame, after this fragment
        self._fragment_bytes = 0  # of the current fragment, still expected

    @property
    def is_inside(self) -> bool:
        """Whether the next bytes continue a frame."""
        return bool(self._head or self._fragment_bytes)

    @property
    def read_bytes(self) -> int:
        """Read size: the rest of a fragment at once, but only a few short frames."""
        return max(READ_BYTES, min(self._fragment_bytes, 2 * FRAGMENT_BYTES))

    def split(self, block: bytes) -> bytes:
        """Return the frames, long ones as fragments; an incomplete header is held back."""
        if len(block) < self._fragment_bytes:
            self._fragment_bytes -= len(block)
            return block
        made, at = bytearray(), 0
        while at < len(block):
            if self._fragment_bytes:
                payload = block[at : at + self._fragment_bytes]
                made += payload
                at += len(payload)
                self._fragment_bytes -= len(payload)
                if not self._fragment_bytes and self._frame_bytes:
                    made += self._fragment(opcode=0)
            else:
                head = self._head + block[at : at + HEAD_BYTES - len(self._head)]
                size_bytes, length = _sizes_bytes(head)
                if length is None:
                    self._head = head
                    break
                at += size_bytes - len(self._head)
                self._head = b""
                made += self._begin(head[:size_bytes], length)
        return bytes(made)

    def _begin(self, head: bytes, length: int) -> bytes:
        is_short = length < 2 * FRAGMENT_BYTES
        if is_short or length > self._limit_bytes or head[0] & OPCODE > BINARY:
            self._fragment_bytes = length
            return head
        self._fin = head[0] & FIN
        self._mask = head[-MASK_BYTES:] if head[1] & MASKED else b""
        self._frame_bytes = length
        return self._fragment(opcode=head[0] & ~FIN)

    def _fragment(self, opcode: int) -> bytes:
        is_last = self._frame_bytes < 2 * FRAGMENT_BYTES
        size_bytes = self._frame_bytes if is_last else FRAGMENT_BYTES
        self._frame_bytes -= size_bytes
        self._fragment_bytes = size_bytes
        first = opcode | self._fin if is_last else opcode
        second = LENGTH | (MASKED if self._mask else 0)
        return bytes([first, second]) + size_bytes.to_bytes(LENGTH_BYTES[LENGTH]) + self._mask


def whole_text(block: bytes, *, is_masked: bool) -> Text | None:
    size_bytes, length = _sizes_bytes(block)
    if block[0] != FIN | TEXT or length is None or len(block) != size_bytes + length:
        return None
    if bool(block[1] & MASKED) != is_masked:
        return None
    text = memoryview(block)[size_bytes:]
    return apply_mask(text, block[size_bytes - MASK_BYTES : size_bytes]) if is_masked else text


def _sizes_bytes(head: bytes) -> tuple[int, int | None]:
    """Return the lengths of a frame's header and payload, None while the header is incomplete."""
    if len(head) < 2:
        return 2, None
    length = head[1] & LENGTH
    end = 2 + LENGTH_BYTES[length]
    size_bytes = end + (MASK_BYTES if head[1] & MASKED else 0)
    length = int.from_bytes(head[2:end]) if end > 2 else length
    return size_bytes, length if len(head) >= size_bytes else None
