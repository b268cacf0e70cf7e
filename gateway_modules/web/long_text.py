"""Long JSON texts without parsing all of them, in parts as they come.

What makes a message long is its media. Only the text around them is parsed and written; they
themselves are compared and passed on in the parts in which they came. No step works on more than
`SHORT_TEXT_CHARS` at once, since even in a thread it would hold the interpreter and stop the loop.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import re
import secrets
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from core.errors import BadPayloadError, TooBigError
from core.schemas.common import check_values, count_values
from core.schemas.limits import JSON_VALUES_MAX, MIB

JOINED_CHARS: Final = MIB  # a message up to this is one text, a few milliseconds of work
LONG_CHARS: Final = 32 * 1024  # longer strings are taken out; no context holds such a text
SHORT_TEXT_CHARS: Final = 8 * MIB  # what may be left, some 30 ms of work
PART_CHARS: Final = 256 * 1024  # of what is passed on
STRINGS_MAX: Final = 2 * JSON_VALUES_MAX  # keys and values
NAME_BYTES: Final = 16  # of chance, so that no client can write a name of its own
PARTS_MARK: Final = "takes parts"  # key in a socket's scope: its app takes a long text in parts

# What of a string is in a part. Possessive: it never goes back.
STRING: Final = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)


class LongText(str):
    """A JSON text in which names of our own stand for long strings."""

    _strings: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    @classmethod
    def of(cls, text: str, strings: Mapping[str, tuple[str, ...]]) -> LongText:
        """`strings` maps a name to the parts of its string, as JSON spells it."""
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
    """Extracts the long strings of a JSON text that comes in parts."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._text_chars = 0
        self._strings: dict[str, tuple[str, ...]] = {}
        self._string: list[str] | None = None  # parts of the string that has not ended yet
        self._strings_read = 0
        self._values = 0
        self._escape = ""  # half of an escape sequence, at the end of the last part
        self._name = secrets.token_hex(NAME_BYTES)

    def feed(self, part: str) -> None:
        """Raises TooBigError at too many values or much text, BadPayloadError if it is no JSON."""
        self._values += count_values(part)
        check_values(self._values)
        part = self._escape + part
        self._escape = "\\" * ((len(part) - len(part.rstrip("\\"))) % 2)
        end = len(part) - len(self._escape)
        at = 0
        while at < end:
            at = (
                self._read_text(part, at, end)
                if self._string is None
                else self._read_string(self._string, part, at, end)
            )

    def result(self) -> str:
        self._end_string(self._string or [])
        text = "".join(self._text) + self._escape
        return LongText.of(text, self._strings) if self._strings else text

    def _read_text(self, part: str, at: int, end: int) -> int:
        after = part.find('"', at, end) + 1
        self._add(part[at : after or end])
        if after:
            self._string = []
            self._strings_read += 1
            if self._strings_read > STRINGS_MAX:
                raise BadPayloadError("The message is not valid JSON.")
        return after or end

    def _read_string(self, string: list[str], part: str, at: int, end: int) -> int:
        found = STRING.match(part, at, end)
        assert found is not None, "it matches nothing too"
        string.append(found[0])
        if found.end() < end:
            self._end_string(string)
            self._string = None
            self._add('"')
            return found.end() + 1
        return end

    def _end_string(self, string: list[str]) -> None:
        if sum(map(len, string)) <= LONG_CHARS:
            self._add("".join(string))
            return
        name = f"{self._name}-{len(self._strings)}."
        self._strings[name] = tuple(string)
        self._add(name)

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
    """Yield a whole text in parts that do not block the event loop."""
    return text.parts() if isinstance(text, LongText) else iter(_cut(text))


def _cut(text: str) -> list[str]:
    return [text[start : start + PART_CHARS] for start in range(0, len(text), PART_CHARS)]


def _unescaped(part: str) -> str:
    """Decode a part of a string; one that begins or ends in an escape sequence stays."""
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

    No object before its type may have a type itself.
    """
    found = TYPE.search(text, 0, WINDOW_CHARS)
    if found is None and len(text) > WINDOW_CHARS:
        found = TYPE.search(text, len(text) - WINDOW_CHARS)
    if found is not None:
        return found[1]
    return parse_type(text) if WINDOW_CHARS < len(text) <= PARSED_CHARS else ""


def parse_type(text: str) -> str:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    kind = message.get("type") if isinstance(message, dict) else None
    return kind if isinstance(kind, str) else ""


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
    task = asyncio.ensure_future(work)
    disconnect = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
