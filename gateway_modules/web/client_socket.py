"""The clients' sockets: texts limited in size, rate and time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from core.errors import BinaryMessageError, CloseCode, TooBigError
from core.schemas.common import check_json_shape
from core.schemas.limits import MIB
from core.sockets import ClientGoneError, ReplaceableSocket, close_quietly
from gateway_modules.web.limits import Lease, TokenBucket
from gateway_modules.web.messages import SHORTCUT_MARK, Shortcut, Take, Text, parse_type, read_long

SEND_LIMIT_S: Final = 20.0  # for sending a message; then the client counts as gone
NOT_READ: Final = "the client does not read"
INLINE_CHARS: Final = 128 * 1024  # parsed on the event loop, a few milliseconds at worst
FIRST_TYPES: Final = frozenset({"prepare", "prefill"})


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

        `lease` accounts for messages not yet forwarded; `grace_s` is for `ReplaceableSocket`.
        """
        self.socket = ReplaceableSocket(websocket, grace_s)
        self._largest_bytes, self._other_bytes = sizes_bytes
        clock = asyncio.get_running_loop().time
        self._messages = TokenBucket(pace.messages_at_once, pace.messages_per_s, clock)
        self._bytes = TokenBucket(pace.bytes_at_once, pace.bytes_per_s, clock)
        self._sending = asyncio.Lock()
        self.lease = lease
        self.pass_on: Take | None = None  # offered short texts while `receive` waits
        self._debt_s = 0.0  # delay that the sender's rate requires

    @property
    def _shortcut(self) -> Shortcut | None:
        """Bypasses the socket's tasks, if its server supports that."""
        found = self.socket.websocket.scope.get(SHORTCUT_MARK)
        return found if isinstance(found, Shortcut) else None

    async def receive(self) -> str:
        """Wait for the next text.

        Raises:
            ClientGoneError: The socket is closed.
            BinaryMessageError: The message is not text.
            TooBigError: It is too long for its type, or has too many JSON values.
            RateLimitedError: The byte budget is used up.
        """
        shortcut = self._shortcut
        if shortcut is not None:
            shortcut.take = self._take
        event = await self.socket.receive_event()
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
        shortcut = self._shortcut
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
