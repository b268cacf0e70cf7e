"""WebSockets of the gateway and of workers that another connection of the same peer may replace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from core.errors import LOST_CODES, VANISHED, CloseCode

NO_STATUS: Final = 1005  # of a close frame without a code. Source: RFC 6455, section 7.4.1
MAX_REASON_BYTES: Final = 123  # of a close frame. Source: RFC 6455, section 5.5
CLOSE_LIMIT_S: Final = 5.0  # for a peer to take the close frame


class ClientGoneError(Exception):
    """The socket is closed, lost, or replaced by another one."""

    def __init__(self, reason: str = f"closed with {VANISHED}") -> None:
        super().__init__(reason)


class ReplaceableSocket:
    """A peer's current WebSocket, replaceable within `grace_s` of its loss; 0: not replaceable."""

    lost_codes = LOST_CODES
    """Close codes after which the peer may return."""

    def __init__(self, websocket: WebSocket, grace_s: float) -> None:
        self.websocket = websocket
        self.grace_s = grace_s
        self.is_lost = False  # the current socket
        self.is_over = False  # no further socket is accepted
        self._uses: set[asyncio.Timeout] = set()  # pending, of the current socket
        self._changed = asyncio.Event()  # set by each change, then replaced

    @property
    def is_open(self) -> bool:
        is_usable = not (self.is_lost or self.is_over)
        return is_usable and self.websocket.application_state is WebSocketState.CONNECTED

    @property
    def may_resume(self) -> bool:
        return self.grace_s > 0 and not self.is_over

    async def receive_event(self) -> Any:  # what ASGI calls a message
        """Wait for the next event; ClientGoneError if the socket is lost, closed or replaced."""
        websocket = self.websocket
        if websocket.client_state is not WebSocketState.CONNECTED:
            raise ClientGoneError()
        try:
            # After a failed send there may be messages, and the reason why the peer has left.
            async with self.present(0 if self.is_lost else None):
                event = await websocket.receive()
        except TimeoutError:
            raise ClientGoneError() from None
        if event["type"] != "websocket.receive":
            code = event.get("code") or VANISHED
            if websocket is self.websocket and code not in self.lost_codes:
                self.end()
            raise ClientGoneError(event.get("reason") or f"closed with {code}")
        return event

    @asynccontextmanager
    async def present(self, limit_s: float | None) -> AsyncIterator[None]:
        """Use the current socket in the block; TimeoutError when it is replaced or too slow."""
        async with asyncio.timeout(limit_s) as use:
            self._uses.add(use)
            try:
                yield
            finally:
                self._uses.discard(use)

    async def wait(self, websocket: WebSocket) -> bool:
        """Wait for a socket in place of this one; False if none comes in time."""
        if not self.may_resume:
            return False
        self.lose(websocket)
        try:
            async with asyncio.timeout(self.grace_s):
                while self.may_resume and websocket is self.websocket:
                    await self._changed.wait()
        except TimeoutError:
            self.end()
        return self.may_resume

    def swap(self, websocket: WebSocket) -> WebSocket | None:
        """Continue on another socket; return the previous one if it is open."""
        before = self.websocket if self.is_open else None
        self.websocket, self.is_lost = websocket, False
        self._note_change()
        return before

    async def replace(self, websocket: WebSocket) -> None:
        """Continue on another socket, and close the previous one if it is still open."""
        if (before := self.swap(websocket)) is not None:
            await close_quietly(before, CloseCode.REPLACED, "replaced")

    async def wait_until_left(self, websocket: WebSocket) -> None:
        while websocket is self.websocket and not (self.is_lost or self.is_over):
            await self._changed.wait()

    def lose(self, websocket: WebSocket) -> None:
        if websocket is self.websocket and not self.is_lost:
            self.is_lost = True
            self._note_change()

    def end(self) -> None:
        self.is_over = True
        self._note_change()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for use in self._uses:
            if not use.expired():
                use.reschedule(asyncio.get_running_loop().time())


async def close_quietly(websocket: WebSocket, code: int, reason: str) -> None:
    short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await websocket.close(int(code), short)
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
        return  # the peer has closed it
