"""A worker without a model: speaks the worker's protocol, does what its script says, remembers.

Runs on the test's own loop, so a test reads and changes it while it works.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from core.history import compute_history_hash

# Any: messages as JSON has them; the fake is not to share a type with what it tests.
Raw = dict[str, Any]

VALUES_MAX = 100_000  # of one message
SECOND_OF_SOUND = base64.b64encode(bytes(4 * 24_000)).decode()


class GoneError(Exception):
    """The connection ends here, without a goodbye."""


@dataclass
class Script:
    """What the worker does.

    Attributes:
        reply: pieces of every reply.
        gate: a reply waits for it after its first piece; None does not wait.
        dies_on: types of messages it dies of.
        closes_on: types of messages it closes the socket on, saying nothing.
        refuses: it takes no sockets.
        forgets: it has lost what its caches held.
        chat_status: of `POST /chat`.
        status: what it says it does; None tells the truth.
        extra: fields added to each `result`.
        health: fields added to what it says of itself.
        restart_status: of `POST /restart`.
        transcript: lines it answers `POST /transcribe` with.
        input_tokens: it says that a chat request had.
        speaks_to: messages it sends in answer to one of a type, besides the usual ones.
    """

    reply: tuple[str, ...] = ("Hel", "lo")
    gate: asyncio.Event | None = None
    dies_on: set[str] = field(default_factory=set)
    closes_on: set[str] = field(default_factory=set)
    refuses: bool = False
    forgets: bool = False
    chat_status: int = 200
    status: str | None = None
    extra: Raw = field(default_factory=dict)
    health: Raw = field(default_factory=dict)
    restart_status: int = 200
    transcript: tuple[Raw, ...] = ()
    input_tokens: int = 0
    speaks_to: dict[str, list[Raw]] = field(default_factory=dict)


class FakeWorker:
    """One worker: its script, what it was told, and what it serves now."""

    def __init__(self) -> None:
        self.script = Script()
        self.told: list[Raw] = []
        self.texts: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.stops: list[tuple[str, Raw]] = []
        self.sockets: dict[str, str] = {}  # session id -> path
        self._open: set[WebSocket] = set()
        self.aborted = 0
        self.restarts = 0
        self.kv: list[Raw] = []
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/chat", self._chat, methods=["POST"]),
                Route("/transcribe", self._transcribe, methods=["POST"]),
                Route("/restart", self._restart, methods=["POST"]),
                Route("/{kind}/stop", self._stop, methods=["POST"]),
                WebSocketRoute("/ws/streaming", self._streaming),
                WebSocketRoute("/ws/chat", self._chat_socket),
                WebSocketRoute("/ws/half_duplex", self._half_duplex),
                WebSocketRoute("/ws/duplex", self._duplex),
                WebSocketRoute("/ws/realtime", self._events),
                WebSocketRoute("/ws/live", self._events),
            ]
        )

    def told_types(self) -> list[str]:
        return [str(message.get("type")) for message in self.told]

    # --- HTTP ---

    async def _health(self, request: Request) -> Response:
        busy = {"/ws/duplex": "duplex_active", "/ws/half_duplex": "busy_half_duplex"}
        doing = next((busy.get(path, "busy_streaming") for path in self.sockets.values()), "idle")
        body = {
            "status": "healthy",
            "worker_status": self.script.status or doing,
            "model_loaded": True,
            "active_sessions": len(self.sockets),
            "kv_cache_length": len(self.kv),
        }
        return JSONResponse(body | self.script.health)

    async def _restart(self, request: Request) -> Response:
        self.restarts += 1
        return JSONResponse({"success": True}, self.script.restart_status)

    async def _chat(self, request: Request) -> Response:
        self.told.append(await request.json())
        self.headers.append(dict(request.headers))
        hang_up = asyncio.create_task(self._until_hang_up(request))
        gate = asyncio.create_task(self._pass_gate())
        await asyncio.wait({hang_up, gate}, return_when=asyncio.FIRST_COMPLETED)
        hang_up.cancel()
        gate.cancel()
        if self.script.chat_status != 200:
            return JSONResponse({"detail": "scripted"}, self.script.chat_status)
        return JSONResponse({"text": "".join(self.script.reply), "tokens_generated": 2})

    async def _transcribe(self, request: Request) -> Response:
        sound = await request.body()
        self.queries.append({**request.query_params, "bytes": str(len(sound))})
        lines = "".join(f"{json.dumps(line)}\n" for line in self.script.transcript)
        return Response(lines, self.script.chat_status)

    async def _until_hang_up(self, request: Request) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        self.aborted += 1

    async def _stop(self, request: Request) -> Response:
        self.stops.append((request.path_params["kind"], await request.json()))
        return JSONResponse({"success": True, "message": "scripted"})

    # --- sockets ---

    @asynccontextmanager
    async def _session(self, socket: WebSocket) -> AsyncIterator[AsyncIterator[Raw]]:
        if self.script.refuses:
            await socket.close(1013)
            yield self._nothing()
            return
        await socket.accept()
        session_id = socket.query_params["session_id"]
        self.queries.append(dict(socket.query_params))
        self.headers.append(dict(socket.headers))
        self.sockets[session_id] = socket.url.path
        self._open.add(socket)
        try:
            yield self._messages(socket)
        except (WebSocketDisconnect, GoneError):
            return
        finally:
            self._open.discard(socket)
            del self.sockets[session_id]

    async def _nothing(self) -> AsyncIterator[Raw]:
        nothing: tuple[Raw, ...] = ()
        for message in nothing:
            yield message

    async def _messages(self, socket: WebSocket) -> AsyncIterator[Raw]:
        while True:
            text = await socket.receive_text()
            self.texts.append(text)
            if sum(map(text.count, ",[{")) > VALUES_MAX:
                await self._fail(socket, "invalid_event", 1009)
                return
            try:
                message: Raw = json.loads(text)
            except ValueError:
                await self._fail(socket, "bad_json", 1007)
                return
            self.told.append(message)
            kind = str(message.get("type"))
            if kind in self.script.dies_on:
                raise GoneError
            if kind in self.script.closes_on:
                await socket.close()
                return
            for extra in self.script.speaks_to.get(kind, []):
                await socket.send_json(extra)
            yield message

    async def _fail(self, socket: WebSocket, code: str, close_code: int) -> None:
        error = {"type": "error", "error": "scripted", "message": "scripted", "code": code}
        await socket.send_json({**error, "fatal": True})
        await socket.close(close_code, code)

    async def drop_sockets(self) -> None:
        """Die in the middle of what every socket says."""
        for socket in list(self._open):
            await socket.close(1011)

    async def _pass_gate(self) -> None:
        if self.script.gate is not None:
            await self.script.gate.wait()

    async def _streaming(self, socket: WebSocket) -> None:
        async with self._session(socket) as messages:
            async for message in messages:
                match message["type"]:
                    case "prefill":
                        await self._prefill(socket, message)
                    case "generate":
                        await self._generate(socket, messages)
                    case "stop":
                        await self._done(socket, "", is_stopped=True)
                    case "close":
                        await socket.close()
                        return

    async def _events(self, socket: WebSocket) -> None:
        """One of OpenAI's protocols: a beginning, and what the script answers."""
        async with self._session(socket) as messages:
            if socket.url.path == "/ws/realtime":
                await socket.send_json({"type": "session.created", "session": {}})
            async for _ in messages:
                continue

    async def _prefill(self, socket: WebSocket, message: Raw) -> None:
        expected = message.get("expect_hash")
        if message.get("clear_kv_cache"):
            self.kv = []
        elif expected and (self.script.forgets or compute_history_hash(self.kv) != expected):
            self.kv = []
            await socket.send_json({"type": "cache_miss"})
            return
        cached = len(self.kv)
        self.kv = [*self.kv, *message["messages"]]
        done = {"cached_tokens": cached, "input_tokens": len(self.kv) - cached}
        await socket.send_json({"type": "prefill_done", **done, "cache_hit": cached > 0})

    async def _generate(self, socket: WebSocket, messages: AsyncIterator[Raw]) -> None:
        first, *others = self.script.reply
        await self._piece(socket, 0, first)
        gate = asyncio.create_task(self._pass_gate())
        stop = asyncio.create_task(self._next_stop(messages))
        try:
            await asyncio.wait({gate, stop}, return_when=asyncio.FIRST_COMPLETED)
            if stop.done():
                stop.result()
                await self._done(socket, first, is_stopped=True)
                return
        finally:
            gate.cancel()
            stop.cancel()
            await asyncio.gather(gate, stop, return_exceptions=True)
        for index, piece in enumerate(others, start=1):
            await self._piece(socket, index, piece)
        await self._done(socket, "".join(self.script.reply), is_stopped=False)

    async def _next_stop(self, messages: AsyncIterator[Raw]) -> None:
        if self.script.gate is None:
            await asyncio.Event().wait()
        async for message in messages:
            if message["type"] == "stop":
                return

    async def _piece(self, socket: WebSocket, index: int, text: str) -> None:
        piece = {"chunk_index": index, "text_delta": text, "audio_data": SECOND_OF_SOUND}
        await socket.send_json({**piece, "is_final": False, "type": "chunk"})

    async def _done(self, socket: WebSocket, text: str, *, is_stopped: bool) -> None:
        self.kv = [*self.kv, {"role": "assistant", "content": text}]
        done = {"type": "done", "session_id": socket.query_params["session_id"], "text": text}
        await socket.send_json({**done, "stopped": is_stopped, "elapsed_ms": 1.0})

    async def _chat_socket(self, socket: WebSocket) -> None:
        async with self._session(socket) as messages:
            async for message in messages:
                await socket.send_json({"type": "prefill_done", "input_tokens": 3})
                for text in self.script.reply if message.get("streaming") else ():
                    sound = SECOND_OF_SOUND if message["tts"]["enabled"] else None
                    piece = {"type": "chunk", "text_delta": text, "audio_data": sound}
                    await socket.send_json(piece)
                gate = asyncio.create_task(self._pass_gate())
                more = asyncio.ensure_future(anext(messages))
                await asyncio.wait({gate, more}, return_when=asyncio.FIRST_COMPLETED)
                gate.cancel()
                if more.done():
                    more.result()  # the client left, or said stop
                more.cancel()
                await asyncio.gather(gate, more, return_exceptions=True)
                done = {"type": "done", "text": "".join(self.script.reply)}
                await socket.send_json({**done, "input_tokens": self.script.input_tokens})
                await socket.close()

    async def _half_duplex(self, socket: WebSocket) -> None:
        async with self._session(socket) as messages:
            session_id = socket.query_params["session_id"]
            async for message in messages:
                match message["type"]:
                    case "prepare":
                        ready = {"type": "prepared", "session_id": session_id, "timeout_s": 180}
                        await socket.send_json({**ready, "recording_session_id": "rec_half"})
                    case "audio_chunk":
                        await socket.send_json({"type": "vad_state", "speaking": True})
                    case "stop":
                        await socket.send_json({"type": "stopped", "session_id": session_id})
                        await socket.close()
                        return

    async def _duplex(self, socket: WebSocket) -> None:
        async with self._session(socket) as messages:
            session_id = socket.query_params["session_id"]
            async for message in messages:
                match message["type"]:
                    case "prepare":
                        ready = {"type": "prepared", "session_id": session_id}
                        await socket.send_json({**ready, "recording_session_id": "rec_duplex"})
                    case "audio_chunk":
                        result = {"type": "result", "is_listen": False, "text": "x"}
                        sound = {"audio_data": SECOND_OF_SOUND}
                        await socket.send_json({**result, **sound, **self.script.extra})
                    case "pause":
                        await socket.send_json({"type": "paused", "timeout": 60})
                    case "resume":
                        await socket.send_json({"type": "resumed"})
                    case "stop":
                        await socket.send_json({"type": "stopped", "session_id": session_id})
                        await socket.close()
                        return
