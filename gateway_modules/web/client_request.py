"""Long requests: their body in parts, an uploaded file, and whether the client is still there."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from core.errors import BadPayloadError, BadRequestError
from gateway_modules.web.long_text import LongTextReader

Result = TypeVar("Result")
FILE_FIELD: Final = b"file"
TYPE_HEADER: Final = b"content-type"
DISPOSITION_HEADER: Final = b"content-disposition"
# A browser sends one part; each costs the parser far more than its bytes, empty or not.
PARTS_MAX: Final = 16
PART_HEADERS_MAX: Final = 16
FLUSH_BYTES: Final = 1024 * 1024  # collected before a thread is asked to write it


async def text_of(request: Request) -> str:
    """Return a request's body, which may be long; BadPayloadError if it is not JSON."""
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


class Target(Protocol):
    def write(self, block: bytes) -> None: ...


@dataclass
class _Parts:
    name: bytes = b""
    value: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    is_ours: bool = False
    parts: int = 0
    files: int = 0
    media_type: str = ""
    waiting: list[bytes] = field(default_factory=list)

    def on_part_begin(self) -> None:
        self.parts += 1
        if self.parts > PARTS_MAX:
            raise BadRequestError(f"The request has more than {PARTS_MAX} parts.")

    def on_header_field(self, block: bytes, start: int, end: int) -> None:
        self.name += block[start:end]

    def on_header_value(self, block: bytes, start: int, end: int) -> None:
        self.value += block[start:end]

    def on_header_end(self) -> None:
        self.headers[self.name.lower()] = self.value
        if len(self.headers) > PART_HEADERS_MAX:
            raise BadRequestError(f"A part has more than {PART_HEADERS_MAX} headers.")
        self.name = self.value = b""

    def on_headers_finished(self) -> None:
        _, options = parse_options_header(self.headers.get(DISPOSITION_HEADER, b""))
        self.is_ours = options.get(b"name") == FILE_FIELD
        if self.is_ours:
            self.files += 1
            self.media_type = self.headers.get(TYPE_HEADER, b"").decode("latin-1")
        self.headers = {}

    def on_part_data(self, block: bytes, start: int, end: int) -> None:
        if self.is_ours and self.files == 1:
            self.waiting.append(block[start:end])


async def receive_file(
    content_type: str, body: AsyncIterator[bytes], open_target: Callable[[str], Target]
) -> None:
    """Read a whole request and write its first part named `file`.

    `open_target` is called in a thread, once, with the part's media type; what the target raises is
    passed on. What is no such request is a BadRequestError.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        raise BadRequestError("Send the file as multipart/form-data.")
    parts = _Parts()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": parts.on_part_begin,
            "on_header_field": parts.on_header_field,
            "on_header_value": parts.on_header_value,
            "on_header_end": parts.on_header_end,
            "on_headers_finished": parts.on_headers_finished,
            "on_part_data": parts.on_part_data,
        },
    )
    target: Target | None = None
    try:
        async for block in body:
            parser.write(block)
            if parts.files and target is None:
                target = await asyncio.to_thread(open_target, parts.media_type)
            if target is not None and sum(map(len, parts.waiting)) >= FLUSH_BYTES:
                await _flush(parts, target)
        parser.finalize()
    except FormParserError as error:
        raise BadRequestError("The multipart request is damaged.") from error
    if target is None:
        raise BadRequestError("There is no part named `file`.")
    await _flush(parts, target)


async def _flush(parts: _Parts, target: Target) -> None:
    waiting, parts.waiting = parts.waiting, []
    await asyncio.to_thread(target.write, b"".join(waiting))
