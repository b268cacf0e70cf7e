"""A session's socket that survives the loss of its connection.

Sent messages are numbered and retained, so that another socket can continue where the last one
broke. Reads no message and knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from core.errors import LOST_CODES, CloseCode, SessionExpiredError
from core.protocols.events import MS_PER_S
from core.schemas.limits import MIB
from core.schemas.queue import SessionResumed
from core.serving.wire import Socket, SocketClosedError, loop_time_s

KEPT_CHARS: Final = 8 * MIB  # ours: about a minute of speech
SEND_LIMIT_S: Final = 10.0  # ours: a socket that accepts no message for so long is lost


class SentMessages:
    """The newest messages of a session, numbered from 1.

    Overflow: beyond `most_chars` the oldest are dropped; the newest is always retained.
    """

    def __init__(self, most_chars: int = KEPT_CHARS) -> None:
        self.last_seq = 0  # number of the newest message, 0 before the first
        self._most_chars = most_chars
        self._chars = 0
        self._texts: deque[str] = deque()

    @property
    def first_seq(self) -> int:
        return self.last_seq - len(self._texts) + 1

    def add(self, text: str) -> None:
        """Number a JSON object and retain it."""
        self.last_seq += 1
        numbered = f'{text[:-1]},"seq":{self.last_seq}}}'
        self._texts.append(numbered)
        self._chars += len(numbered)
        while self._chars > self._most_chars and len(self._texts) > 1:
            self._chars -= len(self._texts.popleft())

    def get(self, seq: int) -> str:
        return self._texts[seq - self.first_seq]


@dataclass(eq=False)
class _Attached:
    """One of a session's successive sockets."""

    socket: Socket
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the session uses it no longer
    is_lost: bool = False  # its connection broke
    is_sending: bool = False  # a task is sending on it


class ResumableSocket:
    """A `Socket` over successive connections of the same client.

    One task receives, another one sends, and any number of them may attach a new socket.
    """

    def __init__(self, socket: Socket, grace_s: float, sent: SentMessages | None = None) -> None:
        """A session without a socket is kept for `grace_s`."""
        self._grace_s = grace_s
        self._sent = sent or SentMessages()
        self._attached = _Attached(socket)
        self._next_seq = 1  # of the message that the present socket is sent next
        self._is_over = False
        self._lost_s = 0.0
        self._reading: asyncio.Timeout | None = None
        self._returned = asyncio.Event()
        # Called when the socket is lost (True), and when another one replaces it (False).
        self.on_away: Callable[[bool], None] = lambda is_away: None

    @property
    def is_away(self) -> bool:
        return self._attached.is_lost and not self._is_over

    async def receive(self) -> str | bytes:
        """Return the next message of any of the sockets; see `Socket`."""
        while True:
            attached = self._attached
            if attached.is_lost:
                await self._wait_for_return()
                continue
            try:
                async with asyncio.timeout(None) as self._reading:
                    try:
                        return await attached.socket.receive()
                    finally:
                        self._reading = None
            except TimeoutError:
                continue  # it was replaced, or accepts no more messages
            except SocketClosedError as error:
                if attached is not self._attached:
                    continue
                if error.code not in LOST_CODES:
                    self.end()
                    raise
                self._lose(attached)

    async def send(self, text: str) -> None:
        """Retain a message, and send it if there is a socket; see `Socket`."""
        if self._is_over:
            raise SocketClosedError()
        self._sent.add(text)
        await self._catch_up()

    async def close(self, code: int, reason: str) -> None:
        """End the session's last socket; see `Socket`."""
        attached = self._attached
        self.end()
        if not attached.is_lost:
            await attached.socket.close(code, reason)

    def end(self) -> None:
        """Accept no further socket."""
        self._is_over = True
        self._attached.gone.set()
        self._returned.set()

    async def resume(self, socket: Socket, last_seq: int) -> None:
        """Continue on another socket until that one is replaced, lost or closed.

        The client has received messages up to `last_seq`. Raises `SessionExpiredError` if the
        session is over, or `last_seq` was never sent.
        """
        if last_seq > self._sent.last_seq:
            self.end()  # the client's state cannot be resynchronized
        if self._is_over:
            raise SessionExpiredError()
        before, attached = self._attached, _Attached(socket)
        away_s = loop_time_s() - self._lost_s if before.is_lost else 0.0
        first_seq = max(last_seq + 1, self._sent.first_seq)
        self._attached, self._next_seq = attached, first_seq
        self._interrupt_reading()
        self._returned.set()
        if before.is_lost:
            self.on_away(False)
        greeting = SessionResumed(
            last_seq=self._sent.last_seq,
            lost_messages=first_seq - last_seq - 1,
            away_ms=round(away_s * MS_PER_S),
        )
        async with asyncio.TaskGroup() as both:  # either socket may be slow
            both.create_task(_replace(before))
            await self._catch_up(greeting.to_json())
        await attached.gone.wait()

    async def _catch_up(self, greeting: str = "") -> None:
        """Send what the present socket lacks; for each socket one task does so at a time."""
        attached = self._attached
        if attached.is_sending or attached.is_lost:
            return
        attached.is_sending = True
        try:
            if greeting:
                await self._send_on(attached, greeting)
            while (
                attached is self._attached
                and not attached.is_lost
                and self._next_seq <= self._sent.last_seq
            ):
                self._next_seq = max(self._next_seq, self._sent.first_seq)
                self._next_seq += 1
                await self._send_on(attached, self._sent.get(self._next_seq - 1))
        finally:
            attached.is_sending = False

    async def _send_on(self, attached: _Attached, text: str) -> None:
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await attached.socket.send(text)
        except SocketClosedError:
            return  # `receive` notices it
        except TimeoutError:
            if attached is self._attached:
                self._lose(attached)

    def _lose(self, attached: _Attached) -> None:
        attached.is_lost = True
        self.on_away(True)
        self._lost_s = loop_time_s()
        self._returned.clear()
        attached.gone.set()
        self._interrupt_reading()

    async def _wait_for_return(self) -> None:
        """Wait for another socket; raises `SocketClosedError` after the grace period."""
        try:
            async with asyncio.timeout_at(self._lost_s + self._grace_s):
                await self._returned.wait()
        except TimeoutError:
            self.end()
        if self._is_over:
            raise SocketClosedError(reason="the client did not return")

    def _interrupt_reading(self) -> None:
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(loop_time_s())


async def _replace(before: _Attached) -> None:
    """Close a socket, and only then end its route, which would close it without a code."""
    try:
        if not before.is_lost:
            await before.socket.close(int(CloseCode.REPLACED), "replaced")
    finally:
        before.gone.set()
