"""A relay between a client and a worker in memory: whatever happens at whatever await, it all ends.

Something is made to happen at every suspension of every task of a session, one run for each.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.websockets import WebSocket, WebSocketState
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from config import Settings
from core.errors import EndedByAdminError
from core.metrics import GatewayMetrics
from core.protocols.events import Rejected, ShuttingDown
from core.protocols.queueing import QueueingMachine
from core.schemas.limits import MIB
from core.sockets import ReplaceableSocket
from core.store import Store
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.relay.relay import Relay, Request
from gateway_modules.relay.telemetry import DiagnosticsLimit, RelayTelemetry
from gateway_modules.relay.traffic import ChatTraffic, LiveTraffic, Traffic, TurnTraffic
from gateway_modules.voices import AudioDecoder, VoiceLibrary
from gateway_modules.web.client_socket import ClientSocket, Pace, SocketKind
from gateway_modules.web.limits import Budget
from gateway_modules.web.messages import Shortcut, Text
from tests.fakes.awaits import Awaits
from tests.fakes.pools import ask, make_pool, release
from tests.fakes.virtual_time import VirtualTimeLoop

# A task cancelled before its first step never runs what the counter of awaits wrapped.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")

# Any: messages as JSON has them.
Raw = dict[str, Any]

USER = {"role": "user", "content": "Hi"}
REPLIES: dict[str, list[Raw]] = {
    "prefill": [{"type": "prefill_done", "cached_tokens": 0, "input_tokens": 3}],
    "generate": [
        {"chunk_index": 0, "text_delta": "Hello", "type": "chunk"},
        {"type": "done", "session_id": "s", "text": "Hello"},
    ],
    "prepare": [{"type": "prepared"}],
    "audio_chunk": [{"type": "result", "is_listen": True}],
    "chat": [{"type": "prefill_done", "input_tokens": 3}, {"type": "done", "text": "Hello"}],
}
LAST = {"type": "stopped", "session_id": "s"}
SEND_S = 0.01  # a slow client's, so that its next message passes the one that is sent to it


class WorkerSocket:
    """The gateway's end of a socket to a worker, and the worker behind it."""

    def __init__(self) -> None:
        self.transport = SimpleNamespace(abort=self._abort)
        self.shortcut = Shortcut(self.send_now)
        self.is_open = True
        self._replies: asyncio.Queue[str | Exception] = asyncio.Queue()

    async def send(self, text: str) -> None:
        await asyncio.sleep(0)
        self._check()
        kind = json.loads(text).get("type", "chat")
        for reply in REPLIES.get(kind, []):
            self._replies.put_nowait(json.dumps(reply))
        if kind == "stop":
            self._replies.put_nowait(json.dumps(LAST))
        if kind in ("stop", "close"):
            self._replies.put_nowait(ConnectionClosedOK(Close(1000, ""), None))

    def send_now(self, text: Text) -> bool:
        return False

    async def next_text(self) -> str:
        reply = await self._replies.get()
        self._check()
        if isinstance(reply, Exception):
            self.is_open = False
            raise reply
        return reply

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.is_open = False
        await asyncio.sleep(0)

    def die(self) -> None:
        self.is_open = False
        self._replies.put_nowait(ConnectionClosedError(None, None))

    def _abort(self) -> None:
        self.is_open = False

    def _check(self) -> None:
        if not self.is_open:
            raise ConnectionClosedError(None, None)


@dataclass
class Scene:
    """One session: its client, its relay, its pool."""

    kind: SocketKind
    folder: Path
    sockets: list[WorkerSocket] = field(default_factory=list)
    sent: list[Raw] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)
    incoming: asyncio.Queue[Raw] = field(default_factory=asyncio.Queue)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: bool = False
    send_s: float = 0.0

    def __post_init__(self) -> None:
        self.pool = self._pool()
        self.incoming.put_nowait({"type": "websocket.connect"})
        self.relay = self._relay()
        self.running: asyncio.Task[None] | None = None

    def _pool(self) -> WorkerPool:
        async def connect(*args: object, **kwargs: object) -> WorkerSocket:
            await asyncio.sleep(0)
            self.sockets.append(WorkerSocket())
            return self.sockets[-1]

        pool = make_pool(1)
        pool.client = WorkerClient(connect=connect)  # type: ignore[arg-type]
        return pool

    def _relay(self) -> Relay:
        request_type = self.kind.request_type("adx_1")
        websocket = WebSocket(
            {"type": "websocket", "headers": []},
            receive=self.incoming.get,
            send=self._take,  # type: ignore[arg-type]
        )
        self.websocket = websocket
        metrics = GatewayMetrics(CollectorRegistry())
        lease = Budget(MIB, MIB).lease("")
        return Relay(
            ClientSocket(websocket, (10_000, 10_000), Pace(), lease, grace_s=0.0),
            QueueingMachine("adx_1", request_type),
            self._traffic(),
            self.pool,
            Request(self.kind, request_type, "adx_1", "client", "", "0" * 32),
            RelayTelemetry(metrics, request_type.value),
        )

    def _traffic(self) -> Traffic:
        decoder = AudioDecoder()
        voices = VoiceLibrary(self.folder, Store(self.folder), decoder)
        if self.kind is SocketKind.STREAMING:
            return TurnTraffic(voices)
        if self.kind is SocketKind.CHAT:
            return ChatTraffic(voices)
        return LiveTraffic(self.kind, voices, DiagnosticsLimit(Settings().limits))

    async def _take(self, event: Raw) -> None:
        await asyncio.sleep(self.send_s)
        if self.is_gone:
            raise OSError("gone")
        if event["type"] == "websocket.send":
            self.sent.append(json.loads(event["text"]))
            self.heard.set()
        elif event["type"] == "websocket.close":
            self.closed.append(event["code"])
            self.incoming.put_nowait({"type": "websocket.disconnect", "code": event["code"]})

    def say(self, **message: Any) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    async def hear(self, wanted: str, count: int = 1) -> None:
        """Wait until the client has heard a message of a type so many times."""
        while [message["type"] for message in self.sent].count(wanted) < count:
            self.heard.clear()
            await self.heard.wait()

    def leave(self) -> None:
        self.is_gone = True
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    def kill_worker(self) -> None:
        for socket in self.sockets:
            if socket.is_open:
                socket.die()

    def cancel_tickets(self) -> None:
        for item in self.pool.get_queue_status().items:
            if item.session_id == "adx_1":
                self.pool.cancel(item.ticket_id)

    def cancel_task(self) -> None:
        assert self.running is not None
        self.running.cancel()

    async def play(self) -> None:
        """Run a whole session; somebody else has the worker at first."""
        other, _ = ask(self.pool, "duplex")
        script = asyncio.create_task(self._script(other))
        await self.websocket.accept()
        self.running = asyncio.create_task(self.relay.run())
        await asyncio.gather(self.running, return_exceptions=True)
        script.cancel()
        await asyncio.gather(script, return_exceptions=True)
        release(self.pool, self.pool.workers["worker_0"], ticket=other)

    async def _script(self, other: Ticket) -> None:
        if self.kind is SocketKind.STREAMING:
            self.say(type="prefill", messages=[USER])
        elif self.kind is SocketKind.CHAT:
            self.say(messages=[USER])
        await self.hear("queued")
        release(self.pool, self.pool.workers["worker_0"], ticket=other)
        await self.hear("queue_done")
        match self.kind:
            case SocketKind.STREAMING:
                await self.hear("prefill_done")
                self.say(type="generate")
                await self.hear("done")
                more = [USER, {"role": "assistant", "content": "Hello"}, USER]
                self.say(type="prefill", messages=more)
                await self.hear("prefill_done", 2)
                self.say(type="close")
            case SocketKind.DUPLEX | SocketKind.HALF_DUPLEX:
                self.say(type="prepare")
                await self.hear("prepared")
                self.say(type="audio_chunk")
                await self.hear("result")
                self.say(type="stop")

    def check_quiet(self) -> None:
        """Nothing is held, nothing is open, and the client heard at most one goodbye."""
        worker = self.pool.workers["worker_0"]
        assert worker.tasks == []
        assert self.pool.queue_length == 0
        assert not any(socket.is_open for socket in self.sockets)
        assert len(self.closed) <= 1
        assert [message["type"] for message in self.sent].count("error") <= 1
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []


def play(
    kind: SocketKind,
    folder: Path,
    at: int | None,
    act: Callable[[Scene], object],
    send_s: float = 0.0,
) -> tuple[Scene, int]:
    """Play a session; let something happen at a suspension; return how many there were."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        scenes: list[Scene] = []
        awaits = Awaits(at, lambda: act(scenes[0]) if scenes and scenes[0].running else None)
        awaits.install(runner.get_loop())

        async def run() -> Scene:
            scene = Scene(kind, folder, send_s=send_s)
            scenes.append(scene)
            await scene.play()
            scene.check_quiet()
            return scene

        return runner.run(run()), awaits.count


HAPPENINGS: dict[str, Callable[[Scene], object]] = {
    "the client leaves": Scene.leave,
    "the client says stop": lambda scene: scene.say(type="stop"),
    "the worker dies": Scene.kill_worker,
    "the place is taken away": Scene.cancel_tickets,
    "the task is cancelled": Scene.cancel_task,
    "the program ends": lambda scene: scene.relay.post(ShuttingDown()),
    "an administrator ends it": lambda scene: scene.relay.post(Rejected(EndedByAdminError())),
}


@pytest.mark.parametrize("kind", [kind for kind in SocketKind if not kind.has_events])
def test_a_session_goes_to_its_end(kind: SocketKind, tmp_path: Path) -> None:
    scene, _ = play(kind, tmp_path, None, Scene.leave)
    assert scene.closed == [1000]
    last = {"streaming": "prefill_done", "chat": "done"}.get(kind, "stopped")
    assert scene.sent[-1]["type"] == last
    assert len(scene.sockets) == (2 if kind is SocketKind.STREAMING else 1)


@pytest.mark.parametrize("speech_event", HAPPENINGS)
@pytest.mark.parametrize("kind", [SocketKind.STREAMING, SocketKind.DUPLEX])
def test_whatever_happens_at_any_await_leaves_nothing(
    kind: SocketKind, speech_event: str, tmp_path: Path
) -> None:
    _, count = play(kind, tmp_path, None, Scene.leave)
    assert count > 30
    for at in range(count):
        play(kind, tmp_path, at, HAPPENINGS[speech_event])


def test_a_close_at_any_await_is_no_lost_worker(tmp_path: Path) -> None:
    """The worker closes its socket then, also while a message is on its way to the client."""

    def say_close(scene: Scene) -> None:
        scene.say(type="close")

    _, count = play(SocketKind.STREAMING, tmp_path, None, Scene.leave, SEND_S)
    for at in range(count):
        scene, _ = play(SocketKind.STREAMING, tmp_path, at, say_close, SEND_S)
        assert "error" not in [message["type"] for message in scene.sent], at


def test_an_internal_error_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    def break_it(scene: Scene) -> None:
        def fail(*args: object) -> None:
            raise ZeroDivisionError

        scene.relay._traffic.downward = fail  # type: ignore[method-assign, assignment]

    scene, _ = play(SocketKind.DUPLEX, tmp_path, 10, break_it)
    assert scene.sent[-1]["code"] == "internal"
    assert scene.closed == [1011]


class ClosingSlowly(WebSocket):
    """A client's socket whose close waits for `may_close`."""

    def __init__(self) -> None:
        super().__init__({"type": "websocket"}, receive=None, send=None)  # type: ignore[arg-type]
        self.application_state = WebSocketState.CONNECTED
        self.may_close = asyncio.Event()

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        await self.may_close.wait()


def test_of_two_resumptions_the_later_socket_says_what_it_has_received(tmp_path: Path) -> None:
    resumed: list[int] = []

    async def resume(last_seq: int) -> None:
        resumed.append(last_seq)

    async def nothing() -> None:
        await asyncio.sleep(0)

    async def test() -> None:
        relay = Scene(SocketKind.DUPLEX, tmp_path).relay
        before, first, second = ClosingSlowly(), ClosingSlowly(), ClosingSlowly()
        relay._client.socket = ReplaceableSocket(before, grace_s=10.0)
        ticket = SimpleNamespace(position=0)
        link = SimpleNamespace(detach=nothing, resume=resume, ticket=ticket)
        relay._link = link  # type: ignore[assignment]
        first.may_close.set()
        earlier = asyncio.create_task(relay.resume(first, 3))
        await asyncio.sleep(0.01)  # the first socket of all is being closed
        later = asyncio.create_task(relay.resume(second, 5))
        await asyncio.sleep(0.01)
        before.may_close.set()
        await earlier
        later.cancel()
        await asyncio.gather(later, return_exceptions=True)

    asyncio.run(test())
    assert resumed == [5]
