"""One client's socket as the relay sees it: whole texts, bounded in size, rate and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from core.errors import BinaryMessageError, CloseCode, TooBigError
from core.schemas.common import check_json_shape
from gateway_modules.relay.message_type import parse_type
from gateway_modules.relay.returns import ClientGoneError, Returns, close_quietly
from gateway_modules.web.kinds import SizeLimits
from gateway_modules.web.long_text import read_long
from gateway_modules.web.rates import ByteLease, TokenBucket

SEND_LIMIT_S: Final = 20.0  # for a client to take a message; then it counts as gone
INLINE_CHARS: Final = 128 * 1024  # what may be read on the loop, a few milliseconds at worst
FIRST_TYPES: Final = frozenset({"prepare", "prefill"})


@dataclass(frozen=True)
class Pace:
    """How fast a client may send, in the long run and at once.

    A client that sends faster is read more slowly, so the network makes it wait; nothing is lost.

    Attributes:
        messages_per_s: Messages a second.
        messages_at_once: Messages in one go.
        bytes_per_s: Bytes a second.
        bytes_at_once: Bytes in one go.
    """

    messages_per_s: float = 200.0
    messages_at_once: float = 2_000.0
    bytes_per_s: float = 32 * 1024 * 1024
    bytes_at_once: float = 256 * 1024 * 1024


class ClientWire:
    """An accepted socket. One task receives, any task sends."""

    def __init__(
        self,
        websocket: WebSocket,
        sizes: SizeLimits,
        pace: Pace | None = None,
        lease: ByteLease | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Take over an accepted socket.

        Args:
            websocket: The client's.
            sizes: Longest messages.
            pace: How fast they may come.
            lease: Holds messages until they are passed on; None has no limit.
            grace_s: How long to wait for the client to come back on another socket.
        """
        self.returns = Returns(websocket, grace_s)
        self._sizes = sizes
        clock = asyncio.get_running_loop().time
        limits = pace or Pace()
        self._messages = TokenBucket(limits.messages_at_once, limits.messages_per_s, clock)
        self._bytes = TokenBucket(limits.bytes_at_once, limits.bytes_per_s, clock)
        self._sending = asyncio.Lock()
        self._lease = lease

    async def receive(self) -> str:
        """Wait for the next text.

        Raises:
            ClientGoneError: There will be none.
            BinaryMessageError: It is not text.
            TooBigError: It is longer than any message may be, or than one of its type, or has too
                many values for any parser.
            RateLimitedError: As much is held already as may be.
        """
        event = await self.returns.receive()
        parts: list[str] | None = event.get("parts")  # of a long text, see `PARTS_MARK`
        if parts is None and event.get("text") is not None:
            parts = [event["text"]]
        if parts is None:
            raise BinaryMessageError()
        is_long = sum(map(len, parts)) > INLINE_CHARS
        if is_long:
            text, size_bytes = await asyncio.to_thread(self._checked, parts)
        else:
            text, size_bytes = self._checked(parts)
        if self._lease is not None:
            self._lease.add(size_bytes)
        # Without a debt too: others have a turn before the next message is looked at.
        await asyncio.sleep(max(self._messages.borrow_s(1), self._bytes.borrow_s(size_bytes)))
        return text

    def release(self) -> None:
        """What was received is passed on, or of no use any more."""
        if self._lease is not None:
            self._lease.release()

    async def send(self, text: str) -> None:
        """Send a text; waits while the client reads more slowly than we write.

        Raises:
            ClientGoneError: It can never arrive, or was not taken in time.
        """
        websocket = self.returns.websocket
        if not self.returns.is_open:
            raise ClientGoneError()
        try:
            async with self.returns.present(SEND_LIMIT_S), self._sending:
                await websocket.send({"type": "websocket.send", "text": text})
        except TimeoutError:
            self.returns.lose(websocket)
            raise ClientGoneError(reason="the client does not read") from None
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            # Servers differ in what they raise when the peer has gone meanwhile.
            self.returns.lose(websocket)
            raise ClientGoneError(reason=str(error)) from error

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Close; harmless if it is closed already."""
        was_open = self.returns.is_open
        self.returns.end()
        if was_open:
            await close_quietly(self.returns.websocket, code, reason)

    def _checked(self, parts: list[str]) -> tuple[str, int]:
        """Return a message and its size; refuse what is too long or has too many values.

        Only the first message of a session may be longer than the others.
        """
        size_bytes = sum(map(_size_bytes, parts))
        largest, limit = self._sizes.first_bytes, self._sizes.other_bytes
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
