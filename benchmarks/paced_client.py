"""Duplex clients that send one second of audio per second, like a microphone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.summary import MS_PER_S

UNIT_S = 1.0
PICTURE_AHEAD_S = 0.5  # before its unit's sound is complete
OPEN_LIMIT_S = 60.0  # of the handshake; many clients connect at once
PLACE_LIMIT_S = 120.0  # from the handshake until a worker has a slot, by default
PREPARE_LIMIT_S = 60.0  # from then until the session is prepared
LAST_LIMIT_S = 30.0  # for the last answers
OUTPUT_RATE_HZ = 24_000
BASE64_CHARS_PER_SAMPLE = 16 / 3  # float32
STAGES = {  # fields of a `result`, in milliseconds
    "encode": "prefill_ms",
    "text": "cost_llm_ms",
    "codes": "cost_tts_ms",
    "waveform": "cost_token2wav_ms",
    "engine": "cost_all_ms",
    "worker": "wall_clock_ms",
}
"""Stages of a unit, which add up to the engine's time; and from its arrival at the worker to its
result."""


@dataclass(frozen=True)
class Script:
    sounds: Sequence[str]  # text of each unit's `audio_chunk`
    picture: str = ""  # text of a `video_frame` sent ahead of every unit; none if empty
    begin_s: float = 0.0  # phase within a second at which units are complete, 0 to 1
    patience_s: float = PLACE_LIMIT_S  # longest wait for a worker's slot


@dataclass
class Session:
    latencies_s: list[float] = field(default_factory=list)  # from a unit to its whole answer
    dropped: int = 0  # units that the server dropped because of a backlog
    sent_late_s: float = 0.0  # largest delay of the client itself in sending a unit
    waited_s: float = 0.0  # from connecting to getting a worker's slot
    prepared_s: float = 0.0  # from then until the session was prepared
    speaking_s: list[float] = field(default_factory=list)  # of units in which the model spoke
    stages_ms: list[dict[str, float]] = field(default_factory=list)  # of each unit, by stage
    received_s: float = 0.0  # duration of the received audio
    slices: int = 0  # picture slices that the model encoded
    warnings: list[str] = field(default_factory=list)  # codes, in order
    problem: str = ""  # error that ended the session; empty if none

    @property
    def settled(self) -> int:
        """Number of units that were answered or dropped."""
        return len(self.latencies_s) + self.dropped

    def take_result(self, result: Mapping[str, Any], at_s: float, sent_s: Sequence[float]) -> None:
        """Record an answer, which arrived at `at_s`; units skipped before it were dropped.

        `sent_s` is when each unit was sent. Any: fields of a message are of several types.
        """
        arrived_s = at_s - result["wall_clock_ms"] / MS_PER_S
        waiting = range(self.settled, len(sent_s))
        answered = min(waiting, key=lambda index: abs(sent_s[index] - arrived_s))
        self.dropped += answered - self.settled
        self.latencies_s.append(at_s - sent_s[answered])
        if not result["is_listen"]:
            self.speaking_s.append(self.latencies_s[-1])
        self.stages_ms.append({name: result.get(field) or 0.0 for name, field in STAGES.items()})
        self.slices += result["vision_slices"]
        self.received_s += len(result["audio_data"]) / BASE64_CHARS_PER_SAMPLE / OUTPUT_RATE_HZ


class ProtocolError(Exception):
    """The server sent an unexpected message."""


@asynccontextmanager
async def prepared(
    url: str,
    session: Session | None = None,
    patience_s: float = PLACE_LIMIT_S,
    *,
    is_queued: bool = True,
) -> AsyncIterator[ClientConnection]:
    """Open a prepared session for the block; `session` receives the durations.

    With `is_queued` the server is a gateway, which is waited for `patience_s` at most.
    ProtocolError if the server refuses, or has no slot in time.
    """
    session = session or Session()
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    async with connect(
        url, compression=None, proxy=None, max_size=None, open_timeout=OPEN_LIMIT_S
    ) as socket:
        if is_queued:
            try:
                async with asyncio.timeout(patience_s):
                    await until(socket, "queue_done")
            except TimeoutError:
                raise ProtocolError(f"no place in {patience_s:g} s") from None
        session.waited_s = loop.time() - begin_s
        async with asyncio.timeout(PREPARE_LIMIT_S):
            prepare = {"type": "prepare", "prefix_system_prompt": "You are a fun assistant."}
            await socket.send(json.dumps(prepare))
            await until(socket, "prepared")
        session.prepared_s = loop.time() - begin_s - session.waited_s
        yield socket


async def until(socket: ClientConnection, kind: str) -> None:
    """Read until a message of one type; ProtocolError if an error arrived instead."""
    while True:
        message = json.loads(await socket.recv())
        if message["type"] == kind:
            return
        if message["type"] == "error":
            raise ProtocolError(f"{message['code']}: {message['message']}")


async def leave(socket: ClientConnection) -> None:
    await socket.send(json.dumps({"type": "stop"}))
    async with asyncio.timeout(LAST_LIMIT_S):
        await until(socket, "stopped")


async def run_session(url: str, script: Script) -> Session:
    session = Session()
    try:
        async with prepared(url, session, script.patience_s) as socket:
            sent_s: list[float] = []
            reader = asyncio.create_task(_read(socket, session, sent_s, len(script.sounds)))
            try:
                await _send(socket, script, session, sent_s)
                async with asyncio.timeout(LAST_LIMIT_S):
                    await reader
            finally:
                reader.cancel()
            await leave(socket)
    except (OSError, TimeoutError, ProtocolError, WebSocketException) as error:
        session.problem = f"{type(error).__name__}: {error}"
    return session


async def _send(
    socket: ClientConnection, script: Script, session: Session, sent_s: list[float]
) -> None:
    loop = asyncio.get_running_loop()
    now_s = loop.time()
    first_s = now_s + (script.begin_s - now_s) % UNIT_S
    for index, sound in enumerate(script.sounds):
        due_s = first_s + index * UNIT_S
        if script.picture:
            await asyncio.sleep(due_s - PICTURE_AHEAD_S - loop.time())
            await socket.send(script.picture)
        await asyncio.sleep(due_s - loop.time())
        sent_s.append(loop.time())
        session.sent_late_s = max(session.sent_late_s, sent_s[-1] - due_s)
        await socket.send(sound)


async def _read(
    socket: ClientConnection, session: Session, sent_s: Sequence[float], units: int
) -> None:
    loop = asyncio.get_running_loop()
    while session.settled < units:
        text = await socket.recv()
        at_s = loop.time()
        message = json.loads(text)
        match message["type"]:
            case "result":
                session.take_result(message, at_s, sent_s)
            case "warning":
                session.warnings.append(message["code"])
            case "error" | "timeout":
                raise ProtocolError(message.get("message") or message["reason"])


async def visit(url: str, chunk: str) -> None:
    """Open a session, send one unit and close it; ProtocolError if the server refuses."""
    async with prepared(url) as socket:
        await socket.send(chunk)
        async with asyncio.timeout(LAST_LIMIT_S):
            await until(socket, "result")
        await leave(socket)
