"""Duplex clients that send a second of sound every second, as a microphone does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

UNIT_S = 1.0
OPEN_LIMIT_S = 60.0  # of the handshake; a crowd comes in at once
PREPARE_LIMIT_S = 120.0  # from the handshake until a session is prepared
LAST_LIMIT_S = 30.0  # for the answers that are still to come
SHORT_CHARS = 2_048  # a longer message is a `result` with sound


@dataclass
class Session:
    """What one client saw.

    Attributes:
        latencies_s: from sending a unit to its whole answer, in order.
        sent_late_s: how late the client itself sent a unit, at most.
        warnings: codes, as they came.
        problem: why it ended early; empty if it did not.
    """

    latencies_s: list[float] = field(default_factory=list)
    sent_late_s: float = 0.0
    warnings: list[str] = field(default_factory=list)
    problem: str = ""


class ProtocolError(Exception):
    """The server said something else than what was to come."""


@asynccontextmanager
async def prepared(url: str) -> AsyncIterator[ClientConnection]:
    """Have a prepared session for the block.

    Args:
        url: of the session.

    Raises:
        ProtocolError: the server refuses.
    """
    async with connect(
        url, compression=None, proxy=None, max_size=None, open_timeout=OPEN_LIMIT_S
    ) as socket:
        async with asyncio.timeout(PREPARE_LIMIT_S):
            await until(socket, "queue_done")
            prepare = {"type": "prepare", "prefix_system_prompt": "You are a fun assistant."}
            await socket.send(json.dumps(prepare))
            await until(socket, "prepared")
        yield socket


async def until(socket: ClientConnection, kind: str) -> None:
    """Read on to a message of one type.

    Raises:
        ProtocolError: an error came instead.
    """
    while True:
        message = json.loads(await socket.recv())
        if message["type"] == kind:
            return
        if message["type"] == "error":
            raise ProtocolError(f"{message['code']}: {message['message']}")


async def leave(socket: ClientConnection) -> None:
    """End a session in order."""
    await socket.send(json.dumps({"type": "stop"}))
    async with asyncio.timeout(LAST_LIMIT_S):
        await until(socket, "stopped")


async def talk(
    url: str, chunk: str, *, units: int, begin_s: float, everybody_ready: asyncio.Barrier
) -> Session:
    """Hold one paced session.

    Args:
        url: of the session.
        chunk: text of an `audio_chunk`.
        units: how many to send.
        begin_s: when after `everybody_ready` to send the first.
        everybody_ready: passed when all sessions are prepared, and again before they end.
    """
    session = Session()
    loop = asyncio.get_running_loop()
    try:
        async with prepared(url) as socket:
            await everybody_ready.wait()
            first_s = loop.time() + begin_s
            sent_s: list[float] = []
            reader = asyncio.create_task(_read(socket, session, sent_s, units))
            try:
                for index in range(units):
                    due_s = first_s + index * UNIT_S
                    await asyncio.sleep(due_s - loop.time())
                    sent_s.append(loop.time())
                    session.sent_late_s = max(session.sent_late_s, sent_s[-1] - due_s)
                    await socket.send(chunk)
                async with asyncio.timeout(LAST_LIMIT_S):
                    await reader
            finally:
                reader.cancel()
            await everybody_ready.wait()
            await leave(socket)
    except (OSError, TimeoutError, ProtocolError, WebSocketException) as error:
        session.problem = f"{type(error).__name__}: {error}"
        await everybody_ready.abort()
    except asyncio.BrokenBarrierError:
        session.problem = "another session failed"
    return session


async def _read(
    socket: ClientConnection, session: Session, sent_s: list[float], units: int
) -> None:
    loop = asyncio.get_running_loop()
    while len(session.latencies_s) < units:
        text = await socket.recv()
        if len(text) < SHORT_CHARS:
            message = json.loads(text)
            if message["type"] == "warning":
                session.warnings.append(message["code"])
            if message["type"] == "error":
                raise ProtocolError(message["message"])
            if message["type"] != "result":
                continue
        session.latencies_s.append(loop.time() - sent_s[len(session.latencies_s)])


async def visit(url: str, chunk: str) -> None:
    """Open a session, hold one unit and leave.

    Raises:
        ProtocolError: the server refuses.
    """
    async with prepared(url) as socket:
        await socket.send(chunk)
        async with asyncio.timeout(LAST_LIMIT_S):
            await until(socket, "result")
        await leave(socket)
