"""What slow routes need of a request: a long body in parts, and when the client gives up."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Awaitable
from typing import TypeVar

from starlette.requests import Request

from core.errors import BadPayloadError
from gateway_modules.long_text import LongTextReader

Result = TypeVar("Result")


class HungUpError(Exception):
    """The client has closed the connection."""


async def text_of(request: Request) -> str:
    """Return a request's body, which may be long.

    Raises:
        OmniError: It is no JSON.
    """
    decoder, reader = codecs.getincrementaldecoder("utf-8")(), LongTextReader()
    try:
        async for block in request.stream():
            reader.feed(decoder.decode(block))
        reader.feed(decoder.decode(b"", final=True))
    except UnicodeDecodeError:
        raise BadPayloadError("The message is not valid JSON.") from None
    return reader.result()


async def unless_hung_up(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for some work, which is cancelled when the client closes the connection.

    The request's body has been read.

    Raises:
        HungUpError: It did.
    """
    task = asyncio.ensure_future(work)
    hang_up = asyncio.create_task(_hang_up(request))
    try:
        await asyncio.wait({task, hang_up}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HungUpError
        return task.result()
    finally:
        task.cancel()
        hang_up.cancel()
        await asyncio.gather(task, hang_up, return_exceptions=True)


async def _hang_up(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
