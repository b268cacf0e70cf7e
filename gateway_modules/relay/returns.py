"""The sockets one client has in a session, one after the other, as far as it may come back.

Reads nothing and knows no queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from core.errors import LOST_CODES, VANISHED, CloseCode

MAX_REASON_BYTES: Final = 123  # of a close frame. Source: RFC 6455, section 5.5
CLOSE_LIMIT_S: Final = 5.0


class ClientGoneError(Exception):
    """The client's socket is closed; nothing will come and nothing can be sent on it."""

    def __init__(self, code: int = VANISHED, reason: str = "") -> None:
        """Keep how it ended."""
        super().__init__(reason or f"closed with {code}")
        self.code = code


class Returns:
    """A client's present socket, and whether another one may take its place.

    Attributes:
        websocket: The present socket, accepted.
        grace_s: How long to wait for another one; 0: none may come.
    """

    def __init__(self, websocket: WebSocket, grace_s: float) -> None:
        """Begin with a first socket."""
        self.websocket = websocket
        self.grace_s = grace_s
        self._is_lost = False
        self._is_over = False
        self._uses: set[asyncio.Timeout] = set()  # of the present socket, under way
        self._changed = asyncio.Event()  # set by each change, and replaced by another

    @property
    def is_open(self) -> bool:
        """Something can be sent."""
        is_usable = not (self._is_lost or self._is_over)
        return is_usable and self.websocket.application_state is WebSocketState.CONNECTED

    @property
    def may_return(self) -> bool:
        """The session waits, or would wait, for another socket."""
        return self.grace_s > 0 and not self._is_over

    async def receive(self) -> Any:  # what ASGI calls a message
        """Wait for the next event of the present socket.

        Raises:
            ClientGoneError: The socket is lost, closed or replaced.
        """
        websocket = self.websocket
        if self._is_lost or websocket.client_state is not WebSocketState.CONNECTED:
            raise ClientGoneError()
        try:
            async with self.present(None):
                event = await websocket.receive()
        except TimeoutError:
            raise ClientGoneError() from None
        if event["type"] != "websocket.receive":
            code = event.get("code") or VANISHED
            if websocket is self.websocket and code not in LOST_CODES:
                self.end()
            raise ClientGoneError(code, event.get("reason") or "")
        return event

    @asynccontextmanager
    async def present(self, limit_s: float | None) -> AsyncIterator[None]:
        """Use the present socket in the block, for as long as it is present.

        Raises:
            TimeoutError: It is so no more, or the block took longer than `limit_s`.
        """
        async with asyncio.timeout(limit_s) as use:
            self._uses.add(use)
            try:
                yield
            finally:
                self._uses.discard(use)

    async def wait(self, websocket: WebSocket) -> bool:
        """Wait until another socket has taken this one's place; return whether one did."""
        if not self.may_return:
            return False
        if websocket is self.websocket:
            self.lose(websocket)
        try:
            async with asyncio.timeout(self.grace_s):
                while self.may_return and websocket is self.websocket:
                    await self._changed.wait()
        except TimeoutError:
            self.end()
        return self.may_return

    async def replace(self, websocket: WebSocket) -> None:
        """Use another socket from now on, and close the one before if it still lives."""
        before, was_open = self.websocket, self.is_open
        self.websocket, self._is_lost = websocket, False
        self._note_change()
        if was_open:
            await close_quietly(before, CloseCode.REPLACED, "replaced")

    async def wait_until_left(self, websocket: WebSocket) -> None:
        """Wait until the session uses a socket no more."""
        while websocket is self.websocket and not (self._is_lost or self._is_over):
            await self._changed.wait()

    def lose(self, websocket: WebSocket) -> None:
        """Note that a socket is of no use any more."""
        if websocket is self.websocket and not self._is_lost:
            self._is_lost = True
            self._note_change()

    def end(self) -> None:
        """Let no socket come any more."""
        self._is_over = True
        self._note_change()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for use in self._uses:
            if not use.expired():
                use.reschedule(asyncio.get_running_loop().time())


async def close_quietly(websocket: WebSocket, code: CloseCode, reason: str) -> None:
    """Close a socket whose peer may be faster, or may not read."""
    short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await websocket.close(int(code), short)
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
        return
