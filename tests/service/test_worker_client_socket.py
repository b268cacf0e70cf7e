"""The client's WebSocket against a real server on loopback."""

from __future__ import annotations

import asyncio
import socket

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError

from core.errors import WorkerUnreachableError
from core.schemas.worker import WORKER_SECRET_HEADER
from gateway_modules.queue.worker_client import REPLY_MAX_BYTES, WorkerClient
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.web.messages import Text
from settings.workers import WorkerPlace


def test_a_socket_carries_text_both_ways_within_its_limit() -> None:
    seen: list[str | None] = []

    async def echo(connection: ServerConnection) -> None:
        request = connection.request
        assert request is not None
        seen.extend([request.path, request.headers.get(WORKER_SECRET_HEADER)])
        seen.append(request.headers.get("Sec-WebSocket-Extensions"))
        await connection.send(await connection.recv())
        await connection.send("a" * (REPLY_MAX_BYTES + 1))

    async def scenario() -> None:
        async with serve(echo, "127.0.0.1", 0, compression="deflate") as server:
            port = server.sockets[0].getsockname()[1]
            worker = WorkerConnection("worker_0", WorkerPlace("127.0.0.1", port))
            client = WorkerClient(secret="s3cret")
            query = {"session_id": "s"}
            async with client.connected(worker, "/ws/x", query) as ws:
                await ws.send("ä" * 10)
                assert await ws.recv() == "ä" * 10
                with pytest.raises(ConnectionClosedError):
                    await ws.recv()

    asyncio.run(scenario())
    assert seen == ["/ws/x?session_id=s", "s3cret", None]


def test_what_a_worker_says_is_taken_in_order_while_somebody_waits_for_it() -> None:
    said = ["short", "a" * 200, "b" * 200, "short too", "c" * 200]

    async def talk(connection: ServerConnection) -> None:
        for text in said:
            await connection.send(text)
        await connection.send(["d" * 100, "e" * 100])
        heard.append(await connection.recv())

    heard: list[str | bytes] = []
    came: list[tuple[str, str]] = []

    def take(text: Text) -> bool:
        is_taken = len(text) > 100
        if is_taken:
            came.append(("at once", bytes(text).decode()))
        return is_taken

    async def scenario() -> None:
        async with serve(talk, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            worker = WorkerConnection("worker_0", WorkerPlace("127.0.0.1", port))
            async with WorkerClient().connected(worker, "/ws/x") as ws:
                ws.shortcut.take = take
                while len(came) < len(said) + 1:
                    came.append(("waited for", await ws.next_text()))
                assert ws.send_now(b"heard")
                await ws.wait_closed()
                assert not ws.send_now(b"nobody is there")

    asyncio.run(scenario())
    assert [text for _, text in came] == [*said, "d" * 100 + "e" * 100]
    assert {text: way for way, text in came}["short too"] == "waited for"
    assert came[-1][0] == "waited for", "a message in fragments is put together first"
    assert heard == ["heard"]


def test_a_closed_port_is_unreachable() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def scenario() -> None:
        worker = WorkerConnection("worker_0", WorkerPlace("127.0.0.1", port))
        client = WorkerClient()
        with pytest.raises(WorkerUnreachableError):
            async with client.connected(worker, "/ws/x", tries=1):
                raise AssertionError("open")
        with pytest.raises(WorkerUnreachableError):
            await client.health(worker)
        await client.close()

    asyncio.run(scenario())
