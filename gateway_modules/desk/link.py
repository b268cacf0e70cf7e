"""A door's connection to its desk."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import structlog
from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from core.schemas.worker import WORKER_SECRET_HEADER
from core.worker_tls import WORKER_TLS_NAME
from gateway_modules.desk.messages import (
    DOOR_ID,
    DOOR_PATH,
    FROM_DESK,
    FROM_DOOR,
    FromDesk,
    FromDoor,
    Welcome,
)
from settings.workers import WorkerPlace

RETRY_S: Final = 0.5  # between two tries to reach the desk
OPEN_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
PINGS_A_TIMEOUT: Final = 4
MESSAGE_MAX_BYTES: Final = 64 * 1024 * 1024  # ours: 100,000 waiting tickets in one text
DOOR_ID_BYTES: Final = 8
LOG: Final = structlog.get_logger("door")


class DeskLink:
    """The door's one connection to its desk, made again whenever it is lost."""

    def __init__(
        self, desk: WorkerPlace, *, secret: str, heartbeat_s: float, tls: ssl.SSLContext | None
    ) -> None:
        """Connect to nothing yet.

        Args:
            desk: Where it listens.
            secret: Shown to the desk.
            heartbeat_s: How long the desk may leave a ping unanswered, s.
            tls: What its certificate is checked against; None: it serves none.
        """
        self.is_open = False
        self._url = f"{'wss' if tls else 'ws'}://{desk.netloc}{DOOR_PATH}"
        self._headers = {
            WORKER_SECRET_HEADER: secret,
            DOOR_ID: secrets.token_hex(DOOR_ID_BYTES),
        }
        self._heartbeat_s = heartbeat_s
        self._tls = tls
        self._outbox: list[FromDoor] = []
        self._wake = asyncio.Event()

    def send(self, message: FromDoor) -> None:
        """Send soon; while the desk is away nothing is sent, nor kept for later."""
        if self.is_open:
            self._outbox.append(message)
            self._wake.set()

    async def run(
        self,
        begin: Callable[[Welcome], Iterable[FromDoor]],
        handle: Callable[[FromDesk], None],
        lose: Callable[[], None],
    ) -> None:
        """Connect, again and again, until cancelled.

        Args:
            begin: Called once the desk is there; returns what it is to know.
            handle: Takes each message.
            lose: Called when the desk is away; `begin` may follow.
        """
        problem = ""
        while True:
            try:
                async with self._connected() as socket:
                    [welcome] = FROM_DESK.validate_json(await socket.recv(decode=False))
                    assert isinstance(welcome, Welcome), "a desk welcomes its doors first"
                    problem, self.is_open = "", True
                    LOG.info("desk connected")
                    for message in begin(welcome):
                        self.send(message)
                    await self._serve(socket, handle)
            except (OSError, TimeoutError, WebSocketException, ValidationError) as error:
                if self.is_open or str(error) != problem:
                    LOG.warning("desk away", reason=str(error))
                problem = str(error)
            finally:
                self.is_open = False
                self._outbox.clear()
                lose()
            await asyncio.sleep(RETRY_S)

    async def _serve(self, socket: ClientConnection, handle: Callable[[FromDesk], None]) -> None:
        writer = asyncio.create_task(self._write(socket), name="desk writer")
        try:
            while True:
                for message in FROM_DESK.validate_json(await socket.recv(decode=False)):
                    handle(message)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self, socket: ClientConnection) -> None:
        with suppress(ConnectionClosed):  # the reader finds that out too
            while True:
                await self._wake.wait()
                self._wake.clear()
                messages, self._outbox = self._outbox, []
                await socket.send(FROM_DOOR.dump_json(messages), text=True)

    def _connected(self) -> connect:
        return connect(
            self._url,
            additional_headers=self._headers,
            compression=None,
            proxy=None,
            ssl=self._tls,
            server_hostname=WORKER_TLS_NAME if self._tls else None,
            open_timeout=OPEN_TIMEOUT_S,
            close_timeout=CLOSE_TIMEOUT_S,
            ping_interval=self._heartbeat_s / PINGS_A_TIMEOUT,
            ping_timeout=self._heartbeat_s,
            max_size=MESSAGE_MAX_BYTES,
        )
