"""Clients whose connection is there and who are not: no answer to a ping, nothing taken."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.fakes.fake_worker import SECOND_OF_SOUND
from tests.fakes.gateway_stage import HOST, Stage, on_stage, until
from tests.fakes.pools import idle_count

FINAL_TEXT = 0x81
MASKED = 0x80
LONG_LENGTH = 126
SMALL_BUFFER_BYTES = 4_096


def frame(message: dict[str, object]) -> bytes:
    """A masked text frame. Source: RFC 6455, section 5.2."""
    payload = json.dumps(message).encode()
    head = struct.pack(">BBH", FINAL_TEXT, MASKED | LONG_LENGTH, len(payload))
    return head + bytes(4) + payload  # a mask of zeros changes nothing


@asynccontextmanager
async def silent_client(stage: Stage, path: str) -> AsyncIterator[asyncio.StreamWriter]:
    """Open a socket, and then read nothing and answer nothing."""
    raw = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, (HOST, stage.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=SMALL_BUFFER_BYTES)
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {HOST}:{stage.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
    ]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    await reader.readuntil(b"\r\n\r\n")
    try:
        yield writer
    finally:
        writer.transport.abort()


@on_stage(limits={"heartbeat_s": 0.5})
async def test_a_client_that_answers_no_ping_is_disconnected(stage: Stage) -> None:
    async with silent_client(stage, "/ws/duplex/adx_1") as writer:
        writer.write(frame({"type": "prepare"}))
        await until(lambda: "prepare" in stage.worker.told_types())
        await stage.check_quiet()
        await until(lambda: idle_count(stage.gateway.pool) == 1)


@on_stage(limits={"heartbeat_s": 0.5})
async def test_a_client_that_does_not_read_is_disconnected(stage: Stage) -> None:
    """With full buffers not even a goodbye can be sent, and nobody must wait for it."""
    stage.worker.script.extra = {"audio_data": SECOND_OF_SOUND * 40}
    async with silent_client(stage, "/ws/duplex/adx_1") as writer:
        writer.write(frame({"type": "prepare"}))
        await until(lambda: "prepare" in stage.worker.told_types())
        for _ in range(4):
            writer.write(frame({"type": "audio_chunk", "audio": "A" * 200}))
        await until(lambda: stage.worker.told_types().count("audio_chunk") >= 1)
        await stage.check_quiet()
        await until(lambda: idle_count(stage.gateway.pool) == 1)


@on_stage(limits={"heartbeat_s": 0.5})
async def test_a_dead_client_in_the_queue_loses_its_position(stage: Stage) -> None:
    async with stage.client("/ws/duplex/adx_1") as first:
        await first.expect("queue_done")
        async with silent_client(stage, "/ws/duplex/adx_2"):
            await until(lambda: stage.gateway.pool.queue_length == 1)
            await until(lambda: stage.gateway.pool.queue_length == 0)
