"""A socket that breaks at any point and is replaced: no message lost, none twice, no leak."""

from __future__ import annotations

import asyncio
import gc
import json
from random import Random
from typing import Any

import pytest
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketState

from core.errors import CloseCode, SessionExpiredError
from core.serving.resumable import ResumableSocket, SentMessages
from core.sockets import ClientGoneError
from tests.pairing import by_default
from tests.system.loops import in_loop

GRACE_S = 60.0
Raw = dict[str, Any]


class Peer:
    """The peer of one socket, which may break after any message."""

    def __init__(self, breaks_after: int | None = None) -> None:
        self.heard: list[Raw] = []
        self.closed: int | None = None
        self.says: asyncio.Queue[str | int] = asyncio.Queue()
        self.websocket = WebSocket({"type": "websocket"}, self._receive, self._send)
        self.websocket.client_state = WebSocketState.CONNECTED
        self.websocket.application_state = WebSocketState.CONNECTED
        self._breaks_after = breaks_after

    async def _receive(self) -> Message:
        said = await self.says.get()
        if isinstance(said, int):
            self.says.put_nowait(said)
            return {"type": "websocket.disconnect", "code": said}
        return {"type": "websocket.receive", "text": said}

    async def _send(self, event: Message) -> None:
        if event["type"] == "websocket.send":
            await self.hear(event["text"])
        else:
            self.closed = event["code"]
            self.says.put_nowait(event["code"])

    async def hear(self, text: str) -> None:
        await asyncio.sleep(0)
        if self._breaks_after == len(self.heard):
            self.break_off()
        if not self.says.empty() or self.closed is not None:
            raise OSError("closed")
        self.heard.append(json.loads(text))

    def break_off(self, code: int = 1006) -> None:
        self.says.put_nowait(code)

    @property
    def seqs(self) -> list[int]:
        return [message["seq"] for message in self.heard if "seq" in message]


async def settle(rounds: int = 20) -> None:
    for _ in range(rounds):
        await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_every_message_arrives_once_and_in_order(seed: int) -> None:
    random = Random(seed)
    peer = Peer(random.randrange(5))
    socket = ResumableSocket(peer.websocket, GRACE_S)
    reading = asyncio.create_task(socket.receive())
    heard: list[int] = []
    going_on: list[asyncio.Task[None]] = []
    for count in range(60):
        await socket.send(json.dumps({"type": "result", "n": count}))
        if random.random() < 0.5:
            await settle()
        if random.random() < 0.3:  # it reconnects, whether its former socket broke or not
            heard += peer.seqs
            peer = Peer(random.choice([None, 0, 1, 2, 5]))
            going_on.append(asyncio.create_task(socket.resume(peer.websocket, len(heard))))
            await settle()
    heard += peer.seqs
    last = Peer()
    going_on.append(asyncio.create_task(socket.resume(last.websocket, len(heard))))
    await settle(200)
    assert heard + last.seqs == list(range(1, 61))
    last.says.put_nowait("hello")
    assert await reading == "hello"
    await socket.close(1000, "")
    assert last.closed == 1000
    await asyncio.gather(*going_on)


class SlowPeer(Peer):
    """Accepts nothing until the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_hear = asyncio.Event()

    async def hear(self, text: str) -> None:
        await self.may_hear.wait()
        await super().hear(text)


@in_loop
async def test_a_replaced_socket_is_closed_with_its_code_while_the_next_one_is_slow() -> None:
    socket, second, slow = ResumableSocket(Peer().websocket, GRACE_S), Peer(), SlowPeer()
    replaced = asyncio.create_task(socket.resume(second.websocket, 0))
    await settle()
    last = asyncio.create_task(socket.resume(slow.websocket, 0))
    await replaced
    assert second.closed == CloseCode.REPLACED
    slow.may_hear.set()
    socket.end()
    await last


@in_loop
async def test_dropped_messages_are_reported() -> None:
    socket = ResumableSocket(Peer().websocket, GRACE_S, SentMessages(most_chars=100))
    for _ in range(10):
        await socket.send(json.dumps({"text": "x" * 20}))
    peer = Peer()
    going_on = asyncio.create_task(socket.resume(peer.websocket, 2))
    await settle()
    greeting = peer.heard[0]
    assert greeting["last_seq"] == 10
    assert peer.seqs == list(range(3 + greeting["lost_messages"], 11))
    assert 0 < greeting["lost_messages"] < 8
    socket.end()
    await going_on


@pytest.mark.parametrize("code", [1000, 1003, 1008, 4000, 1005, 1006])
@in_loop
async def test_a_normal_close_ends_the_session_and_a_loss_before_its_first_message(
    code: int,
) -> None:
    peer = Peer()
    socket = ResumableSocket(peer.websocket, GRACE_S)
    peer.break_off(code)
    with pytest.raises(ClientGoneError, match=f"closed with {code}"):
        await socket.receive()
    with pytest.raises(SessionExpiredError):
        await socket.resume(Peer().websocket, 0)


@pytest.mark.parametrize("speaks", ["peer", "session", "nobody"])
@in_loop
async def test_a_session_that_has_begun_or_is_detached_is_retained(speaks: str) -> None:
    peer = Peer()
    socket = ResumableSocket(peer.websocket, GRACE_S)
    if speaks == "peer":
        peer.says.put_nowait("{}")
        await socket.receive()
    elif speaks == "session":
        await socket.send('{"type": "result"}')
    peer.break_off(1001 if speaks == "nobody" else 1006)
    reading = asyncio.create_task(socket.receive())
    await settle()
    assert socket.is_away and not reading.done()
    reading.cancel()


@in_loop
async def test_a_session_expires_after_the_grace_period() -> None:
    peer = Peer()
    socket = ResumableSocket(peer.websocket, 0.001)
    peer.break_off(1001)
    with pytest.raises(ClientGoneError):
        await socket.receive()
    assert not socket.is_away
    with pytest.raises(SessionExpiredError):
        await socket.resume(Peer().websocket, 0)


@pytest.mark.parametrize("reconnects", by_default([2_500], [2_500, 10_000]))
@in_loop
async def test_thousands_of_reconnects_leak_nothing(reconnects: int) -> None:
    async def breaks(socket: ResumableSocket, count: int) -> None:
        for _ in range(count):
            peer = Peer()
            going_on = asyncio.create_task(socket.resume(peer.websocket, 1))
            await settle(3)
            peer.break_off()
            await going_on

    first = Peer()
    socket = ResumableSocket(first.websocket, GRACE_S)
    reading = asyncio.create_task(socket.receive())
    await socket.send('{"type":"prepared"}')
    first.break_off()
    await breaks(socket, 500)
    tasks = len(asyncio.all_tasks())
    gc.collect()
    before = len(gc.get_objects())
    await breaks(socket, reconnects)
    gc.collect()
    # One object per reconnect would be a leak.
    assert len(gc.get_objects()) - before < reconnects / 10
    assert len(asyncio.all_tasks()) == tasks
    socket.end()
    with pytest.raises(ClientGoneError):
        await reading
