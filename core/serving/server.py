"""The HTTP server of a worker: it lets running sessions end before it closes their sockets."""

from __future__ import annotations

import asyncio
import socket
import time
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI

from config import Settings
from core.errors import ShuttingDownError
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB
from core.schemas.worker import RESTART_EXIT_CODE
from core.serving.session_server import SessionServer
from core.stop_signals import StopSignals

# A message a little too big is still read, so that its sender gets the reason.
SOCKET_LIMIT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
SHUTDOWN_LIMIT_S: Final = 5  # for the last answers to be sent


class DrainingServer(uvicorn.Server):
    """Lets running sessions end before it closes their sockets."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_limit_s: float) -> None:
        """Serve by a configuration.

        Args:
            config: uvicorn's.
            app: The application.
            drain_limit_s: How long sessions may go on after a stop was asked for.
        """
        super().__init__(config)
        self._app = app
        self._drain_limit_s = drain_limit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._signals = StopSignals()
        self.exit_code = 0

    @property
    def sessions(self) -> SessionServer:
        """The application's sessions; there are some while it runs."""
        sessions: SessionServer = self._app.state.sessions
        return sessions

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self.sessions.begin_restart = self.begin_restart

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is left."""
        if self._draining is not None:
            await self._draining
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at once at one that is sent later."""
        is_hurry = self._signals.is_hurry(time.monotonic())
        if self._loop is not None and (is_hurry or self._draining is None):
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Begin to end; asked again, do not wait any longer."""
        if self._draining is not None or not self.started:
            self.should_exit = True
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    def begin_restart(self) -> None:
        """Begin to end as at a signal, and tell the launcher to start the program again.

        Raises:
            ShuttingDownError: It is ending already.
        """
        if self._draining is not None or self.should_exit:
            raise ShuttingDownError()
        self.exit_code = RESTART_EXIT_CODE
        self.begin_drain()

    async def _drain(self) -> None:
        try:
            await self.sessions.drain(self._drain_limit_s)
        finally:
            self.should_exit = True


def make_server(app: FastAPI, settings: Settings, host: str, port: int) -> DrainingServer:
    """Return what serves a worker's application.

    Args:
        app: Of `create_app`.
        settings: The configuration.
        host: Address to bind to.
        port: Port to bind to.
    """
    heartbeat_s = settings.limits.heartbeat_s
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        ws="websockets-sansio",  # the one of uvicorn's that holds back too fast a sender
        ws_max_size=SOCKET_LIMIT_BYTES,
        ws_ping_interval=heartbeat_s,
        ws_ping_timeout=heartbeat_s,
        ws_per_message_deflate=False,  # between processes of ours it costs more than it saves
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )
    return DrainingServer(config, app, settings.service.drain_timeout_s)
