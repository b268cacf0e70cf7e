"""A relay between a client and a worker in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from prometheus_client import CollectorRegistry
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from config import Settings
from core.metrics import GatewayMetrics
from core.schemas.limits import MIB
from core.schemas.queue import SocketKind
from core.store import Store
from gateway_modules.openai.sessions import EventTraffic, HoldLimits
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.relay.link import QueueingLimits, Request
from gateway_modules.relay.relay import Relay
from gateway_modules.relay.telemetry import DiagnosticsLimit, RelayTelemetry
from gateway_modules.relay.traffic import ChatTraffic, LiveTraffic, Message, Traffic, TurnTraffic
from gateway_modules.voices import VoiceLibrary
from gateway_modules.web.client_socket import ClientSocket, Pace
from gateway_modules.web.limits import Budget
from gateway_modules.web.messages import Shortcut, Text
from tests.fakes.decoding import DecoderHere
from tests.fakes.gateway_stage import until
from tests.fakes.pools import ask, make_pool, workers_of

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
    "conversation.item.create": [{"type": "conversation.item.created"}],
    "chat": [{"type": "prefill_done", "input_tokens": 3}, {"type": "done", "text": "Hello"}],
}
LAST = {"type": "stopped", "session_id": "s"}


class WorkerSocket:
    """The gateway's end of a socket to a worker, and the worker behind it."""

    def __init__(self) -> None:
        self.transport = SimpleNamespace(abort=self._abort)
        self.shortcut = Shortcut(self.send_now)
        self.is_open = True
        self.told: list[Raw] = []  # what came from the gateway
        self._replies: asyncio.Queue[str | Exception] = asyncio.Queue()

    async def send(self, text: str) -> None:
        await asyncio.sleep(0)
        self._check()
        self.told.append(json.loads(text))
        kind = self.told[-1].get("type", "chat")
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

    async def close(self, code: int = 1000) -> None:
        await asyncio.sleep(0)
        self.is_open = False
        self.say(ConnectionClosedOK(Close(code, ""), None))
        await asyncio.sleep(0)

    def say(self, reply: Raw | Exception) -> None:
        self._replies.put_nowait(reply if isinstance(reply, Exception) else json.dumps(reply))

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
    posted: list[str] = field(default_factory=list)  # paths of the HTTP requests to workers
    incoming: asyncio.Queue[Raw] = field(default_factory=asyncio.Queue)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: bool = False
    send_s: float = 0.0
    workers: int = 1
    unreachable: int = 0  # connections that fail before one is made
    may_connect: asyncio.Event = field(default_factory=asyncio.Event)
    grace_s: float = 0.0  # for a client to resume
    max_wait_s: float = 8.0
    first: Message | None = None
    held_limits: HoldLimits = field(default_factory=HoldLimits)

    def __post_init__(self) -> None:
        self.may_connect.set()
        self.pool = self._pool()
        self.incoming.put_nowait({"type": "websocket.connect"})
        self.relay = self._relay()
        self.running: asyncio.Task[None] | None = None

    def _pool(self) -> WorkerPool:
        async def connect(*args: object, **kwargs: object) -> WorkerSocket:
            await asyncio.sleep(0)
            await self.may_connect.wait()
            if self.unreachable:
                self.unreachable -= 1
                raise OSError
            self.sockets.append(WorkerSocket())
            return self.sockets[-1]

        pool = make_pool(self.workers)
        stopped = {"success": True, "message": "It was stopped."}

        def answer(request: httpx.Request) -> httpx.Response:
            self.posted.append(request.url.path)
            return httpx.Response(200, json=stopped)

        http = httpx.MockTransport(answer)
        pool.client = WorkerClient(connect=connect, transport=http)  # type: ignore[arg-type]
        return pool

    def _relay(self) -> Relay:
        request_type = self.kind.request_type("adx_1")
        self.websocket = websocket = self._websocket()
        metrics = GatewayMetrics(CollectorRegistry())
        self.lease = Budget(MIB, MIB).lease("")
        return Relay(
            ClientSocket(websocket, (10_000, 10_000), Pace(), self.lease, self.grace_s),
            self._traffic(),
            self.pool,
            Request(
                self.kind,
                request_type,
                "adx_1",
                "client",
                "",
                "0" * 32,
                QueueingLimits(),
                tries=1,
                max_wait_s=self.max_wait_s if self.kind.has_events else None,
            ),
            RelayTelemetry(metrics, request_type.value),
            self.first,
        )

    def _websocket(self) -> WebSocket:
        return WebSocket(
            {"type": "websocket", "headers": []},
            receive=self.incoming.get,
            send=self._take,  # type: ignore[arg-type]
        )

    async def resume(self) -> asyncio.Task[None]:
        """Lose the client's socket, and continue over another one."""
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
        await asyncio.sleep(1.0)
        assert self.relay.is_away
        self.incoming.put_nowait({"type": "websocket.connect"})
        websocket = self._websocket()
        await websocket.accept()
        return asyncio.create_task(self.relay.resume(websocket, 0))

    def _traffic(self) -> Traffic:
        decoder = DecoderHere()
        voices = VoiceLibrary(self.folder, Store(self.folder), decoder)
        if self.kind is SocketKind.STREAMING:
            return TurnTraffic(voices)
        if self.kind is SocketKind.CHAT:
            return ChatTraffic(voices)
        if self.kind.has_events:
            return EventTraffic(voices, sends_queue=True, limits=self.held_limits)
        diagnostics = DiagnosticsLimit(Settings().limits)
        return LiveTraffic(self.kind, voices, diagnostics)

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

    @property
    def types(self) -> list[str]:
        """Types of what the client has heard, in order."""
        return [message["type"] for message in self.sent]

    def last(self, wanted: str) -> Raw:
        return next(message for message in reversed(self.sent) if message["type"] == wanted)

    def say(self, **message: Any) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(message)})

    async def hear(self, wanted: str, count: int = 1) -> None:
        """Wait until the client has heard a message of a type so many times."""
        while self.types.count(wanted) < count:
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

    def check_quiet(self) -> None:
        """Nothing is held, nothing is open, and the client heard at most one last message."""
        assert all(worker.tasks == [] for worker in self.pool.workers.values())
        assert self.pool.queue_length == 0
        assert not any(socket.is_open for socket in self.sockets)
        assert len(self.closed) <= 1
        assert self.types.count("error") <= 1
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Stage(Scene):
    """A scene whose first worker is occupied until `assign`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.others: list[Ticket] = []

    def occupy(self) -> None:
        self.others += [ask(self.pool, "duplex")[0] for _ in workers_of(self.pool)]

    def assign(self) -> None:
        for other in self.others:
            self.pool.leave(other)
        self.others = []

    def ask(self) -> None:
        """Request a worker, as this kind of client does."""
        if self.kind is SocketKind.STREAMING:
            self.say(type="prefill", messages=[USER])
        elif self.kind is SocketKind.CHAT:
            self.say(messages=[USER])

    async def reach(self, phase: str) -> None:
        """Go on to a phase; a worker that is assigned is not connected before `relaying`."""
        self.may_connect.clear()
        self.ask()
        await self.hear("queued")
        if phase != "waiting":
            self.assign()
            await self.hear("queue_done")
        if phase == "relaying":
            self.may_connect.set()
            await until(lambda: self.relay.phase == phase)
        assert self.relay.phase == phase

    async def end(self) -> list[int]:
        """Wait for the end of the relay; return the close codes."""
        assert self.running is not None
        await self.running
        return self.closed

    @property
    def told(self) -> list[Any]:
        """What the latest worker was told."""
        return self.sockets[-1].told


@asynccontextmanager
async def staged(
    kind: SocketKind, folder: Path, phase: str | None = None, **options: Any
) -> AsyncIterator[Stage]:
    """Run a relay for the block; whatever happened in it, nothing is left afterwards."""
    stage = Stage(kind, folder, **options)
    stage.occupy()
    await stage.websocket.accept()
    stage.running = asyncio.create_task(stage.relay.run())
    try:
        if phase is not None:
            await stage.reach(phase)
        yield stage
    finally:
        stage.leave()
        await asyncio.gather(stage.running, return_exceptions=True)
        stage.assign()
        stage.check_quiet()
