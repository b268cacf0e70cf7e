"""One connection of the gateway's web server without a network: what goes in and what comes out."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from gateway_modules.web.limits import Connections
from gateway_modules.web.server import GatewayConfig, GatewayHttpProtocol

PEER = ("192.0.2.1", 4_321)
HEARTBEAT_S = 1_000.0


class RawConnection(asyncio.Transport):
    """A transport in memory, with the protocol of one connection behind it."""

    def __init__(
        self,
        app: ASGIApp,
        connections: Connections | None = None,
        peer: tuple[str, int] = PEER,
    ) -> None:
        """Connect.

        Args:
            app: Answers.
            connections: Counts it; None lets everybody in.
            peer: Where it comes from.
        """
        super().__init__({"peername": peer})
        self.sent = b""
        self.unsent_bytes = 0
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._is_closed = False
        connections = Connections(10, 10, str) if connections is None else connections
        config = GatewayConfig(app, "", 0, connections=connections, heartbeat_s=HEARTBEAT_S)
        config.load()
        self._protocol: Any = GatewayHttpProtocol(config, ServerState(), {})
        self._protocol.connection_made(self)

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    async def receive(self, data: bytes) -> int:
        """Have the client send something; return in how many turns it was taken."""
        turns = 0
        while data and not self._is_closed:
            await self._may_read.wait()
            buffer = self._protocol.get_buffer(-1)
            part, data = data[: len(buffer)], data[len(buffer) :]
            buffer[: len(part)] = part
            self._protocol.buffer_updated(len(part))
            turns += 1
            await asyncio.sleep(0)
        return turns

    def end(self) -> None:
        """End the client's side, as its system does."""
        if not self._protocol.eof_received():
            self.close()

    def fill(self, unsent_bytes: int) -> None:
        """Say how much the client has not taken; anything is above the high-water mark."""
        was_full, self.unsent_bytes = self.unsent_bytes > 0, unsent_bytes
        if unsent_bytes and not was_full:
            self._protocol.pause_writing()
        elif was_full and not unsent_bytes:
            self._protocol.resume_writing()

    # --- what the protocol calls ---

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()
