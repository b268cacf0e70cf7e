"""Requests that say twice how long their body is."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.gateway_stage import HOST, Stage, on_stage


@pytest.mark.parametrize(
    ("length", "requests"), [(b"", 2), (b"Content-Length: 5\r\n", 1)], ids=["one", "two"]
)
@on_stage()
async def test_a_body_of_two_lengths_ends_its_connection(
    stage: Stage, length: bytes, requests: int
) -> None:
    reader, writer = await asyncio.open_connection(HOST, stage.port)
    head = b"POST /api/queue HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    writer.write(head + length + b"\r\n0\r\n\r\n" + last)
    answers = await reader.read()
    assert answers.count(b"HTTP/1.1 ") == requests
    writer.close()
