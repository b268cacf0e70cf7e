"""Connection of a session: opens, reads and reopens its socket.

A session with `?resumable=1` continues over another socket, and a place in the queue is kept:
docs/protocol/queue.md. Unread events wait in a bounded inbox.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import chain, repeat
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from minicpmo_live.errors import ConnectionLostError, LiveError, ProtocolError, ServerError
from minicpmo_live.events import (
    NESTED,
    ErrorMessage,
    QueueDone,
    QueueUpdate,
    SessionResumable,
    SessionResumed,
)

INBOX_EVENTS: Final = 256
MAX_BYTES: Final = 64 * 1024 * 1024  # of a message, as in the server
OPEN_LIMIT_S: Final = 60.0
CLOSE_LIMIT_S: Final = 5.0
SEND_LIMIT_S: Final = 20.0  # as the library waits for a pong
RETRY_S: Final = (0.2, 0.5, 1.0, 2.0)  # delay before each attempt; the last for all further ones
# Close codes after which a session may be resumed: 1006 vanished, 1012 restarted.
# Source: RFC 6455, section 7.4.1, and its registry.
LOST_CODES: Final = frozenset({1001, 1006, 1011, 1012})
NORMAL_CLOSURE: Final = 1000
VANISHED: Final = 1006
QUEUE_POSITION_LIFE_S: Final = 60.0  # how long the server keeps it without a socket
UNREACHABLE: Final = (OSError, WebSocketException)  # the first includes timeouts

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The socket broke; the client reconnects, and `session_resumed` follows.

    In the queue, `queued` or `queue_update` follows instead.
    """

    grace_s: float  # how long the session or its place is kept
    type: Literal["connection_lost"] = "connection_lost"


@dataclass(frozen=True)
class Address:
    """Address of a session's socket without query; `tls` None uses the system's default."""

    url: str
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] | None = None


class TimedConnection(ClientConnection):
    """A connection that is lost when the server accepts nothing for `SEND_LIMIT_S`."""

    async def drain(self) -> None:
        # None of the library's limits covers this wait: behind the full buffer of a server that
        # vanished, a ping is never sent and a close never ends.
        limit_s = self.loop.time() + SEND_LIMIT_S
        async with asyncio.timeout_at(self.close_deadline or limit_s):
            await super().drain()


class Inbox(Generic[Event]):
    """Unread events.

    Overflow: at `INBOX_EVENTS` the reader waits, so that TCP slows the server down. A newer queue
    position replaces an older one.
    """

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._changed = asyncio.Condition()
        self._is_ended = False
        self._error: LiveError | None = None

    async def put(self, event: Event) -> None:
        """Add an event once there is room; after the end it is dropped."""
        async with self._changed:
            if isinstance(event, QueueUpdate) and self._events:
                if isinstance(self._events[-1], QueueUpdate):
                    self._events.pop()
            await self._changed.wait_for(lambda: len(self._events) < INBOX_EVENTS or self._is_ended)
            if not self._is_ended:
                self._events.append(event)
                self._changed.notify_all()

    async def get(self) -> Event | None:
        """Return the next event, None at the end; raises the session's final error."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._events or self._is_ended)
            if self._events:
                event = self._events.popleft()
                self._changed.notify_all()
                return event
            error, self._error = self._error, None
            if error is not None:
                raise error
            return None

    async def end(self, error: LiveError | None = None) -> None:
        """Accept no more events; only the first end counts."""
        async with self._changed:
            if not self._is_ended:
                self._is_ended, self._error = True, error
                self._changed.notify_all()


@dataclass
class _ResumeState:
    """State for continuing over another socket."""

    offer: SessionResumable | None = None  # of a session that can be resumed
    last_seq: int = 0  # of the newest message
    ticket: str | None = None  # of a place in the queue
    request: Mapping[str, Any] | None = None  # to be sent again. Any: JSON.

    @property
    def kept_s(self) -> float:
        """How long the server keeps the session or its place without a socket."""
        if self.offer is not None:
            return self.offer.grace_s
        return QUEUE_POSITION_LIFE_S if self.ticket else 0.0

    @property
    def query(self) -> dict[str, str]:
        query = {"ticket": self.ticket} if self.ticket else {}
        if self.offer is not None:
            query |= {"resume_token": self.offer.resume_token, "last_seq": str(self.last_seq)}
        return query


class Link(Generic[Event]):
    """One session's connection to the server."""

    def __init__(
        self,
        address: Address,
        kinds: Mapping[str, type[Event]],
        on_event: Callable[[Event], Awaitable[bool]],
        *,
        is_resumable: bool,
    ) -> None:
        """Connect later, in `open`.

        `kinds` are message classes by type; other messages are ignored. `on_event` is called first
        with each event and returns whether it was the session's last.
        """
        self.inbox: Inbox[Event | ConnectionLost | SessionResumed] = Inbox()
        self._address = address
        self._kinds = kinds
        self._on_event = on_event
        self._query = {"resumable": "1"} if is_resumable else {}
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._resume = _ResumeState()
        self._last_error: ServerError | None = None
        self._is_heard = True  # the server does not drop what is sent now
        self._is_over = False

    async def open(self) -> None:
        """Connect; a ConnectionLostError if the server cannot be reached."""
        if self._reader is not None:
            raise LiveError("a session can be used once; make another one")
        try:
            self._socket = await self._connect()
        except UNREACHABLE as error:
            raise ConnectionLostError(f"{self._address.url}: {error}") from error
        self._reader = asyncio.create_task(self._read(self._socket), name="minicpmo_live reader")

    # Any: a value of JSON.
    async def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; without a session's connection it is dropped, and False returned."""
        if self._socket is None or self._is_over or not self._is_heard:
            return False
        try:
            await self._socket.send(json.dumps(message, separators=(",", ":")))
        except ConnectionClosed:
            return False
        return True

    # Any: a value of JSON.
    async def request(self, message: Mapping[str, Any]) -> None:
        """Send a request that may be queued; it is sent again after a reconnect."""
        self._resume.request = message
        await self.send(message)

    @property
    def has_ended(self) -> bool:
        return self._reader is None or self._reader.done()

    async def wait_for(self, event: asyncio.Event) -> bool:
        """Wait for the event or the end of the session; return whether the event happened."""
        if self._reader is None:
            raise LiveError("a session can be used inside an `async with` statement only")
        waiting = asyncio.create_task(event.wait())
        try:
            await asyncio.wait([waiting, self._reader], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        return event.is_set()

    async def wait_for_end(self, limit_s: float) -> None:
        """Drop events until the session has ended."""
        await self.inbox.end()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=limit_s)

    async def close(self) -> None:
        self._is_over = True
        await self.inbox.end()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        if self._socket is not None:
            await self._socket.close(NORMAL_CLOSURE)

    async def _connect(self) -> ClientConnection:
        url, query = self._address.url, urlencode(self._query | self._resume.query)
        return await connect(
            f"{url}?{query}" if query else url,
            ssl=self._address.tls,
            additional_headers=self._address.headers,
            compression=None,  # Base64 of audio hardly compresses
            max_size=MAX_BYTES,
            open_timeout=OPEN_LIMIT_S,
            close_timeout=CLOSE_LIMIT_S,
            create_connection=TimedConnection,
        )

    async def _read(self, socket: ClientConnection) -> None:
        """Read until the session ends, then end the inbox."""
        problem: LiveError | None = None
        try:
            while not await self._read_one(socket):
                self._socket = None
                socket = self._socket = await self._reconnected(socket)
                self._is_heard = self._resume.offer is None
                if self._resume.request is not None:
                    await self.send(self._resume.request)
        except LiveError as error:
            problem = error
        finally:
            await self.inbox.end(problem)

    async def _read_one(self, socket: ClientConnection) -> bool:
        """Read from one socket; return whether the session has ended."""
        with suppress(ConnectionClosed):
            while True:
                if await self._take(await socket.recv()):
                    return True
        return False

    async def _take(self, text: str | bytes) -> bool:
        """Handle one message; return whether it was the last."""
        message = _parse(text)
        if isinstance(seq := message.get("seq"), int):
            self._resume.last_seq = seq
        if ticket := message.get("return_ticket"):
            self._resume.ticket = ticket
        kind = self._kinds.get(message["type"])
        if kind is None:
            return False  # from a newer server
        event = _build(kind, message)
        if isinstance(event, ErrorMessage):
            error = ServerError(event.code, event.message)
            if self._resume.kept_s == 0 or event.code != "shutting_down":
                # What a server that shut down has ended is kept nowhere.
                cause = self._last_error if event.code == "session_expired" else None
                raise cause or error
            self._last_error = error
            return False  # the next server may resume the session
        if isinstance(event, SessionResumable):
            self._resume.offer = event
            return False
        self._is_heard = True
        if isinstance(event, QueueDone) and self._resume.offer is None:
            self._resume.ticket = None
        self._last_error = None
        is_last = await self._on_event(event)
        await self.inbox.put(event)
        return is_last

    async def _reconnected(self, lost: ClientConnection) -> ClientConnection:
        """Return another socket of the session while the server keeps it; raises a LiveError."""
        kept_s, code, url = self._resume.kept_s, lost.close_code or VANISHED, self._address.url
        if kept_s == 0 or code not in LOST_CODES or self._is_over:
            reason = f": {lost.close_reason}" if lost.close_reason else ""
            why = f"{url}: the connection was closed with {code}{reason}"
            raise self._last_error or ConnectionLostError(why)
        await self.inbox.put(ConnectionLost(kept_s))
        problem: Exception | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(kept_s):
                for wait_s in chain(RETRY_S, repeat(RETRY_S[-1])):
                    await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # jitter
                    try:
                        return await self._connect()
                    except UNREACHABLE as error:
                        problem = error
        why = f"{url}: not reached again in {kept_s:g} s: {problem or 'no answer'}"
        raise self._last_error or ConnectionLostError(why) from problem


# Any: JSON.
def _parse(text: str | bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        message = None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(f"not a message with a type: {text[:200]!r}")
    return message


# Any: JSON, and a dataclass of the generated module.
def _build(kind: type[Any], message: Mapping[str, Any]) -> Any:
    try:
        given = {field.name: message[field.name] for field in fields(kind)}
        for field in fields(kind):
            if inner := NESTED.get(str(field.type)):
                given[field.name] = _build(inner, given[field.name])
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"{message.get('type', kind.__name__)} without {error}") from None
    return kind(**given)
