"""A client's socket: Starlette's over a scripted ASGI server, and the inbox of what it says.

The inbox keeps the order, applies backpressure, and releases waiting callers when closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.websockets import WebSocket

from core.protocols.events import Disconnected
from core.serving.wire import Inbox, StarletteSocket, await_end
from core.sockets import ClientGoneError
from tests.fakes.clock import settle
from tests.system.loops import in_loop

CONNECT = {"type": "websocket.connect"}


class Server:
    """A scripted ASGI server."""

    def __init__(self, *incoming: dict[str, Any]) -> None:
        self.incoming = [CONNECT, *incoming]
        self.outgoing: list[MutableMapping[str, Any]] = []
        self.error: Exception | None = None

    async def receive(self) -> MutableMapping[str, Any]:
        return self.incoming.pop(0)

    async def send(self, event: MutableMapping[str, Any]) -> None:
        if self.error is not None:
            raise self.error
        self.outgoing.append(event)

    async def accept(self) -> StarletteSocket:
        websocket = WebSocket({"type": "websocket"}, self.receive, self.send)
        await websocket.accept()
        return StarletteSocket(websocket)


@in_loop
async def test_messages_are_received_until_the_end() -> None:
    server = Server(
        {"type": "websocket.receive", "text": "{}"},
        {"type": "websocket.receive", "text": None, "bytes": b"{}"},
        {"type": "websocket.disconnect", "code": 1001, "reason": "bye"},
    )
    socket = await server.accept()
    assert await socket.receive() == "{}"
    assert await socket.receive() == b"{}"
    with pytest.raises(ClientGoneError, match="bye"):
        await socket.receive()
    with pytest.raises(ClientGoneError):
        await socket.receive()


@in_loop
async def test_messages_are_sent_until_closed() -> None:
    server = Server()
    socket = await server.accept()
    await socket.send("{}")
    await socket.close(1000, "done")
    await socket.close(1000, "again")
    with pytest.raises(ClientGoneError):
        await socket.send("{}")
    assert [event["type"] for event in server.outgoing] == [
        "websocket.accept",
        "websocket.send",
        "websocket.close",
    ]


@pytest.mark.parametrize("error", [OSError("reset"), RuntimeError("after close")])
@in_loop
async def test_any_exception_of_the_server_means_closed(error: Exception) -> None:
    server = Server()
    socket = await server.accept()
    server.error = error
    with pytest.raises(ClientGoneError):
        await socket.send("{}")
    await socket.close(1000, "")


def numbered(number: int) -> Disconnected:
    return Disconnected(str(number))


async def read(inbox: Inbox) -> int:
    event = await inbox.get()
    assert isinstance(event, Disconnected)
    return int(event.reason)


@in_loop
async def test_waiting_callers_add_in_order() -> None:
    inbox = Inbox(max_events=2, max_bytes=100)
    senders = [asyncio.create_task(inbox.put(numbered(number))) for number in range(6)]
    await settle()
    assert [sender.done() for sender in senders] == [True, True, False, False, False, False]
    assert len(inbox) == 2
    assert [await read(inbox) for _ in range(6)] == list(range(6))
    await asyncio.gather(*senders)


@in_loop
async def test_post_never_waits_and_keeps_the_order() -> None:
    inbox = Inbox(max_events=1, max_bytes=100)
    await inbox.put(numbered(0))
    late = asyncio.create_task(inbox.put(numbered(2)))
    await settle()
    inbox.post(numbered(1))
    assert [await read(inbox) for _ in range(3)] == [0, 1, 2]
    inbox.post(numbered(3))
    assert (await inbox.get()).at_s == pytest.approx(asyncio.get_running_loop().time(), abs=1)
    await late


@in_loop
async def test_bytes_are_limited_but_a_single_large_message_fits() -> None:
    inbox = Inbox(max_events=9, max_bytes=100)
    await inbox.put(numbered(0), 1_000)
    small = asyncio.create_task(inbox.put(numbered(1), 1))
    await settle()
    assert not small.done()
    assert await read(inbox) == 0
    await small
    await inbox.put(numbered(2), 99)
    assert len(inbox) == 2


@in_loop
async def test_a_closed_inbox_drops_events_without_waiting() -> None:
    inbox = Inbox(max_events=1, max_bytes=100)
    await inbox.put(numbered(0))
    waiting = asyncio.create_task(inbox.put(numbered(1)))
    await settle()
    inbox.close()
    await waiting
    await inbox.put(numbered(2))
    inbox.post(numbered(3))
    assert len(inbox) == 1


@in_loop
async def test_a_cancelled_caller_leaves_no_event() -> None:
    inbox = Inbox(max_events=1, max_bytes=100)
    await inbox.put(numbered(0))
    first = asyncio.create_task(inbox.put(numbered(1)))
    second = asyncio.create_task(inbox.put(numbered(2)))
    await settle()
    first.cancel()
    await settle()
    assert [await read(inbox), await read(inbox)] == [0, 2]
    await second


@in_loop
async def test_a_task_is_awaited_despite_repeated_cancellation() -> None:
    ready = asyncio.Event()

    async def work() -> None:
        await ready.wait()

    inner = asyncio.create_task(work())
    outer = asyncio.create_task(await_end(inner))
    for _ in range(3):
        await settle()
        outer.cancel()
    await settle()
    assert not outer.done() and not inner.done()
    ready.set()
    with pytest.raises(asyncio.CancelledError):
        await outer
    assert inner.done() and not inner.cancelled()
