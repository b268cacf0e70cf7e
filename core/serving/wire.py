"""A client's WebSocket: parsing and size checks of its messages, the inbox, and sending.

Every message has a size limit, every send a timeout. Knows no protocol's rules.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Final, Protocol

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from core.errors import VANISHED, AudioTooLongError, BinaryMessageError, OmniError, TooBigError
from core.protocols.effects import Close, ServerMessage
from core.protocols.events import ClientMessage, Event, Received, Rejected
from core.schemas import duplex, limits
from core.schemas.common import AudioContent, WireModel
from core.sockets import NO_STATUS, ClientGoneError, close_quietly
from settings.sections import LimitSettings


class Socket(Protocol):
    """An accepted WebSocket. One task receives, another one sends."""

    async def receive(self) -> str | bytes:
        """Return the next message, bytes if it is binary; raises `ClientGoneError`."""

    async def send(self, text: str) -> None:
        """Send a message, waiting for a slow peer; raises `ClientGoneError`."""

    async def close(self, code: int, reason: str) -> None:
        """Close the socket; harmless if it is closed."""


class StarletteSocket:
    """Starlette's WebSocket as a `Socket`.

    ASGI has no pings: the server sends them (uvicorn: `ws_ping_interval`, `ws_ping_timeout`) and
    closes the socket of a peer that does not answer, which ends `receive`.
    """

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            raise ClientGoneError()
        event = await self._websocket.receive()
        if event["type"] != "websocket.receive":
            code = event.get("code") or NO_STATUS
            # uvicorn's code for a lost peer; our own peers always close with one.
            code = VANISHED if code == NO_STATUS else code
            raise ClientGoneError(event.get("reason") or f"closed with {code}")
        return message_in(event)

    async def send(self, text: str) -> None:
        if self._websocket.application_state is not WebSocketState.CONNECTED:
            raise ClientGoneError()
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            # Servers differ in what they raise after the peer has disconnected.
            raise ClientGoneError(str(error)) from error

    async def close(self, code: int, reason: str) -> None:
        await close_quietly(self._websocket, code, reason)


def message_in(event: Message) -> str | bytes:
    text: str | None = event.get("text")
    payload: bytes | None = event.get("bytes")
    return text if text is not None else payload or b""


SYSTEM: Final = "system_content"
VOICES: Final = frozenset({"ref_audio_base64", "tts_ref_audio_base64", "ref_audio_data"})


def check_audio(message: object, given: LimitSettings) -> None:
    """Raise `AudioTooLongError`, naming field and limit, if any audio is longer than configured."""
    longest_s = (given.chunk_max_s, given.reference_max_s, given.chat_audio_max_s)
    if longest_s != (limits.CHUNK_MAX_S, limits.REFERENCE_MAX_S, limits.CHAT_AUDIO_MAX_S):
        _check_parts(message, *longest_s)  # the message models check the default limits


def _check_parts(part: object, chunk_s: float, voice_s: float, item_s: float) -> None:
    if isinstance(part, AudioContent):
        _check_length("data", part.data, item_s)
    elif isinstance(part, list):
        for each in part:
            _check_parts(each, chunk_s, voice_s, item_s)
    elif isinstance(part, WireModel):
        for name, value in part:
            if isinstance(value, bytes):
                _check_length(name, value, chunk_s)
            elif not isinstance(value, str):
                # Audio in the system content is a voice sample.
                _check_parts(value, chunk_s, voice_s, voice_s if name == SYSTEM else item_s)
            elif name in VOICES:
                _check_length(name, value, voice_s)


def _check_length(name: str, audio: str | bytes, limit_s: float) -> None:
    length = limits.audio_bytes if isinstance(audio, bytes) else limits.audio_chars
    if len(audio) > length(limit_s):
        raise AudioTooLongError(f"{name}: the audio is longer than {limit_s:g} s.")


SEND_LIMIT_S: Final = 20.0  # ours: a client that accepts no message for so long is lost


@dataclass(frozen=True)
class Endpoint:
    """Message format and limits of one path."""

    parse: Callable[[str], ClientMessage]  # raises an `OmniError`
    prepare_bytes: int  # longest `prepare`
    message_bytes: int  # longest message of any other type
    limits: LimitSettings = LimitSettings()  # holds the longest audio
    write: Callable[[ServerMessage], str] = methodcaller("to_json")

    @property
    def largest_bytes(self) -> int:
        return max(self.prepare_bytes, self.message_bytes)

    def read(self, text: str) -> ClientMessage:
        """Parse a text and check the length of its audio; raises an `OmniError`."""
        message = self.parse(text)
        check_audio(message, self.limits)
        return message

    def event_of(self, raw: str | bytes, size_bytes: int) -> Received[ClientMessage] | Rejected:
        """Return the event of a client's message, `Rejected` if it cannot be used."""
        at_s = loop_time_s()
        try:
            if isinstance(raw, bytes):
                raise BinaryMessageError()
            _check_size(size_bytes, self.largest_bytes)
            message = self.read(raw)
            if message.type != "prepare":
                _check_size(size_bytes, self.message_bytes)
        except OmniError as error:
            return Rejected(error, at_s=at_s)
        return Received(message, at_s=at_s, size_bytes=size_bytes)


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise TooBigError(f"The message has {size_bytes} bytes; {most_bytes} are allowed.")


class Inbox:
    """The ordered events of one connection: client messages, engine results, timers.

    Overflow: beyond `max_events`, or `max_bytes` of messages, the client's socket is not read and
    handlers wait; a single message of any size fits, and `post` never waits.
    """

    def __init__(self, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._entries: asyncio.Queue[tuple[Event, int]] = asyncio.Queue()
        self._size_bytes = 0
        self._is_closed = False
        self._turn = asyncio.Lock()  # fair, so that waiting callers add in order
        self._left = asyncio.Event()

    def __len__(self) -> int:
        return self._entries.qsize()

    async def read(
        self,
        socket: Socket,
        endpoint: Endpoint,
        check: Callable[[ClientMessage], Awaitable[None]],
    ) -> None:
        """Add the client's messages until its socket raises `ClientGoneError`.

        A message for which `check` raises an `OmniError` is rejected; later ones wait for it.
        """
        while True:
            raw = await socket.receive()
            if isinstance(raw, bytes) or raw.isascii():  # encoding a long text is slow
                size_bytes = len(raw)
            else:
                size_bytes = len(raw.encode())
            event = endpoint.event_of(raw, size_bytes)
            if isinstance(event, Received):
                try:
                    await check(event.message)
                except OmniError as error:
                    event = Rejected(error, at_s=event.at_s)
            await self.put(event, size_bytes)

    async def put(self, event: Event, size_bytes: int = 0) -> None:
        """Add an event, waiting while the inbox is full; once closed, drop it."""
        async with self._turn:
            while not (self._is_closed or self._has_room(size_bytes)):
                self._left.clear()
                await self._left.wait()
            self._add(event, size_bytes)

    def post(self, event: Event) -> None:
        """Add an event at once and date it, even beyond the limits."""
        self._add(replace(event, at_s=loop_time_s()), 0)

    async def get(self) -> Event:
        event, size_bytes = await self._entries.get()
        self._size_bytes -= size_bytes
        self._left.set()
        return event

    def close(self) -> None:
        """Accept no more events; those that wait to be added are dropped."""
        self._is_closed = True
        self._left.set()

    def _has_room(self, size_bytes: int) -> bool:
        fits = self._size_bytes + size_bytes <= self._max_bytes
        return not len(self) or (fits and len(self) < self._max_events)

    def _add(self, event: Event, size_bytes: int) -> None:
        if not self._is_closed:
            self._entries.put_nowait((event, size_bytes))
            self._size_bytes += size_bytes


@dataclass(eq=False)
class Wire:
    """Sends to a client whose socket may be lost or closed; never raises."""

    socket: Socket
    endpoint: Endpoint
    unix_time_s: Callable[[], float] = time.time
    is_lost = False  # no more messages can be sent
    _is_closed = False
    _sending: asyncio.Timeout | None = field(default=None, init=False)

    async def send(self, message: ServerMessage) -> None:
        """Send a message; a client that does not accept it in time is lost."""
        if self.is_lost:
            return
        if isinstance(message, duplex.Result):
            message = message.model_copy(update={"server_send_ts": self.unix_time_s()})
        try:
            async with asyncio.timeout(SEND_LIMIT_S) as self._sending:
                try:
                    await self.socket.send(self.endpoint.write(message))
                finally:
                    self._sending = None
        except (ClientGoneError, TimeoutError):
            self.lose()

    async def close(self, effect: Close) -> None:
        """Close the socket if it is open, waiting `SEND_LIMIT_S` at most for the peer."""
        if self._is_closed:
            return
        self.is_lost = True
        with suppress(TimeoutError):
            async with asyncio.timeout(SEND_LIMIT_S):
                await self.socket.close(int(effect.code), effect.reason)
        self._is_closed = True

    def lose(self, *, is_closed: bool = False) -> None:
        """Stop sending, and abort a send under way."""
        self.is_lost = True
        self._is_closed = self._is_closed or is_closed
        if self._sending is not None and not self._sending.expired():
            self._sending.reschedule(loop_time_s())


def loop_time_s() -> float:
    """Return the running event loop's time, which dates all events."""
    return asyncio.get_running_loop().time()


async def end_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def await_end(task: asyncio.Task[None]) -> None:
    """Await a task to its end even if the caller is cancelled, which is raised afterwards."""
    was_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError
    task.result()
