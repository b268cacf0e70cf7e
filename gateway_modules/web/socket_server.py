"""The server's WebSocket protocol: per-path limits, backpressure, and the end of dead clients."""

from __future__ import annotations

import asyncio
import codecs
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import OPEN

from core.errors import VANISHED, CloseCode, RateLimitedError
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, EVENT_LIMIT_BYTES, MIB, PREPARE_LIMIT_BYTES
from core.schemas.queue import SocketKind
from gateway_modules.web import limits
from gateway_modules.web import messages as frames

# How long data for a client that stopped reading may stay in our buffers.
LINGER_S: Final = 5.0

# A message slightly too long is still received, so that its sender gets the reason.
CHAT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
LIVE_BYTES: Final = PREPARE_LIMIT_BYTES + MIB
EVENT_BYTES: Final = EVENT_LIMIT_BYTES + MIB
LIMITS_BYTES: Final = MappingProxyType(
    {SocketKind.HALF_DUPLEX.path: LIVE_BYTES, SocketKind.DUPLEX.path: LIVE_BYTES}
    | dict.fromkeys(("/v1/realtime", "/realtime", "/v1/live/", "/live/"), EVENT_BYTES)
)

# Reading pauses only after whole messages, so frames that complete none are limited in number.
# A normal client sends a pong every few seconds, and fragments of many kilobytes.
SMALL_FRAME_BYTES: Final = 1024
SMALL_FRAMES_AT_ONCE: Final = 256
SMALL_FRAMES_PER_S: Final = 20

REFUSAL: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class GatewaySocketProtocol(limits.BoundedReads, WebSocketsSansIOProtocol):
    """A client's connection.

    The size limit depends on the path; long messages are handled in parts; small frames are
    rate-limited; a client that does not read is disconnected.
    """

    config: Any  # the server's `GatewayConfig`, whose module imports this one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer = limits.peer_of(transport)
        rate = SMALL_FRAMES_AT_ONCE, SMALL_FRAMES_PER_S
        self._small_frames = limits.TokenBucket(*rate, self.loop.time)
        self._splitter: frames.FrameSplitter | None = None  # None before the handshake
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._parts: list[str] = []  # of the current text, which may come in fragments
        self._is_partial = False  # the current message is incomplete
        self._shortcut = frames.Shortcut(self._send_now)
        self._next_bytes = limits.READ_BYTES  # size of the next read
        self._unparsed = b""  # rest of a read, for later turns of the loop
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.connections.leave(self._peer)
        if self.handshake_complete:  # uvicorn would report a close without a code
            self.queue.put_nowait({"type": "websocket.disconnect", "code": VANISHED})
        self._release()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        while self._unparsed:
            self._parse_rest()
        super().eof_received()

    @property
    def read_bytes(self) -> int:
        """More within a long frame, and after one, since another is likely to follow."""
        if self._splitter is None:
            return limits.READ_BYTES
        return max(self._splitter.read_bytes, self._next_bytes)

    def data_received(self, data: bytes) -> None:
        """Handle received bytes; the first call has the whole handshake."""
        lease = self._lease()
        try:
            if lease is not None:
                lease.add(len(data))
        except RateLimitedError as error:
            self._refuse(error.close_code, error.code)
            return
        if self._unparsed:
            self._unparsed += data
        elif self._splitter is None:
            super().data_received(data)
            if not self.handshake_initiated and not self.transport.is_closing():
                self.transport.write(REFUSAL)
                self.transport.close()
        else:
            self._next_bytes = limits.READ_BYTES
            if not self._passes_whole(data):
                self._parse(data)

    def _parse(self, data: bytes) -> None:
        """Parse up to `READ_BYTES` of short frames; the rest is left for the next turn."""
        assert self._splitter is not None, "frames come after the handshake"
        limit_bytes = limits.READ_BYTES
        while data and self.conn.parser_exc is None:
            part, data = data[:limit_bytes], data[limit_bytes:]
            super().data_received(self._splitter.split(part))
            limit_bytes = self._splitter.read_bytes
            if data and limit_bytes == limits.READ_BYTES:
                self._unparsed = data
                self.loop.call_soon(self._parse_rest)
                return

    def _parse_rest(self) -> None:
        data, self._unparsed = self._unparsed, b""
        self._parse(data)

    def _passes_whole(self, block: bytes) -> bool:
        splitter = self._splitter
        if not self._shortcut.is_open or splitter is None or splitter.is_inside or self._is_partial:
            return False
        text = frames.whole_text(block, is_masked=True)
        return text is not None and self._has_passed(text)

    def handle_connect(self, event: Request) -> None:
        place = event.path.partition("?")[0]
        found = [limit for path, limit in LIMITS_BYTES.items() if place.startswith(path)]
        limit_bytes = found[0] if found else CHAT_BYTES
        self.conn.max_message_size = limit_bytes
        self._splitter = frames.FrameSplitter(limit_bytes)
        super().handle_connect(event)
        if not self.close_sent:
            self.scope[frames.SHORTCUT_MARK] = self._shortcut  # type: ignore[typeddict-unknown-key]

    async def receive(self) -> Any:  # the server's type of an event is private
        """Return the next message; its bytes are then accounted for by the app."""
        self._shortcut.is_open = True
        try:
            event = await super().receive()
        finally:
            self._shortcut.is_open = False
        self._release()
        return event

    async def send(self, message: Any) -> None:  # the server's type of a message is private
        """Send a message; uvicorn reports a handshake that the application denies as an error."""
        await super().send(message)
        self.handshake_complete |= self.close_sent

    def handle_text(self, event: Frame) -> None:
        if self._may_come(event) and not (event.fin and self._has_passed(bytes(event.data))):
            self.curr_msg_data_type = "text"
            self._decoder, self._parts = codecs.getincrementaldecoder("utf-8")(), []
            self._take(event)

    def handle_bytes(self, event: Frame) -> None:
        """Binary messages are refused later; only their end matters."""
        if self._may_come(event):
            self.curr_msg_data_type = "bytes"
            self._take(event)

    def handle_cont(self, event: Frame) -> None:
        if self._may_come(event):
            self._take(event)

    def send_receive_event_to_app(self) -> None:
        """Queue a message, and pause reading until the app has received it."""
        if self.close_sent:
            return
        message: Any = {"type": "websocket.receive"}
        if self.curr_msg_data_type == "text":
            is_long = sum(map(len, self._parts)) > frames.JOINED_CHARS
            takes_parts = is_long and frames.PARTS_MARK in self.scope
            message |= {"parts": self._parts} if takes_parts else {"text": "".join(self._parts)}
        else:
            message["bytes"] = b""  # none of our protocols accepts binary messages
        self._shortcut.is_open = False
        self.queue.put_nowait(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    def handle_ping(self) -> None:
        if self._may_come(None):
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._may_come(None):
            super().handle_pong(event)

    def keepalive_timeout(self) -> None:
        """Abort without a closing handshake, which would not be answered."""
        super().keepalive_timeout()
        self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _take(self, frame: Frame) -> None:
        self._is_partial = not frame.fin
        if self.curr_msg_data_type == "text":
            try:
                self._parts.append(self._decoder.decode(bytes(frame.data), frame.fin))
            except UnicodeDecodeError:
                self._refuse(CloseCode.BAD_PAYLOAD, "The text is not UTF-8.")
                return
        if frame.fin:
            self.send_receive_event_to_app()

    def _may_come(self, frame: Frame | None) -> bool:
        """Count a frame, None for a control frame; close the connection if too many are small."""
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

    def _lease(self) -> limits.Lease | None:
        if not self.handshake_complete:
            return None
        if self.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return None  # after an invalid handshake there is no scope
        lease = self.scope.get(limits.LEASE_MARK)
        return lease if isinstance(lease, limits.Lease) else None

    def _send_now(self, text: frames.Text) -> bool:
        is_over = self.close_sent or self.disconnected or self.conn.state is not OPEN
        if is_over or not self.writable.is_set():
            return False
        self.conn.send_text(text)
        self.transport.writelines(self.conn.data_to_send())
        return True

    def _has_passed(self, text: frames.Text) -> bool:
        if not self._shortcut.is_open or self.close_sent or self.conn.state is not OPEN:
            return False
        try:
            bytes(text).decode()
        except UnicodeDecodeError:
            return False  # refused by the regular path
        has_passed = self._shortcut.offer(text)
        if has_passed:
            self._release()
            if len(text) > limits.READ_BYTES:
                self._next_bytes = 2 * frames.FRAGMENT_BYTES
        return has_passed

    def _release(self) -> None:
        lease = self._lease()
        if lease is not None:
            lease.release()

    def _refuse(self, code: CloseCode, reason: str) -> None:
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(code, reason)
            self.handle_parser_exception()
