"""A client that comes back when its socket breaks, and a gateway that is killed and replaced."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway_modules.relay.relay import Relay
from tests.fakes.gateway_stage import HOST, HURRY, LIMIT_S, Stage, settings_for, until
from tests.service.workers import RunningWorker, wire

SILENCE = wire(np.zeros(16_000, np.float32))
Raw = dict[str, Any]
GRACE_S = 300.0  # longer than any test


@dataclass
class Caller:
    """A client that comes back when its socket breaks, as the protocol pages say."""

    stage: Stage
    path: str
    session_id: str = ""
    token: str = ""
    socket: ClientConnection | None = None
    heard: list[Raw] = field(default_factory=list)

    @property
    def seqs(self) -> list[int]:
        """Numbers of the worker's messages, as they came."""
        return [message["seq"] for message in self.heard if "seq" in message]

    @property
    def last_seq(self) -> int:
        return max(self.seqs, default=0)

    def of(self, kind: str) -> list[Raw]:
        return [message for message in self.heard if message["type"] == kind]

    async def dial(self, query: str) -> None:
        mark = "&" if "?" in self.path else "?"
        address = f"ws://{HOST}:{self.stage.port}{self.path}{mark}{query}"
        self.socket = await connect(
            address, compression=None, proxy=None, max_size=None, open_timeout=None
        )

    async def open(self) -> None:
        await self.dial("resumable=1")
        offer = await self.hear("session_resumable")
        self.session_id, self.token = offer["session_id"], offer["resume_token"]

    @classmethod
    async def prepared(cls, stage: Stage, path: str) -> Caller:
        caller = cls(stage, path)
        await caller.open()
        await prepare(caller)
        return caller

    def cut(self) -> None:
        assert self.socket is not None
        self.socket.transport.abort()

    async def come_back(self, **changed: Any) -> Raw:
        """Go on over another socket; return how the server greets."""
        query = {
            "resume_token": self.token,
            "last_seq": self.last_seq,
            "session_id": self.session_id,
            **changed,
        }
        await self.dial("&".join(f"{key}={value}" for key, value in query.items()))
        return await self.hear("session_resumed", "error")

    async def say(self, kind: str, **fields: Any) -> None:
        assert self.socket is not None
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def hear(self, *kinds: str) -> Raw:
        assert self.socket is not None
        async with asyncio.timeout(LIMIT_S):
            while True:
                self.heard.append(json.loads(await self.socket.recv()))
                if self.heard[-1]["type"] in kinds:
                    return self.heard[-1]

    async def stop(self) -> None:
        await self.say("stop")
        await self.end()

    async def end(self) -> int | None:
        """Wait for the close; return its code."""
        assert self.socket is not None
        try:
            async with asyncio.timeout(LIMIT_S):
                while True:
                    self.heard.append(json.loads(await self.socket.recv()))
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None

    def check_whole(self) -> None:
        """Every message of the worker came exactly once, in order."""
        assert self.seqs == list(range(1, len(self.seqs) + 1)), self.seqs


@asynccontextmanager
async def restarted(stage: Stage) -> AsyncIterator[Stage]:
    """Kill the gateway in all but its process, and have another one in its place."""
    server = stage._servers[-1][0]
    for relay in stage.gateway.live.all():
        assert isinstance(relay, Relay) and relay._link is not None
        if relay._link.socket is not None:
            relay._link.socket.transport.abort()
    for connection in list(server.server_state.connections):
        connection.transport.abort()  # type: ignore[union-attr]
    for task in list(server.server_state.tasks):
        task.cancel()
    after = Stage(stage.settings, 0, stage.timing, stage.real_workers)
    starting = asyncio.create_task(after.start())  # ends when its worker is idle
    await until(lambda: after.port)
    try:
        yield after
        await starting
        await after.check_quiet()
    finally:
        await after.stop()


async def prepare(caller: Caller) -> None:
    await caller.hear("queue_done")
    await caller.say("prepare", **START[caller.path.split("/")[2]])
    await caller.hear("prepared")


async def duplex_unit(caller: Caller) -> None:
    await caller.say("audio_chunk", audio=SILENCE)
    await caller.hear("result")


START: dict[str, Raw] = {
    "duplex": {"prefix_system_prompt": "Hi"},
    "half_duplex": {
        "config": {
            "vad": {"min_silence_duration_ms": 100},
            "generation": {"max_new_tokens": 12},
        }
    },
}


@asynccontextmanager
async def staged(
    worker: RunningWorker, folder: Path, **sections: Mapping[str, object]
) -> AsyncIterator[Stage]:
    """Have a gateway before the worker; both are quiet afterwards."""
    stage = Stage(
        settings_for(folder, **{"limits": {"resume_grace_s": GRACE_S}, **sections}),
        0,
        HURRY,
        [f"{HOST}:{worker.port}"],
    )
    await stage.start()
    try:
        yield stage
        await stage.check_quiet()
        await until(lambda: not worker.sessions._live, "a session is left at the worker")
    finally:
        await stage.stop()
