"""The web server's HTTP side with limits on time: for TLS, heads, bodies and unread answers.

Knows nothing of what is asked for; requests and answers pass as the server handles them.
"""

from __future__ import annotations

import asyncio
import ssl
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway_modules.web.connections import BoundedReads, Connections, Peer

SLOWEST_BYTES_PER_S: Final = 4 * 1024  # a twentieth of what a call needs in one direction


class Owed(StrEnum):
    """What a client has to do next."""

    NOTHING = "nothing"
    HEAD = "send a request"
    BODY = "send the request's body"
    READING = "take the answer"


LIMITS_S: Final = MappingProxyType({Owed.HEAD: 10.0, Owed.BODY: 30.0, Owed.READING: 30.0})
"""A head has to be complete after this; the others have to keep up the slowest rate over it."""


class GatewayConfig(uvicorn.Config):
    # Any: the server's options have types of their own.
    def __init__(
        self,
        app: ASGIApp,
        *,
        connections: Connections,
        tls: ssl.SSLContext | None,
        **options: Any,
    ) -> None:
        super().__init__(app, **options)
        self.connections = connections
        self.tls = tls


class GatewayHttpProtocol(BoundedReads, H11Protocol):
    """One connection, from the TCP handshake on.

    TLS is begun here and not by the server, so that a connection counts before its TLS handshake.
    """

    def __init__(
        self,
        config: GatewayConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = config.connections
        self._tls = config.tls
        self._peer: Peer | None = None
        self._early = b""  # read between the end of the TLS handshake and our hearing of it
        self._owed = Owed.NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._moved_bytes = 0
        self._is_write_paused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register the connection, or close it; with TLS the handshake comes next."""
        self._peer = self._limits.admit(transport)
        if self._peer is None:
            self._limits.refusals.warn("connection refused", open=len(self._limits))
            transport.abort()
        elif self._tls is None:
            self._begin(transport)
        else:
            task = self.loop.create_task(self._shake_hands(transport))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        assert self._tls is not None and self._peer is not None
        try:
            transport = await self.loop.start_tls(
                plain,
                self,
                self._tls,
                server_side=True,
                ssl_handshake_timeout=LIMITS_S[Owed.HEAD],
            )
        except OSError:  # TLS errors and time-outs are such errors too
            self._limits.leave(self._peer)
            return
        if transport is None or transport.is_closing():
            self._limits.leave(self._peer)
            return
        self._begin(transport)

    def _begin(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._peer is not None:
            self._limits.leave(self._peer)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            self._early += data
            return
        if self._owed is Owed.BODY:
            self._moved_bytes += len(data)
        super().data_received(data)
        self._watch()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Source: RFC 6455, section 4.2.1."""
        if event.http_version != b"1.1":
            self.send_400_response("A WebSocket needs HTTP/1.1.")
            return
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_write_paused = True
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_write_paused = False
        self._watch()

    def _watch(self) -> None:
        """Restart the timer if what the client owes has changed."""
        assert self._peer is not None
        owed = self._find_owed()
        has_answered = self.cycle is None or self.cycle.response_complete
        is_waiting = self.conn.their_state is h11.IDLE and has_answered
        self._limits.note(self._peer, is_idle=is_waiting and not self._is_write_paused)
        if owed is not self._owed:
            self._owed = owed
            self._measure()

    def _find_owed(self) -> Owed:
        if self.transport.get_protocol() is not self:
            return Owed.NOTHING  # a WebSocket by now
        if self._is_write_paused:
            return Owed.READING
        if self.conn.their_state is h11.SEND_BODY:
            return Owed.BODY
        has_begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.IDLE and has_begun:
            return Owed.HEAD
        return Owed.NOTHING

    def _measure(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._owed is Owed.NOTHING:
            return
        is_reading = self._owed is Owed.READING
        self._moved_bytes = -self.transport.get_write_buffer_size() if is_reading else 0
        self._timer = self.loop.call_later(LIMITS_S[self._owed], self._judge)

    def _judge(self) -> None:
        """Abort the connection of a client that is too slow."""
        moved_bytes, is_held_back = self._moved_bytes, False
        if self._owed is Owed.READING:
            moved_bytes = -self._moved_bytes - self.transport.get_write_buffer_size()
        elif self._owed is Owed.BODY:
            is_held_back = self.flow.read_paused
        wanted_bytes = SLOWEST_BYTES_PER_S * LIMITS_S[self._owed]
        if is_held_back or (self._owed is not Owed.HEAD and moved_bytes >= wanted_bytes):
            self._measure()
        else:
            self.transport.abort()
