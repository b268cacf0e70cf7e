"""A session's socket that survives the loss of its connection.

Sent messages are numbered and retained, so that another socket can continue where the last one
broke. Reads no message and knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from starlette.websockets import WebSocket

from core.errors import LOST_CODES, VANISHED, CloseCode, SessionExpiredError
from core.protocols.events import MS_PER_S
from core.schemas.limits import MIB
from core.schemas.queue import SessionResumed
from core.serving.wire import StarletteSocket, loop_time_s, message_in
from core.sockets import NO_STATUS, ClientGoneError, ReplaceableSocket, close_quietly

KEPT_CHARS: Final = 8 * MIB  # ours: about a minute of speech
SEND_LIMIT_S: Final = 10.0  # ours: a socket that accepts no message for so long is lost
# Our own peers always close with a code; uvicorn reports a lost one without.
BEGUN_LOST_CODES: Final = LOST_CODES | {NO_STATUS}


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


class ResumableSocket(ReplaceableSocket):
    """A `Socket` over successive connections of the same client.

    One task receives, another one sends, and any number of them may attach a new connection.
    """

    # A gateway that gives up while it connects vanishes too; then there is nothing to continue.
    lost_codes = LOST_CODES - {VANISHED}

    def __init__(
        self, websocket: WebSocket, grace_s: float, sent: SentMessages | None = None
    ) -> None:
        """A session without a connection is kept for `grace_s`."""
        super().__init__(websocket, grace_s)
        self._sent = sent or SentMessages()
        self._next_seq = 1  # of the message that the present connection is sent next
        self._sends_on: WebSocket | None = None  # a task is sending on it
        self._left = asyncio.Event()  # the session uses the present connection no longer
        self._lost_s = 0.0
        # Called when the connection is lost (True), and when another one replaces it (False).
        self.on_away: Callable[[bool], None] = lambda is_away: None

    @property
    def is_away(self) -> bool:
        return self.is_lost and not self.is_over

    async def receive(self) -> str | bytes:
        """Return the next message of any of the connections; see `Socket`."""
        while True:
            websocket = self.websocket
            try:
                event = await self.receive_event()
                self.lost_codes = BEGUN_LOST_CODES
                return message_in(event)
            except ClientGoneError:
                if self.is_over:
                    raise
                if not await self.wait(websocket):
                    self.end()
                    raise ClientGoneError("the client did not return") from None

    async def send(self, text: str) -> None:
        """Retain a message, and send it if there is a connection; see `Socket`."""
        if self.is_over:
            raise ClientGoneError()
        self.lost_codes = BEGUN_LOST_CODES
        self._sent.add(text)
        await self._catch_up()

    async def resume(self, websocket: WebSocket, last_seq: int) -> None:
        """Continue on another connection until that one is replaced, lost or closed.

        The client has received messages up to `last_seq`. Raises `SessionExpiredError` if the
        session is over, or `last_seq` was never sent.
        """
        if last_seq > self._sent.last_seq:
            self.end()  # the client's state cannot be resynchronized
        if self.is_over:
            raise SessionExpiredError()
        was_lost, was_left, left = self.is_lost, self._left, asyncio.Event()
        before, self._left = self.swap(websocket), left
        self._next_seq = first_seq = max(last_seq + 1, self._sent.first_seq)
        if was_lost:
            self.on_away(False)
        greeting = SessionResumed(
            last_seq=self._sent.last_seq,
            lost_messages=first_seq - last_seq - 1,
            away_ms=round((loop_time_s() - self._lost_s) * MS_PER_S) if was_lost else 0,
        )
        async with asyncio.TaskGroup() as both:  # either connection may be slow
            both.create_task(_leave(before, was_left))
            await self._catch_up(greeting.to_json())
        await left.wait()

    async def close(self, code: int, reason: str) -> None:
        """Close the present connection, and end the session; see `Socket`."""
        is_lost = self.is_lost
        self.end()
        if not is_lost:
            await close_quietly(self.websocket, code, reason)

    def lose(self, websocket: WebSocket) -> None:
        if websocket is self.websocket and not self.is_lost:
            super().lose(websocket)
            self._lost_s = loop_time_s()
            self._left.set()
            self.on_away(True)

    def end(self) -> None:
        super().end()
        self._left.set()

    async def _catch_up(self, greeting: str = "") -> None:
        """Send what the present connection lacks; on each one task does so at a time."""
        websocket = self.websocket
        if self._sends_on is websocket or self.is_lost:
            return
        self._sends_on = websocket
        try:
            if greeting:
                await self._send_now(greeting)
            while (
                websocket is self.websocket
                and not self.is_lost
                and self._next_seq <= self._sent.last_seq
            ):
                self._next_seq = max(self._next_seq, self._sent.first_seq) + 1
                await self._send_now(self._sent.get(self._next_seq - 1))
        finally:
            if self._sends_on is websocket:
                self._sends_on = None

    async def _send_now(self, text: str) -> None:
        websocket = self.websocket
        try:
            async with asyncio.timeout(SEND_LIMIT_S):
                await StarletteSocket(websocket).send(text)
        except ClientGoneError:
            return  # `receive` notices it
        except TimeoutError:
            self.lose(websocket)


async def _leave(websocket: WebSocket | None, left: asyncio.Event) -> None:
    """Close a connection that is open; only then end its route, which would give no code."""
    try:
        if websocket is not None:
            await close_quietly(websocket, CloseCode.REPLACED, "replaced")
    finally:
        left.set()
