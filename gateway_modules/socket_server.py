"""The web server's WebSocket side with the limits of our paths and an end for dead clients."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB, PREPARE_LIMIT_BYTES
from gateway_modules.kinds import SocketKind

# A client that stopped reading keeps what it was sent in our buffers; so long may that last.
LINGER_S: Final = 5.0  # ours

# One message a little too long is still collected, so that its sender can be told why.
CHAT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
LIVE_BYTES: Final = PREPARE_LIMIT_BYTES + MIB
LIMITS_BYTES: Final = MappingProxyType(
    {SocketKind.HALF_DUPLEX.path: LIVE_BYTES, SocketKind.DUPLEX.path: LIVE_BYTES}
)


class GatewaySocketProtocol(WebSocketsSansIOProtocol):
    """One client's connection.

    Differs from the server's own in two ways: how long a message may be depends on the path, so
    that a live socket cannot make us collect what only a chat may send; and a client that takes
    nothing any more is cut off instead of being waited for.
    """

    def handle_connect(self, event: Request) -> None:
        """Take the path's limit before any message comes."""
        place = event.path.partition("?")[0]
        for path, limit_bytes in LIMITS_BYTES.items():
            if place.startswith(path):
                self.conn.max_message_size = limit_bytes
        super().handle_connect(event)

    def keepalive_timeout(self) -> None:
        """No pong came: whoever does not answer takes no goodbye either."""
        super().keepalive_timeout()
        self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The app is done with it: so is the connection, soon."""
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)
