"""A relay: bytes from one socket to another, unread, at once or late by a random time.

`python -m benchmarks.tcp_relay PORT TARGET_PORT [JITTER_S]`. Without jitter it is the baseline of
relays: what a gateway costs beyond it is its own cost.
"""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from collections.abc import Callable
from random import Random
from typing import cast

HOST = "127.0.0.1"


class Pipe(asyncio.Protocol):
    """One end, which forwards to the other one with backpressure."""

    def __init__(self, jitter_s: float, other: Pipe | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.jitter_s, self._random, self._due_s = jitter_s, Random(0), 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self._in_time(self.other.transport.write, data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, problem: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self._in_time(self.other.transport.close)

    def _in_time(self, act: Callable[..., None], *arguments: object) -> None:
        """Act at once or, with jitter, late by up to as much, in order."""
        if not self.jitter_s:
            act(*arguments)
            return
        loop = asyncio.get_running_loop()
        late_s = loop.time() + self._random.uniform(0, self.jitter_s)
        # Never equal: a loop does not keep the order of calls that are due at the same time.
        self._due_s = max(math.nextafter(self._due_s, math.inf), late_s)
        loop.call_at(self._due_s, act, *arguments)


class ClientPipe(Pipe):
    """The client's end, which reads nothing until the target is connected."""

    def __init__(self, target_port: int, jitter_s: float) -> None:
        super().__init__(jitter_s)
        self._target_port = target_port
        self._reaching: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self._reaching = asyncio.create_task(self._reach(self.transport))

    async def _reach(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, far = await loop.create_connection(
                lambda: Pipe(self.jitter_s, self), HOST, self._target_port
            )
        except OSError:
            transport.close()
            return
        self.other = far
        transport.resume_reading()


async def main(port: int, target_port: int, jitter_s: float = 0.0) -> None:
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, asked_to_end.set)
    server = await loop.create_server(lambda: ClientPipe(target_port, jitter_s), HOST, port)
    await asked_to_end.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:])))
