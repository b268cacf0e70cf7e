"""The web server's WebSocket side with the limits of our paths and an end for dead clients."""

from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.http11 import Request

from core.errors import CloseCode, RateLimitedError
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB, PREPARE_LIMIT_BYTES
from gateway_modules.byte_budget import LEASE_MARK, ByteLease
from gateway_modules.connections import BoundedReads, peer_of
from gateway_modules.http_protocol import GatewayConfig
from gateway_modules.kinds import SocketKind
from gateway_modules.rates import TokenBucket

# A client that stopped reading keeps what it was sent in our buffers; so long may that last.
LINGER_S: Final = 5.0  # ours

# One message a little too long is still collected, so that its sender can be told why.
CHAT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
LIVE_BYTES: Final = PREPARE_LIMIT_BYTES + MIB
LIMITS_BYTES: Final = MappingProxyType(
    {SocketKind.HALF_DUPLEX.path: LIVE_BYTES, SocketKind.DUPLEX.path: LIVE_BYTES}
)

# Reading stops only after whole messages, so frames that complete none are limited by their
# number. An honest client sends a pong every few seconds, and fragments of many kilobytes.
SMALL_FRAME_BYTES: Final = 1024
SMALL_FRAMES_AT_ONCE: Final = 256
SMALL_FRAMES_PER_S: Final = 20

REFUSAL: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class GatewaySocketProtocol(BoundedReads, WebSocketsSansIOProtocol):
    """One client's connection.

    Differs from the server's own: how long a message may be depends on the path, so that a live
    socket cannot make us collect what only a chat may send; small frames are limited in number;
    a handshake that cannot be read is answered; and a client that takes nothing any more is cut
    off instead of being waited for.
    """

    def __init__(
        self,
        config: GatewayConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Take what the server gives every connection."""
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.connections
        self._small_frames = TokenBucket(SMALL_FRAMES_AT_ONCE, SMALL_FRAMES_PER_S, self.loop.time)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection whose request asks for a WebSocket."""
        self._peer = peer_of(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._limits.leave(self._peer)
        lease = self._lease()
        if lease is not None:
            lease.release()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client; the first are the whole handshake."""
        lease = self._lease()
        try:
            if lease is not None:
                lease.add(len(data))
        except RateLimitedError as error:
            self._refuse(error.close_code, error.code)
            return
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(REFUSAL)
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Take the path's limit before any message comes."""
        place = event.path.partition("?")[0]
        for path, limit_bytes in LIMITS_BYTES.items():
            if place.startswith(path):
                self.conn.max_message_size = limit_bytes
        super().handle_connect(event)

    async def receive(self) -> Any:  # the server's type of an event is private
        """Return the next message; from then on it is the app's to hold."""
        event = await super().receive()
        lease = self._lease()
        if lease is not None:
            lease.release()
        return event

    def handle_text(self, event: Frame) -> None:
        """Take the first frame of a text message."""
        if self._may_come(event):
            super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        """Take the first frame of a binary message."""
        if self._may_come(event):
            super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a further frame of a message."""
        if self._may_come(event):
            super().handle_cont(event)

    def handle_ping(self) -> None:
        """Send the pong that the library has made."""
        if self._may_come(None):
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        """Take the answer to a ping of ours, or one that nobody asked for."""
        if self._may_come(None):
            super().handle_pong(event)

    def keepalive_timeout(self) -> None:
        """No pong came: whoever does not answer takes no goodbye either."""
        super().keepalive_timeout()
        self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The app is done with it: so is the connection, soon."""
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _may_come(self, frame: Frame | None) -> bool:
        """Count a frame; end the connection if too many are small. None is a control frame."""
        if self.transport.is_closing():
            return False
        brings_much = frame is not None and (frame.fin or len(frame.data) >= SMALL_FRAME_BYTES)
        if brings_much or self._small_frames.take():
            return True
        if self.close_sent:
            self.transport.abort()
        else:
            self._refuse(CloseCode.POLICY, "too many small frames")
        return False

    def _lease(self) -> ByteLease | None:
        """Return what holds the bytes that arrive, as soon as the app has let the socket in."""
        if not self.handshake_complete:
            return None
        lease = self.scope.get(LEASE_MARK)
        return lease if isinstance(lease, ByteLease) else None

    def _refuse(self, code: CloseCode, reason: str) -> None:
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(code, reason)
            self.handle_parser_exception()
