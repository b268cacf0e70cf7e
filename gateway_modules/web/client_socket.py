"""The clients' sockets: their kinds, and texts limited in size, rate and time.

A resumable session may use several sockets, one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from core.errors import LOST_CODES, VANISHED, BinaryMessageError, CloseCode, TooBigError
from core.schemas.common import check_json_shape
from core.schemas.limits import MIB
from core.schemas.queue import RequestType, duplex_request_type
from gateway_modules.web.limits import Lease, TokenBucket
from gateway_modules.web.messages import SHORTCUT_MARK, Shortcut, Take, Text, parse_type, read_long

SEND_LIMIT_S: Final = 20.0  # for sending a message; then the client counts as gone
NOT_READ: Final = "the client does not read"
INLINE_CHARS: Final = 128 * 1024  # parsed on the event loop, a few milliseconds at worst
FIRST_TYPES: Final = frozenset({"prepare", "prefill"})
MAX_REASON_BYTES: Final = 123  # of a close frame. Source: RFC 6455, section 5.5
CLOSE_LIMIT_S: Final = 5.0


class SocketKind(StrEnum):
    """The protocol of a socket's path."""

    STREAMING = "streaming"
    CHAT = "chat"
    HALF_DUPLEX = "half_duplex"
    DUPLEX = "duplex"
    REALTIME = "realtime"
    LIVE = "live"

    @property
    def path(self) -> str:
        """The worker's path; for our own protocols also the gateway's, before the session id."""
        return f"/ws/{self.value}"

    @property
    def has_turns(self) -> bool:
        """Whether each turn queues; otherwise the session queues once."""
        return self in (SocketKind.STREAMING, SocketKind.CHAT)

    @property
    def has_events(self) -> bool:
        return self in (SocketKind.REALTIME, SocketKind.LIVE)

    def request_type(self, session_id: str) -> RequestType:
        if self is SocketKind.DUPLEX:
            return duplex_request_type(session_id)
        # Those of the same load on the engine, hence of the same estimate.
        like = {SocketKind.REALTIME: "half_duplex_audio", SocketKind.LIVE: "audio_duplex"}
        return RequestType(like.get(self, self.value))


class ClientGoneError(Exception):
    def __init__(self, reason: str = f"closed with {VANISHED}") -> None:
        super().__init__(reason)


class ResumableSocket:
    """A client's current socket, replaceable within `grace_s` of its loss; 0: not replaceable."""

    def __init__(self, websocket: WebSocket, grace_s: float) -> None:
        self.websocket = websocket
        self.grace_s = grace_s
        self._is_lost = False
        self._is_over = False
        self._uses: set[asyncio.Timeout] = set()  # pending, of the current socket
        self._changed = asyncio.Event()  # set by each change, then replaced

    @property
    def is_open(self) -> bool:
        is_usable = not (self._is_lost or self._is_over)
        return is_usable and self.websocket.application_state is WebSocketState.CONNECTED

    @property
    def shortcut(self) -> Shortcut | None:
        """Bypasses the socket's tasks, if its server supports that."""
        found = self.websocket.scope.get(SHORTCUT_MARK)
        return found if isinstance(found, Shortcut) else None

    @property
    def may_resume(self) -> bool:
        return self.grace_s > 0 and not self._is_over

    async def receive(self) -> Any:  # what ASGI calls a message
        """Wait for the next event; ClientGoneError if the socket is lost, closed or replaced."""
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
        if websocket is self.websocket:
            self.lose(websocket)
        try:
            async with asyncio.timeout(self.grace_s):
                while self.may_resume and websocket is self.websocket:
                    await self._changed.wait()
        except TimeoutError:
            self.end()
        return self.may_resume

    async def replace(self, websocket: WebSocket) -> None:
        """Continue on another socket, and close the previous one if it is still open."""
        before, was_open = self.websocket, self.is_open
        self.websocket, self._is_lost = websocket, False
        self._note_change()
        if was_open:
            await close_quietly(before, CloseCode.REPLACED, "replaced")

    async def wait_until_left(self, websocket: WebSocket) -> None:
        while websocket is self.websocket and not (self._is_lost or self._is_over):
            await self._changed.wait()

    def lose(self, websocket: WebSocket) -> None:
        if websocket is self.websocket and not self._is_lost:
            self._is_lost = True
            self._note_change()

    def end(self) -> None:
        self._is_over = True
        self._note_change()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for use in self._uses:
            if not use.expired():
                use.reschedule(asyncio.get_running_loop().time())


async def close_quietly(websocket: WebSocket, code: CloseCode, reason: str) -> None:
    short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
    try:
        async with asyncio.timeout(CLOSE_LIMIT_S):
            await websocket.close(int(code), short)
    except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
        return


@dataclass(frozen=True)
class Pace:
    """A client's sustained and burst rate; one that sends faster is slowed down by backpressure."""

    messages_per_s: float = 200.0
    messages_at_once: float = 2_000.0
    bytes_per_s: float = 32 * MIB
    bytes_at_once: float = 256 * MIB


class ClientSocket:
    """An accepted client's texts. One task receives, any task sends."""

    def __init__(
        self,
        websocket: WebSocket,
        sizes_bytes: tuple[int, int],
        pace: Pace,
        lease: Lease,
        grace_s: float,
    ) -> None:
        """Accept texts up to the first of `sizes_bytes` of `FIRST_TYPES`, others up to the second.

        `lease` accounts for messages not yet forwarded; `grace_s` is for `ResumableSocket`.
        """
        self.socket = ResumableSocket(websocket, grace_s)
        self._largest_bytes, self._other_bytes = sizes_bytes
        clock = asyncio.get_running_loop().time
        self._messages = TokenBucket(pace.messages_at_once, pace.messages_per_s, clock)
        self._bytes = TokenBucket(pace.bytes_at_once, pace.bytes_per_s, clock)
        self._sending = asyncio.Lock()
        self.lease = lease
        self.pass_on: Take | None = None  # offered short texts while `receive` waits
        self._debt_s = 0.0  # delay that the sender's rate requires

    async def receive(self) -> str:
        """Wait for the next text.

        Raises:
            ClientGoneError: The socket is closed.
            BinaryMessageError: The message is not text.
            TooBigError: It is too long for its type, or has too many JSON values.
            RateLimitedError: The byte budget is used up.
        """
        shortcut = self.socket.shortcut
        if shortcut is not None:
            shortcut.take = self._take
        event = await self.socket.receive()
        parts: list[str] | None = event.get("parts")  # of a long text, see `PARTS_MARK`
        if parts is None and event.get("text") is not None:
            parts = [event["text"]]
        if parts is None:
            raise BinaryMessageError()
        if sum(map(len, parts)) > INLINE_CHARS:
            text, size_bytes = await asyncio.to_thread(self._checked, parts)
        else:
            text, size_bytes = self._checked(parts)
        self.lease.add(size_bytes)
        self._count(size_bytes)
        # Also without a debt: let other tasks run before the next message.
        await asyncio.sleep(self._debt_s)
        self._debt_s = 0.0
        return text

    def _take(self, text: Text) -> bool:
        """Forward a short text at once, unless its sender has to be slowed down."""
        if self._debt_s or len(text) > min(INLINE_CHARS, self._other_bytes):
            return False
        if self.pass_on is None or not self.pass_on(text):
            return False
        self._count(len(text))
        return True

    def _count(self, size_bytes: int) -> None:
        self._debt_s = max(self._messages.borrow_s(1), self._bytes.borrow_s(size_bytes))

    async def send(self, text: str) -> None:
        """Send a text, waiting while the client reads slowly; ClientGoneError if it cannot."""
        websocket = self.socket.websocket
        if not self.socket.is_open:
            raise ClientGoneError()
        try:
            async with self.socket.present(SEND_LIMIT_S), self._sending:
                await websocket.send({"type": "websocket.send", "text": text})
        except TimeoutError:
            if self.socket.is_open and websocket is self.socket.websocket:
                self.socket.lose(websocket)
                await close_quietly(websocket, CloseCode.TRY_LATER, NOT_READ)
            raise ClientGoneError(NOT_READ) from None
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            # What is raised for a lost peer depends on the server.
            self.socket.lose(websocket)
            raise ClientGoneError(str(error)) from error

    def send_now(self, text: Text) -> bool:
        shortcut = self.socket.shortcut
        is_free = self.socket.is_open and not self._sending.locked()
        return is_free and shortcut is not None and shortcut.send(text)

    async def close(self, code: CloseCode, reason: str = "") -> None:
        was_open = self.socket.is_open
        self.socket.end()
        if was_open:
            await close_quietly(self.socket.websocket, code, reason)

    async def refuse(self, text: str, code: CloseCode, reason: str) -> None:
        """Send a last message, if the client is still there, and close."""
        with suppress(ClientGoneError):
            await self.send(text)
            await self.close(code, reason)

    def _checked(self, parts: list[str]) -> tuple[str, int]:
        """Return a message and its size, bytes; only `FIRST_TYPES` may exceed `other_bytes`."""
        size_bytes = sum(map(_size_bytes, parts))
        largest, limit = self._largest_bytes, self._other_bytes
        if size_bytes > largest:
            raise TooBigError(f"The message has {size_bytes} bytes; {largest} are allowed.")
        if len(parts) > 1:
            text = read_long(parts)
        else:
            [text] = parts
            if len(text) > INLINE_CHARS:
                check_json_shape(text)
        if size_bytes > limit and parse_type(text) not in FIRST_TYPES:
            raise TooBigError(f"The message has {size_bytes} bytes; {limit} are allowed.")
        return text, size_bytes


def _size_bytes(part: str) -> int:
    return len(part) if part.isascii() else len(part.encode("utf-8", "surrogatepass"))
