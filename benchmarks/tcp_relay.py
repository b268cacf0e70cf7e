"""Baseline of a relay: bytes from one socket to another, unread.

`python -m benchmarks.tcp_relay PORT TARGET_PORT`: what a gateway costs beyond it is its own cost.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import cast

HOST = "127.0.0.1"


class Pipe(asyncio.Protocol):
    """One end, which forwards to the other one with backpressure."""

    def __init__(self, other: Pipe | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, problem: Exception | None) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class ClientPipe(Pipe):
    """The client's end, which reads nothing until the target is connected."""

    def __init__(self, target_port: int) -> None:
        super().__init__()
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
            _, far = await loop.create_connection(lambda: Pipe(self), HOST, self._target_port)
        except OSError:
            transport.close()
            return
        self.other = far
        transport.resume_reading()


async def main(port: int, target_port: int) -> None:
    asked_to_end = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, asked_to_end.set)
    server = await loop.create_server(lambda: ClientPipe(target_port), HOST, port)
    await asked_to_end.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
