"""Runs the app under uvicorn: time limits for HTTP, pings for sockets, and draining."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from types import FrameType
from typing import Final

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from core.stop_signals import StopSignals
from gateway_modules.web.limits import BoundedReads, Connections, Peer
from gateway_modules.web.socket_server import CHAT_BYTES, GatewaySocketProtocol

SLOWEST_BYTES_PER_S: Final = 4 * 1024  # a twentieth of one direction of a call
HEALTH_CHECK: Final = b"GET /health "  # how its request begins, which clients send in one piece


class Expected(StrEnum):
    """What the server is waiting for."""

    NOTHING = "nothing"
    HEAD = "send a request"
    BODY = "send the request's body"
    READING = "take the answer"


LIMITS_S: Final = {Expected.HEAD: 10.0, Expected.BODY: 30.0, Expected.READING: 30.0}
"""A head has to be complete by then; the others need `SLOWEST_BYTES_PER_S` over this time."""


class GatewayHttpProtocol(BoundedReads, H11Protocol):
    """A connection; starts TLS itself, so that it is counted before the TLS handshake."""

    config: GatewayConfig
    _peer: Peer | None = None
    _is_check = False  # let in for a health check only
    _early = b""  # received before `_begin`
    _expected = Expected.NOTHING
    _timer: asyncio.TimerHandle | None = None
    _moved_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limits = self.config.connections
        self._peer = limits.admit(transport)
        self._is_check = self._peer is not None and limits.is_check(self._peer)
        if self._peer is None:
            self._refuse(transport)
        elif self.config.tls is None:
            self._begin(transport)
        else:
            task = self.loop.create_task(self._shake_hands(transport))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _refuse(self, transport: asyncio.Transport) -> None:
        limits = self.config.connections
        limits.refusals.warn("connection refused", open=len(limits))
        transport.abort()

    async def _shake_hands(self, plain: asyncio.Transport) -> None:
        assert self.config.tls is not None and self._peer is not None
        try:
            transport = await self.loop.start_tls(
                plain,
                self,
                self.config.tls,
                server_side=True,
                ssl_handshake_timeout=LIMITS_S[Expected.HEAD],
            )
        except OSError:  # includes TLS errors and time-outs
            transport = None
        if transport is None or transport.is_closing():
            self.config.connections.leave(self._peer)
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
            self.config.connections.leave(self._peer)
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            self._early += data
            return
        if self._is_check and not data.startswith(HEALTH_CHECK):
            self._refuse(self.transport)
            return
        if self._expected is Expected.BODY:
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
        if self._is_check:
            self.transport.close()
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        assert self._peer is not None
        expected = self._find_expected()
        has_answered = self.cycle is None or self.cycle.response_complete
        is_waiting = self.conn.their_state is h11.IDLE and has_answered
        is_idle = is_waiting and not self.flow.write_paused
        self.config.connections.note(self._peer, is_idle=is_idle)
        if expected is not self._expected:
            self._expected = expected
            self._restart_timer()

    def _find_expected(self) -> Expected:
        if self.transport.get_protocol() is not self:
            return Expected.NOTHING  # upgraded to a WebSocket
        if self.flow.write_paused:
            return Expected.READING
        if self.conn.their_state is h11.SEND_BODY:
            return Expected.BODY
        has_begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.IDLE and has_begun:
            return Expected.HEAD
        return Expected.NOTHING

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._expected is Expected.NOTHING:
            return
        is_reading = self._expected is Expected.READING
        self._moved_bytes = -self.transport.get_write_buffer_size() if is_reading else 0
        self._timer = self.loop.call_later(LIMITS_S[self._expected], self._check_progress)

    def _check_progress(self) -> None:
        moved_bytes, expected = self._moved_bytes, self._expected
        if expected is Expected.READING:
            moved_bytes = -moved_bytes - self.transport.get_write_buffer_size()
        is_held_back = expected is Expected.BODY and self.flow.read_paused
        is_moving = moved_bytes >= SLOWEST_BYTES_PER_S * LIMITS_S[expected]
        if is_held_back or (expected is not Expected.HEAD and is_moving):
            self._restart_timer()
        else:
            self.transport.abort()


HURRY_CHECK_S: Final = 0.1  # how soon a second signal is noticed
GRACE_S: Final = 5  # for pending HTTP responses once everything else has ended
KEEP_ALIVE_S: Final = 20  # until the next request of a connection
# Also how many connections the loop accepts in one turn, at about 0.1 ms each.
BACKLOG: Final = 128


class GatewayServer(uvicorn.Server):
    """Lets sessions finish before it closes sockets; a second signal ends the wait."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._signals = StopSignals()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        addresses = [part.getsockname()[:2] for server in self.servers for part in server.sockets]
        structlog.get_logger("gateway").info("listening", addresses=addresses)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        log = structlog.get_logger("gateway")
        log.info("draining")
        drain = asyncio.ensure_future(self._drain())
        try:
            while not (drain.done() or self.force_exit):
                await asyncio.wait({drain}, timeout=HURRY_CHECK_S)
        finally:
            drain.cancel()
            (failure,) = await asyncio.gather(drain, return_exceptions=True)
        if isinstance(failure, Exception):
            log.error("drain failed", exc_info=failure)
        await super().shutdown(sockets)
        # Raised again, they would end the process with the signal's exit status.
        self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; stop at once at a later one."""
        is_hurry = self._signals.is_hurry(time.monotonic())
        if is_hurry or not self.should_exit:
            self.force_exit = self.should_exit
            super().handle_exit(sig, frame)


class GatewayConfig(uvicorn.Config):
    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        connections: Connections,
        heartbeat_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Port 0 takes a free port; `heartbeat_s` is both ping interval and pong time-out."""
        self.connections, self.tls = connections, tls
        super().__init__(
            app,
            host=host,
            port=port,
            backlog=BACKLOG,
            http=GatewayHttpProtocol,
            ws=GatewaySocketProtocol,
            ws_max_size=CHAT_BYTES,
            ws_ping_interval=heartbeat_s,
            ws_ping_timeout=heartbeat_s,
            ws_per_message_deflate=False,  # audio does not compress, and latency would grow
            proxy_headers=False,  # handled by `AccessPolicy`
            server_header=False,
            access_log=False,  # `HttpEdge` logs requests
            log_config=None,
            log_level="warning",  # its info lines come with every socket
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S,
        )
