"""A client of the four sockets, written from the published protocol alone; knows nothing of ours.

It says what it is told to and keeps every message with the time it came; it judges nothing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
import wave
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

RATE_HZ = 16_000  # of what a microphone sends
HALF_DUPLEX_CHUNK_S = 0.5
HEARING_PACE_S = 0.005  # between two chunks of half duplex: faster than life, slower than a flood
LIMIT_S = 120.0  # ends a test that hangs
CLOSE_LIMIT_S = 120.0
MAX_BYTES = 64 * 1024 * 1024

# Any: JSON, as it came.
Message = dict[str, Any]
Samples = NDArray[np.float32]


class ClosedError(Exception):
    """The server closed before it said what was waited for."""


@dataclass(frozen=True)
class Heard:
    """A message and when it came, on the clock of `time.monotonic`."""

    at_s: float
    message: Message


def read_wav(path: Path) -> Samples:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE_HZ, 1, 2)
        pcm = np.frombuffer(file.readframes(file.getnframes()), dtype="<i2")
    return (pcm / 32_768).astype(np.float32)


def to_base64(samples: Samples) -> str:
    """Write sound as the wire has it: little-endian float32."""
    return base64.b64encode(samples.astype("<f4").tobytes()).decode()


def from_base64(text: str) -> Samples:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4")


def in_chunks(samples: Samples, chunk_s: float) -> Iterator[Samples]:
    """Cut sound into chunks; the last one is filled up with silence."""
    size = round(chunk_s * RATE_HZ)
    for start in range(0, len(samples), size):
        piece = samples[start : start + size]
        yield np.pad(piece, (0, size - len(piece)))


class Client:
    """One socket and everything that came over it."""

    def __init__(self, socket: ClientConnection) -> None:
        """Take over an open socket; `connected` makes one."""
        self.heard: list[Heard] = []
        self._socket = socket
        self._taken = 0
        self._news = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, url: str, *, headers: dict[str, str] | None = None
    ) -> AsyncIterator[Self]:
        # A server may be slow to open: it may wait for an older socket of the same session.
        async with connect(
            url,
            additional_headers=headers,
            max_size=MAX_BYTES,
            open_timeout=LIMIT_S,
            close_timeout=CLOSE_LIMIT_S,
            ping_interval=None,
            proxy=None,
        ) as socket:
            client = cls(socket)
            try:
                yield client
            finally:
                client._reader.cancel()
                if client.is_open:
                    socket.transport.resume_reading()

    async def _read(self) -> None:
        try:
            async for raw in self._socket:
                self.heard.append(Heard(time.monotonic(), json.loads(raw)))
                self._news.set()
        except ConnectionClosed:
            return
        finally:
            self._news.set()

    # --- what it says ---

    # Any: fields of a message.
    async def say(self, kind: str, **fields: Any) -> None:
        await self.say_text(json.dumps({"type": kind, **fields}))

    async def say_text(self, text: str | bytes) -> None:
        """Send anything; bytes make a binary message."""
        await self._socket.send(text)

    # --- what it hears ---

    @property
    def messages(self) -> list[Message]:
        return [heard.message for heard in self.heard]

    @property
    def kinds(self) -> list[str]:
        """The types of everything that came, in order."""
        return [message["type"] for message in self.messages]

    @property
    def kinds_once_served(self) -> list[str]:
        """The same from `queue_done` on: whether anything was said before depends on others."""
        return self.kinds[self.kinds.index("queue_done") :]

    def all_of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["type"] == kind]

    async def hear(self, *kinds: str, limit_s: float = LIMIT_S) -> Message:
        """Wait for the next message of one of these types; what comes before it stays in `heard`.

        Raises:
            ClosedError: The socket closed first.
            TimeoutError: It did not come.
        """
        try:
            async with asyncio.timeout(limit_s):
                return await self._next(kinds)
        except TimeoutError:
            raise TimeoutError(f"no {kinds} after {self.kinds}") from None

    async def _next(self, kinds: Sequence[str]) -> Message:
        while True:
            while self._taken < len(self.heard):
                message = self.heard[self._taken].message
                self._taken += 1
                if message["type"] in kinds:
                    return message
            if self._reader.done():
                raise ClosedError(f"closed {self.close_code} {self.messages[-1:]}, not {kinds}")
            self._news.clear()
            await self._news.wait()

    # --- the end ---

    @property
    def is_open(self) -> bool:
        """The server has not closed, as far as was read."""
        return not self._reader.done()

    @property
    def close_code(self) -> int | None:
        """How the socket was closed; None while it is open."""
        return self._socket.close_code

    @property
    def close_reason(self) -> str:
        return self._socket.close_reason or ""

    async def closed(self, limit_s: float = LIMIT_S) -> int | None:
        """Wait for the end and return the close code."""
        async with asyncio.timeout(limit_s):
            await asyncio.wait([self._reader])
        return self.close_code

    def vanish(self) -> None:
        self._socket.transport.abort()

    def fall_silent(self) -> None:
        """Read nothing any more and answer no ping; the connection stays."""
        self._socket.transport.pause_reading()

    def wake_up(self) -> None:
        self._socket.transport.resume_reading()


class StreamingClient(Client):
    """`/ws/streaming`: the whole history goes up each turn."""

    # Any: fields of a message.
    async def turn(self, messages: Sequence[Message], **generate: Any) -> Message:
        await self.say("prefill", messages=list(messages))
        await self.hear("prefill_done")
        await self.say("generate", **generate)
        return await self.hear("done")


class HalfDuplexClient(Client):
    """`/ws/half_duplex`: sound goes up until the server says that it answers."""

    async def prepare(self, **fields: Any) -> Message:
        """Set up the session and return `prepared`."""
        await self.hear("queue_done")
        await self.say("prepare", **fields)
        return await self.hear("prepared")

    async def send_sound(self, samples: Samples) -> None:
        """Send sound until it ends or the server says that it answers."""
        generating = self.kinds.count("generating")
        for chunk in in_chunks(samples, HALF_DUPLEX_CHUNK_S):
            if self.kinds.count("generating") > generating:
                return
            await self.say("audio_chunk", audio_base64=to_base64(chunk))
            await asyncio.sleep(HEARING_PACE_S)


class DuplexClient(Client):
    """`/ws/duplex`: a second of sound goes up, a result comes back."""

    async def prepare(self, **fields: Any) -> Message:
        """Set up the session and return `prepared`."""
        await self.hear("queue_done")
        await self.say("prepare", **fields)
        return await self.hear("prepared")

    async def unit(self, samples: Samples, **fields: Any) -> Message:
        await self.say("audio_chunk", audio=to_base64(samples), **fields)
        return await self.hear("result")


class ChatClient(Client):
    """`/ws/chat`: one request, one reply."""

    async def ask(self, messages: Sequence[Message], **fields: Any) -> Message:
        await self.say_text(json.dumps({"messages": list(messages), **fields}))
        return await self.hear("done")
