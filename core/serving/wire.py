"""Parses and checks the messages of one client, and sends to it; every send has a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from pydantic import TypeAdapter

from core.errors import BinaryMessageError, OmniError, TooBigError
from core.protocols.effects import Close, ServerMessage
from core.protocols.events import ClientMessage, Disconnected, Event, Received, Rejected
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.limits import (
    CHAT_SOCKET_LIMIT_BYTES,
    LIVE_SOCKET_LIMIT_BYTES,
    PREPARE_LIMIT_BYTES,
)
from core.schemas.parsing import parse_message
from core.serving.scheduling import Bound, Scheduler
from core.serving.sockets import Socket, SocketClosedError

SEND_LIMIT_S: Final = 20.0  # ours: for a message to be taken; then the peer counts as gone
MAX_REASON_BYTES: Final = 123  # of a close frame. Source: RFC 6455, section 5.5


@dataclass(frozen=True)
class Endpoint:
    """What one path accepts.

    Attributes:
        parse: text to message; raises an `OmniError`.
        prepare_bytes: longest `prepare`.
        message_bytes: longest message of any other type.
    """

    parse: Callable[[str], ClientMessage]
    prepare_bytes: int
    message_bytes: int

    @property
    def largest_bytes(self) -> int:
        """Longest message of any type."""
        return max(self.prepare_bytes, self.message_bytes)


STREAMING: Final = Endpoint(
    partial(parse_message, TypeAdapter(streaming.WorkerClientMessage)),
    CHAT_SOCKET_LIMIT_BYTES,
    CHAT_SOCKET_LIMIT_BYTES,
)
CHAT: Final = Endpoint(
    partial(parse_message, TypeAdapter(chat.ClientMessage)),
    CHAT_SOCKET_LIMIT_BYTES,
    CHAT_SOCKET_LIMIT_BYTES,
)
HALF_DUPLEX: Final = Endpoint(
    partial(parse_message, TypeAdapter(half_duplex.ClientMessage)),
    PREPARE_LIMIT_BYTES,
    LIVE_SOCKET_LIMIT_BYTES,
)
DUPLEX: Final = Endpoint(
    partial(parse_message, TypeAdapter(duplex.ClientMessage)),
    PREPARE_LIMIT_BYTES,
    LIVE_SOCKET_LIMIT_BYTES,
)


class Wire:
    """A socket that is open, lost, or closed, and never raises."""

    def __init__(
        self,
        socket: Socket,
        endpoint: Endpoint,
        scheduler: Scheduler,
        unix_time_s: Callable[[], float] = time.time,
    ) -> None:
        """Take over an accepted socket.

        Args:
            socket: The client's.
            endpoint: What it may say.
            scheduler: The clock for the limit and `at_s`.
            unix_time_s: The clock for `server_send_ts`.
        """
        self._socket = socket
        self._endpoint = endpoint
        self._scheduler = scheduler
        self._unix_time_s = unix_time_s
        self._bound = Bound(scheduler)
        self._is_lost = False  # nothing can be sent any more
        self._is_over = False  # and there is nothing to close

    @property
    def largest_bytes(self) -> int:
        """Longest message the peer may send."""
        return self._endpoint.largest_bytes

    @property
    def is_lost(self) -> bool:
        """The peer is gone: nothing can be sent any more."""
        return self._is_lost

    async def read(self) -> tuple[Event, int]:
        """Wait for what the client says.

        Returns:
            `Received`, `Rejected` or, as the last, `Disconnected`; and its size in bytes.
        """
        try:
            raw = await self._socket.receive()
        except SocketClosedError as error:
            self._is_over = True
            return self.lose(str(error)), 0
        size_bytes = len(raw) if isinstance(raw, bytes) or raw.isascii() else len(raw.encode())
        return self._understand(raw, size_bytes), size_bytes

    async def send(self, message: ServerMessage) -> None:
        """Send a message; if it cannot be sent in time, the peer is lost."""
        if self._is_lost:
            return
        if isinstance(message, duplex.Result):
            message = message.model_copy(update={"server_send_ts": self._unix_time_s()})
        try:
            work = self._socket.send(message.to_json())
            await self._bound.run(work, SEND_LIMIT_S)
        except (SocketClosedError, TimeoutError) as error:
            self.lose(str(error) or "the client does not read")

    async def close(self, effect: Close) -> None:
        """Close the socket if it is open; a peer that does not answer is not waited for long."""
        if self._is_over:
            return
        self._is_lost = True
        reason = effect.reason.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        try:
            # Not `_bound`: a lost peer's socket has to be closed too.
            work = self._socket.close(int(effect.code), reason)
            await Bound(self._scheduler).run(work, SEND_LIMIT_S)
            self._is_over = True
        except TimeoutError:
            self._is_over = True

    def lose(self, reason: str) -> Disconnected:
        """Give the peer up; return the event that says so."""
        self._is_lost = True
        self._bound.expire()
        return Disconnected(reason, at_s=self._scheduler.now_s())

    def _understand(self, raw: str | bytes, size_bytes: int) -> Event:
        now_s = self._scheduler.now_s()
        try:
            if isinstance(raw, bytes):
                raise BinaryMessageError()
            self._check_size(size_bytes, self._endpoint.largest_bytes)
            message = self._endpoint.parse(raw)
            if message.type != "prepare":
                self._check_size(size_bytes, self._endpoint.message_bytes)
        except OmniError as error:
            return Rejected(error, at_s=now_s)
        return Received(message, at_s=now_s, size_bytes=size_bytes)

    @staticmethod
    def _check_size(size_bytes: int, most_bytes: int) -> None:
        if size_bytes > most_bytes:
            raise TooBigError(f"The message has {size_bytes} bytes; {most_bytes} are allowed.")
