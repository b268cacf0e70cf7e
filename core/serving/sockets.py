"""What the serve loop needs of a WebSocket, and the adapter for Starlette's. No rules here."""

from __future__ import annotations

from typing import Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState


class SocketClosedError(Exception):
    """The socket is closed, by either side."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        """Keep how it ended; 1006 is without a goodbye (RFC 6455, section 7.4.1)."""
        super().__init__(reason or f"closed with {code}")
        self.code = code


class Socket(Protocol):
    """An accepted WebSocket. One task receives, another one sends."""

    async def receive(self) -> str | bytes:
        """Wait for the next message; bytes mean that the peer sent it as binary.

        Raises:
            SocketClosedError: There will be none.
        """
        ...

    async def send(self, text: str) -> None:
        """Send a message; waits while the peer reads more slowly than we write.

        Raises:
            SocketClosedError: It can never arrive.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close; harmless if it is closed already."""
        ...


class StarletteSocket:
    """Starlette's WebSocket as a `Socket`.

    ASGI has no pings: the server sends them (uvicorn: `ws_ping_interval`, `ws_ping_timeout`) and
    ends the socket when none is answered, which `receive` then tells.
    """

    def __init__(self, websocket: WebSocket) -> None:
        """Take over an accepted socket."""
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        """Wait for the next message.

        Raises:
            SocketClosedError: There will be none.
        """
        if self._websocket.client_state != WebSocketState.CONNECTED:
            raise SocketClosedError()
        event = await self._websocket.receive()
        if event["type"] != "websocket.receive":
            raise SocketClosedError(event.get("code") or 1006, event.get("reason") or "")
        text: str | None = event.get("text")
        payload: bytes | None = event.get("bytes")
        return text if text is not None else payload or b""

    async def send(self, text: str) -> None:
        """Send a message.

        Raises:
            SocketClosedError: It can never arrive.
        """
        if self._websocket.application_state != WebSocketState.CONNECTED:
            raise SocketClosedError()
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            # Servers differ in what they raise when the peer has gone meanwhile.
            raise SocketClosedError(reason=str(error)) from error

    async def close(self, code: int, reason: str) -> None:
        """Close; harmless if it is closed already."""
        if self._websocket.application_state != WebSocketState.CONNECTED:
            return
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, OSError, RuntimeError):
            return  # the peer was faster
