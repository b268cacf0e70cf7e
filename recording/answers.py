"""Serves a recording's file over HTTP: whole, or the one range that is asked for."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from recording.store import StoredFile

ONE_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


class Download(StreamingResponse):
    """A streamed response; its generator is closed when the client disconnects."""

    def __init__(
        self,
        blocks: Generator[bytes, None, None],
        headers: Mapping[str, str],
        media_type: str = "application/zip",
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        super().__init__(blocks, status, headers, media_type)
        self._blocks = blocks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._blocks.close()


def file_answer(
    file: StoredFile,
    asked: Headers,
    media_type: str,
    headers: Mapping[str, str] | None = None,
    *,
    is_head: bool = False,
) -> Response:
    """Return a file, or one range of it; several ranges are answered with the whole file.

    Source: RFC 9110, sections 13.1.5 and 14.
    """
    size, tag = file.size_bytes, f'"{file.mark}"'
    given = {**(headers or {}), "Accept-Ranges": "bytes", "ETag": tag}
    wanted = asked.get("range") if asked.get("if-range", tag) == tag else None
    span = _span(wanted or "", size)
    if span is not None and span[0] >= span[1]:
        headers_416 = {"Content-Range": f"bytes */{size}"}
        return Response(None, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers_416)
    start, stop = span or (0, size)
    status = HTTPStatus.OK if span is None else HTTPStatus.PARTIAL_CONTENT
    if span is not None:
        given["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    given["Content-Length"] = str(stop - start)
    if is_head:
        return Response(None, status, given, media_type)
    return Download(_closed(file.blocks(start, stop)), given, media_type, status)


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """Return the requested range [start, stop), empty if unsatisfiable; None for the whole."""
    found = ONE_RANGE.fullmatch(asked.replace(" ", ""))
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size


def _closed(blocks: Iterator[bytes]) -> Generator[bytes, None, None]:
    yield from blocks
