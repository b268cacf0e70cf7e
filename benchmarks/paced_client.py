"""Duplex clients that send one second of audio per second, like a microphone."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from benchmarks.summary import MS_PER_S
from core.audio import encode_wire_audio

UNIT_S = 1.0
PICTURE_AHEAD_S = 0.5  # before its unit's sound is complete
OPEN_LIMIT_S = 60.0  # of the handshake; many clients connect at once
PLACE_LIMIT_S = 120.0  # from the handshake until a worker has a slot, by default
PREPARE_LIMIT_S = 60.0  # from then until the session is prepared
ANSWER_LIMIT_S = 30.0  # for any answer
INPUT_RATE_HZ, OUTPUT_RATE_HZ = 16_000, 24_000
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


def audio_chunk(sound: np.ndarray) -> str:
    """Return the text of an `audio_chunk` of float [n] at 16 kHz."""
    return json.dumps({"type": "audio_chunk", "audio": encode_wire_audio(sound)})


@dataclass(frozen=True)
class Script:
    sounds: Sequence[str]  # text of each unit's `audio_chunk`
    picture: str = ""  # text of a `video_frame` sent ahead of every unit; none if empty
    begin_s: float = 0.0  # phase within a second at which units are complete, 0 to 1
    patience_s: float = PLACE_LIMIT_S  # longest wait for a worker's slot
    is_endless: bool = False  # the sounds are repeated until the session ends


@dataclass
class Session:
    """A duplex session and its measurements; times are those of `time.monotonic`."""

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
    problem: str = ""  # error that ended the session; empty if none, or if it was cancelled
    worker_id: str = ""  # the worker that serves it
    sent_s: list[float] = field(default_factory=list)  # when each unit was sent
    ended_s: float | None = None  # when it ended

    @property
    def settled(self) -> int:
        """Number of units that were answered or dropped."""
        return len(self.latencies_s) + self.dropped

    @property
    def overdue(self) -> int:
        """Number of units without an answer when the next unit was due."""
        now_s = time.monotonic() if self.ended_s is None else self.ended_s
        return sum(now_s - sent_s > UNIT_S for sent_s in self.sent_s[self.settled :])

    @property
    def late(self) -> int:
        """Number of units dropped or overdue, or answered after the next unit was due."""
        return sum(took_s > UNIT_S for took_s in self.latencies_s) + self.dropped + self.overdue

    def take_result(self, result: Mapping[str, Any], at_s: float) -> None:
        """Record an answer, which arrived at `at_s`; units skipped before it were dropped.

        Any: fields of a message are of several types.
        """
        arrived_s = at_s - result["wall_clock_ms"] / MS_PER_S
        waiting = range(self.settled, len(self.sent_s))
        answered = min(waiting, key=lambda index: abs(self.sent_s[index] - arrived_s))
        self.dropped += answered - self.settled
        self.latencies_s.append(at_s - self.sent_s[answered])
        if not result["is_listen"]:
            self.speaking_s.append(self.latencies_s[-1])
        self.stages_ms.append({name: result.get(field) or 0.0 for name, field in STAGES.items()})
        self.slices += result["vision_slices"]
        self.received_s += len(result["audio_data"]) / BASE64_CHARS_PER_SAMPLE / OUTPUT_RATE_HZ

    async def run(self, url: str, script: Script) -> None:
        """Run to the end of the script, or until an error ends the session."""
        try:
            async with prepared(url, self, script.patience_s) as socket:
                sending = asyncio.create_task(self._send(socket, script))
                try:
                    await self._read(socket, math.inf if script.is_endless else len(script.sounds))
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)  # as reading ends
                await leave(socket)
        except (OSError, TimeoutError, ProtocolError, WebSocketException) as error:
            self.problem = f"{type(error).__name__}: {error}"
        finally:
            self.ended_s = time.monotonic()

    async def _send(self, socket: ClientConnection, script: Script) -> None:
        now_s = time.monotonic()
        first_s = now_s + (script.begin_s - now_s) % UNIT_S
        sounds = cycle(script.sounds) if script.is_endless else script.sounds
        for index, sound in enumerate(sounds):
            due_s = first_s + index * UNIT_S
            if script.picture:
                await asyncio.sleep(due_s - PICTURE_AHEAD_S - time.monotonic())
                await socket.send(script.picture)
            await asyncio.sleep(due_s - time.monotonic())
            self.sent_s.append(time.monotonic())
            self.sent_late_s = max(self.sent_late_s, self.sent_s[-1] - due_s)
            await socket.send(sound)

    async def _read(self, socket: ClientConnection, units: float) -> None:
        while self.settled < units:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                text = await socket.recv()
            at_s = time.monotonic()
            message = json.loads(text)
            match message["type"]:
                case "result":
                    self.take_result(message, at_s)
                case "warning":
                    self.warnings.append(message["code"])
                case "error" | "timeout":
                    raise ProtocolError(message.get("message") or message["reason"])


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
    begin_s = time.monotonic()
    async with connect(
        url, compression=None, proxy=None, max_size=None, open_timeout=OPEN_LIMIT_S
    ) as socket:
        if is_queued:
            try:
                async with asyncio.timeout(patience_s):
                    assigned = await until(socket, "queue_done")
            except TimeoutError:
                raise ProtocolError(f"no place in {patience_s:g} s") from None
            session.worker_id = assigned.get("worker_id") or ""
        session.waited_s = time.monotonic() - begin_s
        async with asyncio.timeout(PREPARE_LIMIT_S):
            prepare = {"type": "prepare", "prefix_system_prompt": "You are a fun assistant."}
            await socket.send(json.dumps(prepare))
            await until(socket, "prepared")
        session.prepared_s = time.monotonic() - begin_s - session.waited_s
        yield socket


# Any: a message is JSON.
async def until(socket: ClientConnection, kind: str) -> dict[str, Any]:
    """Read until a message of one type; ProtocolError if an error arrived instead."""
    while True:
        message: dict[str, Any] = json.loads(await socket.recv())
        if message["type"] == kind:
            return message
        if message["type"] == "error":
            raise ProtocolError(f"{message['code']}: {message['message']}")


async def leave(socket: ClientConnection) -> None:
    await socket.send(json.dumps({"type": "stop"}))
    async with asyncio.timeout(ANSWER_LIMIT_S):
        await until(socket, "stopped")


async def visit(url: str, chunk: str) -> None:
    """Open a session, send one unit and close it; ProtocolError if the server refuses."""
    async with prepared(url) as socket:
        await socket.send(chunk)
        async with asyncio.timeout(ANSWER_LIMIT_S):
            await until(socket, "result")
        await leave(socket)
