"""Starlette's WebSocket as a `Socket`, over a scripted ASGI server."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import pytest
from starlette.websockets import WebSocket

from core.serving.wire import SocketClosedError, StarletteSocket
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
    with pytest.raises(SocketClosedError, match="bye") as caught:
        await socket.receive()
    assert caught.value.code == 1001
    with pytest.raises(SocketClosedError):
        await socket.receive()


@in_loop
async def test_messages_are_sent_until_closed() -> None:
    server = Server()
    socket = await server.accept()
    await socket.send("{}")
    await socket.close(1000, "done")
    await socket.close(1000, "again")
    with pytest.raises(SocketClosedError):
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
    with pytest.raises(SocketClosedError):
        await socket.send("{}")
    await socket.close(1000, "")
