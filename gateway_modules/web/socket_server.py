"""The web server's WebSocket side with the limits of our paths and an end for dead clients."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.protocol import OPEN

from core.errors import VANISHED, CloseCode, RateLimitedError
from core.schemas.limits import (
    CHAT_SOCKET_LIMIT_BYTES,
    EVENT_LIMIT_BYTES,
    MIB,
    PREPARE_LIMIT_BYTES,
)
from gateway_modules.web.kinds import SocketKind
from gateway_modules.web.limits import (
    LEASE_MARK,
    READ_BYTES,
    BoundedReads,
    ByteLease,
    GatewayConfig,
    TokenBucket,
    peer_of,
)
from gateway_modules.web.long_text import JOINED_CHARS, PARTS_MARK

SHORTCUT_MARK: Final = "shortcut"  # key in a socket's scope

Take = Callable[[bytes], bool]
"""Takes a text in UTF-8 at once and returns whether it could."""


@dataclass
class Shortcut:
    send: Take  # a text for the peer
    take: Take | None = None  # a text of the peer; None sends all through the task
    is_open: bool = False  # the task waits for the next text, and nothing is queued before it

    def offer(self, text: bytes) -> bool:
        """Forward a text of one frame; return whether that was possible, else the task gets it."""
        self.is_open = self.is_open and self.take is not None and self.take(text)
        return self.is_open


# A client that stopped reading keeps what it was sent in our buffers; so long may that last.
LINGER_S: Final = 5.0

# One message a little too long is still collected, so that its sender gets the reason.
CHAT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
LIVE_BYTES: Final = PREPARE_LIMIT_BYTES + MIB
EVENT_BYTES: Final = EVENT_LIMIT_BYTES + MIB
LIMITS_BYTES: Final = MappingProxyType(
    {SocketKind.HALF_DUPLEX.path: LIVE_BYTES, SocketKind.DUPLEX.path: LIVE_BYTES}
    | dict.fromkeys(("/v1/realtime", "/realtime", "/v1/live/", "/live/"), EVENT_BYTES)
)

# Reading stops only after whole messages, so frames that complete none are limited by their
# number. An honest client sends a pong every few seconds, and fragments of many kilobytes.
SMALL_FRAME_BYTES: Final = 1024
SMALL_FRAMES_AT_ONCE: Final = 256
SMALL_FRAMES_PER_S: Final = 20

REFUSAL: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# Every fragment but the last. The mask begins anew at each, so this is a multiple of its length.
FRAGMENT_BYTES: Final = 64 * 1024

# Parts of a frame's head. Source: RFC 6455, section 5.2.
FIN: Final = 0x80
OPCODE: Final = 0x0F
MASKED: Final = 0x80
LENGTH: Final = 0x7F
LENGTH_BYTES: Final = (0,) * 126 + (2, 8)  # that follow, by what the first one says
MASK_BYTES: Final = 4
HEAD_BYTES: Final = 2 + 8 + MASK_BYTES  # at most
BINARY: Final = 2  # the last opcode of data; the others are of control frames


class IncomingText:
    """A text message that comes in fragments; each is decoded on its own."""

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._parts: list[str] = []

    def add(self, fragment: bytes, *, is_last: bool) -> None:
        if self._decoder is None:
            if is_last:  # the whole message
                self._parts.append(fragment.decode())
                return
            self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._parts.append(self._decoder.decode(fragment, is_last))

    def fields(self, *, takes_parts: bool) -> dict[str, object]:
        """Return what the app receives: one text, or the parts of a long one."""
        if takes_parts and sum(map(len, self._parts)) > JOINED_CHARS:
            return {"parts": self._parts}
        return {"text": "".join(self._parts)}


class GatewaySocketProtocol(BoundedReads, WebSocketsSansIOProtocol):
    """One client's connection.

    How long a message may be depends on the path, so that a live socket cannot make us buffer
    what only a chat may send; a long message is never handled as a whole; small frames are
    limited in number; an invalid handshake gets a response; a client that reads nothing is
    disconnected.
    """

    config: GatewayConfig

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._peer = peer_of(transport)
        self._small_frames = TokenBucket(SMALL_FRAMES_AT_ONCE, SMALL_FRAMES_PER_S, self.loop.time)
        self._splitter: FrameSplitter | None = None  # there is none before the handshake
        self._message = IncomingText()
        self._shortcut = Shortcut(self._send_now)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.config.connections.leave(self._peer)
        if self.handshake_complete:  # uvicorn would say that the client closed without a code
            self.queue.put_nowait({"type": "websocket.disconnect", "code": VANISHED})
        self._release()
        super().connection_lost(exc)

    @property
    def read_bytes(self) -> int:
        """More inside of a long frame, of which nothing has to be parsed."""
        return READ_BYTES if self._splitter is None else self._splitter.read_bytes

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the client; the first are the whole handshake."""
        lease = self._lease()
        try:
            if lease is not None:
                lease.add(len(data))
        except RateLimitedError as error:
            self._refuse(error.close_code, error.code)
            return
        if self._splitter is not None:
            data = self._splitter.split(data)
        super().data_received(data)
        if not self.handshake_initiated and not self.transport.is_closing():
            self.transport.write(REFUSAL)
            self.transport.close()

    def handle_connect(self, event: Request) -> None:
        """Set the path's limit before any message comes."""
        place = event.path.partition("?")[0]
        limits = [limit for path, limit in LIMITS_BYTES.items() if place.startswith(path)]
        limit_bytes = limits[0] if limits else CHAT_BYTES
        self.conn.max_message_size = limit_bytes
        self._splitter = FrameSplitter(limit_bytes)
        super().handle_connect(event)
        if not self.close_sent:
            self.scope[SHORTCUT_MARK] = self._shortcut  # type: ignore[typeddict-unknown-key]

    async def receive(self) -> Any:  # the server's type of an event is private
        """Return the next message; from then on the app holds its bytes."""
        self._shortcut.is_open = True
        try:
            event = await super().receive()
        finally:
            self._shortcut.is_open = False
        self._release()
        return event

    def handle_text(self, event: Frame) -> None:
        if self._may_come(event) and not (event.fin and self._has_passed(bytes(event.data))):
            self.curr_msg_data_type = "text"
            self._message = IncomingText()
            self._take(event)

    def handle_bytes(self, event: Frame) -> None:
        """Only the end of a binary message matters."""
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
            message |= self._message.fields(takes_parts=PARTS_MARK in self.scope)
        else:
            message["bytes"] = b""  # no socket of ours takes any
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
        """Abort without a closing handshake, which would not be answered either."""
        super().keepalive_timeout()
        self.transport.abort()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        super().on_task_complete(task)
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _take(self, frame: Frame) -> None:
        if self.curr_msg_data_type == "text":
            try:
                self._message.add(bytes(frame.data), is_last=frame.fin)
            except UnicodeDecodeError:
                self._refuse(CloseCode.BAD_PAYLOAD, "The text is not UTF-8.")
                return
        if frame.fin:
            self.send_receive_event_to_app()

    def _may_come(self, frame: Frame | None) -> bool:
        """Count a frame; close the connection if too many are small. None is a control frame."""
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
        """Return what holds the received bytes, once the app has accepted the socket."""
        if not self.handshake_complete:
            return None
        lease = self.scope.get(LEASE_MARK)
        return lease if isinstance(lease, ByteLease) else None

    def _send_now(self, text: bytes) -> bool:
        """Send a text if nothing is buffered before it; return whether it was sent."""
        is_over = self.close_sent or self.disconnected or self.conn.state is not OPEN
        if is_over or not self.writable.is_set():
            return False
        self.conn.send_text(text)
        self.transport.writelines(self.conn.data_to_send())
        return True

    def _has_passed(self, text: bytes) -> bool:
        if not self._shortcut.is_open or self.close_sent:
            return False
        try:
            text.decode()
        except UnicodeDecodeError:
            return False  # and refused
        has_passed = self._shortcut.offer(text)
        if has_passed:
            self._release()
        return has_passed

    def _release(self) -> None:
        lease = self._lease()
        if lease is not None:
            lease.release()

    def _refuse(self, code: CloseCode, reason: str) -> None:
        if not (self.close_sent or self.transport.is_closing()):
            self.conn.fail(code, reason)
            self.handle_parser_exception()


class FrameSplitter:
    """Splits long frames of a client into fragments as the network delivers them."""

    def __init__(self, limit_bytes: int) -> None:
        """A frame longer than `limit_bytes` is not split, so that its head is refused."""
        self._limit_bytes = limit_bytes
        self._head = b""
        self._mask = b""
        self._fin = 0
        self._frame_bytes = 0  # of the current frame, after the current fragment
        self._fragment_bytes = 0  # of the current fragment, still to come

    @property
    def read_bytes(self) -> int:
        """The rest of a fragment in one piece, but few short frames."""
        return max(READ_BYTES, min(self._fragment_bytes, 2 * FRAGMENT_BYTES))

    def split(self, block: bytes) -> bytes:
        """Return the same frames, long ones as fragments; an incomplete head is kept back."""
        if len(block) < self._fragment_bytes:
            self._fragment_bytes -= len(block)
            return block
        made, at = bytearray(), 0
        while at < len(block):
            if self._fragment_bytes:
                payload = block[at : at + self._fragment_bytes]
                made += payload
                at += len(payload)
                self._fragment_bytes -= len(payload)
                if not self._fragment_bytes and self._frame_bytes:
                    made += self._fragment(opcode=0)
            else:
                head = self._head + block[at : at + HEAD_BYTES - len(self._head)]
                size_bytes = _head_bytes(head)
                if len(head) < size_bytes:
                    self._head = head
                    break
                at += size_bytes - len(self._head)
                self._head = b""
                made += self._begin(head[:size_bytes])
        return bytes(made)

    def _begin(self, head: bytes) -> bytes:
        """Return the head of a frame, or of its first fragment."""
        length = head[1] & LENGTH
        if LENGTH_BYTES[length]:
            length = int.from_bytes(head[2 : 2 + LENGTH_BYTES[length]])
        is_short = length < 2 * FRAGMENT_BYTES
        if is_short or length > self._limit_bytes or head[0] & OPCODE > BINARY:
            self._fragment_bytes = length
            return head
        self._fin = head[0] & FIN
        self._mask = head[-MASK_BYTES:] if head[1] & MASKED else b""
        self._frame_bytes = length
        return self._fragment(opcode=head[0] & ~FIN)

    def _fragment(self, opcode: int) -> bytes:
        """Return the head of the next fragment of the current frame."""
        is_last = self._frame_bytes < 2 * FRAGMENT_BYTES
        size_bytes = self._frame_bytes if is_last else FRAGMENT_BYTES
        self._frame_bytes -= size_bytes
        self._fragment_bytes = size_bytes
        first = opcode | self._fin if is_last else opcode
        second = LENGTH | (MASKED if self._mask else 0)
        return bytes([first, second]) + size_bytes.to_bytes(LENGTH_BYTES[LENGTH]) + self._mask


def _head_bytes(head: bytes) -> int:
    """Return the length of a frame's head, by its first two bytes."""
    if len(head) < 2:
        return 2
    mask_bytes = MASK_BYTES if head[1] & MASKED else 0
    return 2 + LENGTH_BYTES[head[1] & LENGTH] + mask_bytes
