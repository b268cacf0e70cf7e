"""One client's socket as the relay sees it: whole texts, bounded in size, rate and time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from core.errors import BinaryMessageError, CloseCode, TooBigError
from core.schemas.common import check_json_shape
from gateway_modules.relay.message_type import parse_type
from gateway_modules.web.kinds import SizeLimits
from gateway_modules.web.long_text import read_long
from gateway_modules.web.rates import ByteLease, TokenBucket

MAX_REASON_BYTES: Final = 123  # of a close frame. Source: RFC 6455, section 5.5
SEND_LIMIT_S: Final = 20.0  # for a client to take a message; then it counts as gone
CLOSE_LIMIT_S: Final = 5.0
INLINE_CHARS: Final = 128 * 1024  # what may be read on the loop, a few milliseconds at worst
FIRST_TYPES: Final = frozenset({"prepare", "prefill"})


class ClientGoneError(Exception):
    """The client's socket is closed; nothing will come and nothing can be sent."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        """Keep how it ended; 1006 is without a goodbye (RFC 6455, section 7.4.1)."""
        super().__init__(reason or f"closed with {code}")
        self.code = code


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
    ) -> None:
        """Take over an accepted socket.

        Args:
            websocket: The client's.
            sizes: Longest messages.
            pace: How fast they may come.
            lease: Holds messages until they are passed on; None has no limit.
        """
        self._websocket = websocket
        self._sizes = sizes
        clock = asyncio.get_running_loop().time
        limits = pace or Pace()
        self._messages = TokenBucket(limits.messages_at_once, limits.messages_per_s, clock)
        self._bytes = TokenBucket(limits.bytes_at_once, limits.bytes_per_s, clock)
        self._sending = asyncio.Lock()
        self._lease = lease
        self._is_lost = False

    async def receive(self) -> str:
        """Wait for the next text.

        Raises:
            ClientGoneError: There will be none.
            BinaryMessageError: It is not text.
            TooBigError: It is longer than any message may be, or than one of its type, or has too
                many values for any parser.
            RateLimitedError: As much is held already as may be.
        """
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            raise ClientGoneError()
        event = await self._websocket.receive()
        if event["type"] != "websocket.receive":
            raise ClientGoneError(event.get("code") or 1006, event.get("reason") or "")
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
        if self._is_lost or self._websocket.application_state is not WebSocketState.CONNECTED:
            raise ClientGoneError()
        try:
            async with asyncio.timeout(SEND_LIMIT_S), self._sending:
                await self._websocket.send({"type": "websocket.send", "text": text})
        except TimeoutError:
            self._is_lost = True
            raise ClientGoneError(reason="the client does not read") from None
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            # Servers differ in what they raise when the peer has gone meanwhile.
            self._is_lost = True
            raise ClientGoneError(reason=str(error)) from error

    async def close(self, code: CloseCode, reason: str = "") -> None:
        """Close; harmless if it is closed already."""
        if self._is_lost or self._websocket.application_state is not WebSocketState.CONNECTED:
            return
        self._is_lost = True
        short = reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await self._websocket.close(int(code), short)
        except (TimeoutError, WebSocketDisconnect, OSError, RuntimeError):
            return  # the client was faster, or does not read

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
