"""Runs the app under uvicorn with limits on frames, pings on the clients' hop, and a drain."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Final

import structlog
import uvicorn
from starlette.types import ASGIApp

from core.stop_signals import StopSignals
from gateway_modules.web.connections import Connections
from gateway_modules.web.http_protocol import GatewayConfig, GatewayHttpProtocol
from gateway_modules.web.socket_server import CHAT_BYTES, GatewaySocketProtocol

HURRY_CHECK_S: Final = 0.1  # how soon a second signal is noticed
GRACE_S: Final = 5  # for HTTP answers under way once everything else has ended
KEEP_ALIVE_S: Final = 20  # for the next request of a connection
# Also how many the loop accepts in one turn; each takes it about 0.1 ms.
BACKLOG: Final = 128


class GatewayServer(uvicorn.Server):
    """Lets running sessions finish before it closes sockets; a second signal ends the wait."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._drain = drain
        self._signals = StopSignals()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        addresses = [part.getsockname()[:2] for server in self.servers for part in server.sockets]
        structlog.get_logger("gateway").info("listening", addresses=addresses)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new connections, drain running sessions, then close everything."""
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
        # Raised once more they would end the program as if it had not finished its work.
        self._captured_signals.clear()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first signal, whichever it is; hurry at a later one."""
        is_hurry = self._signals.is_hurry(time.monotonic())
        if is_hurry or not self.should_exit:
            self.force_exit = self.should_exit
            super().handle_exit(sig, frame)


def server_config(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    connections: Connections,
    heartbeat_s: float,
    certfile: Path | None = None,
    keyfile: Path | None = None,
) -> GatewayConfig:
    """Return how the server is run.

    Args:
        app: What it serves.
        host: Address to bind to.
        port: Port; 0 takes any free one.
        connections: Counts them.
        heartbeat_s: Time between pings, and to wait for pongs.
        certfile: For TLS; None is plain HTTP.
        keyfile: Of the certificate.
    """
    tls = None
    if certfile is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(certfile, keyfile)
    return GatewayConfig(
        app,
        connections=connections,
        tls=tls,
        host=host,
        port=port,
        backlog=BACKLOG,
        http=GatewayHttpProtocol,
        ws=GatewaySocketProtocol,
        ws_max_size=CHAT_BYTES,
        ws_ping_interval=heartbeat_s,
        ws_ping_timeout=heartbeat_s,
        ws_per_message_deflate=False,  # speech does not get smaller, and units would wait
        proxy_headers=False,  # `AccessPolicy` decides which to trust
        server_header=False,
        access_log=False,  # `HttpEdge` writes one line a request
        log_config=None,
        log_level="warning",  # its lines of information come with every socket
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
