"""One client's socket: parses and checks its messages, sends to it, closes it.

Every send has a time limit, and every message a size. No rules of a protocol.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Final, Protocol

from pydantic import TypeAdapter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from core.errors import VANISHED, AudioTooLongError, BinaryMessageError, OmniError, TooBigError
from core.protocols.effects import Close, ServerMessage
from core.protocols.events import ClientMessage, Disconnected, Event, Received, Rejected
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.common import AudioContent, WireModel, parse_message
from core.schemas.limits import (
    CHAT_AUDIO_MAX_S,
    CHAT_SOCKET_LIMIT_BYTES,
    CHUNK_MAX_S,
    EVENT_LIMIT_BYTES,
    LIVE_SOCKET_LIMIT_BYTES,
    PREPARE_LIMIT_BYTES,
    REFERENCE_MAX_S,
    audio_bytes,
    audio_chars,
)
from core.schemas.openai_errors import error_event
from core.schemas.queue import ErrorMessage, WarningMessage
from core.schemas.realtime import parse_event
from core.serving.queues import Bound, Scheduler

NO_STATUS: Final = 1005  # of a close frame without a code. Source: RFC 6455, section 7.4.1


class SocketClosedError(Exception):
    """The socket is closed, by either side."""

    def __init__(self, code: int = 1006, reason: str = "") -> None:
        super().__init__(reason or f"closed with {code}")
        self.code = code


class Socket(Protocol):
    """An accepted WebSocket. One task receives, another one sends."""

    async def receive(self) -> str | bytes:
        """Wait for the next message; bytes mean that the peer sent it as binary.

        Raises:
            SocketClosedError: There will be none.
        """
        ...

    async def send(self, text: str) -> None:
        """Send a message; waits while the peer reads more slowly than we write.

        Raises:
            SocketClosedError: It can never arrive.
        """
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close; harmless if it is closed already."""
        ...


class StarletteSocket:
    """Starlette's WebSocket as a `Socket`.

    ASGI has no pings: the server sends them (uvicorn: `ws_ping_interval`, `ws_ping_timeout`) and
    ends the socket when none is answered, which ends `receive`.
    """

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | bytes:
        if self._websocket.client_state != WebSocketState.CONNECTED:
            raise SocketClosedError()
        event = await self._websocket.receive()
        if event["type"] != "websocket.receive":
            code = event.get("code") or NO_STATUS
            # uvicorn says so of a peer that vanished; no peer of ours closes without a code.
            raise SocketClosedError(
                VANISHED if code == NO_STATUS else code, event.get("reason") or ""
            )
        text: str | None = event.get("text")
        payload: bytes | None = event.get("bytes")
        return text if text is not None else payload or b""

    async def send(self, text: str) -> None:
        if self._websocket.application_state != WebSocketState.CONNECTED:
            raise SocketClosedError()
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, OSError, RuntimeError) as error:
            # Servers differ in what they raise when the peer has gone meanwhile.
            raise SocketClosedError(reason=str(error)) from error

    async def close(self, code: int, reason: str) -> None:
        if self._websocket.application_state != WebSocketState.CONNECTED:
            return
        try:
            await self._websocket.close(code, reason)
        except (WebSocketDisconnect, OSError, RuntimeError):
            return  # the peer was faster


VOICES: Final = frozenset({"ref_audio_base64", "tts_ref_audio_base64", "ref_audio_data"})


@dataclass(frozen=True)
class SoundLimits:
    """Longest sounds, s.

    Attributes:
        chunk_s: of a chunk of a live call.
        voice_s: of a voice sample.
        item_s: of an item of a message.
    """

    chunk_s: float = CHUNK_MAX_S
    voice_s: float = REFERENCE_MAX_S
    item_s: float = CHAT_AUDIO_MAX_S

    def check(self, message: WireModel) -> None:
        """Refuse a message with a sound that is too long.

        Raises:
            AudioTooLongError: The text names the field and its limit.
        """
        if self == SoundLimits():
            return  # the message would not have been understood
        for name, sound, limit_s in self._sounds(message):
            most = audio_bytes(limit_s) if isinstance(sound, bytes) else audio_chars(limit_s)
            if len(sound) > most:
                raise AudioTooLongError(f"{name}: the audio is longer than {limit_s:g} s.")

    def _sounds(self, part: object) -> Iterator[tuple[str, str | bytes, float]]:
        """Yield every sound in a part of a message: its field, itself or Base64, its limit."""
        if isinstance(part, AudioContent):
            yield "data", part.data, self.item_s
        elif isinstance(part, list):
            for each in part:
                yield from self._sounds(each)
        elif isinstance(part, WireModel):
            for name, value in part:
                if isinstance(value, bytes):
                    yield name, value, self.chunk_s
                elif not isinstance(value, str):
                    yield from self._sounds(value)
                elif name in VOICES:
                    yield name, value, self.voice_s


SEND_LIMIT_S: Final = 20.0  # ours: for a message to be taken; then the peer counts as gone
EVENT_ID_BYTES: Final = 10
MAX_REASON_BYTES: Final = 123  # of a close frame. Source: RFC 6455, section 5.5


@dataclass(frozen=True)
class Endpoint:
    """What one path accepts.

    Attributes:
        parse: text to message; raises an `OmniError`.
        prepare_bytes: longest `prepare`.
        message_bytes: longest message of any other type.
        sounds: how long sounds may be.
        write: message to text.
    """

    parse: Callable[[str], ClientMessage]
    prepare_bytes: int
    message_bytes: int
    sounds: SoundLimits = SoundLimits()
    write: Callable[[ServerMessage], str] = methodcaller("to_json")

    @property
    def largest_bytes(self) -> int:
        """Longest message of any type."""
        return max(self.prepare_bytes, self.message_bytes)

    def read(self, text: str) -> ClientMessage:
        """Return the message that a text is, if its sounds are short enough."""
        message = self.parse(text)
        self.sounds.check(message)
        return message


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


def spelled_as_event(message: ServerMessage) -> str:
    """Spell an error of ours as OpenAI's clients read it."""
    if isinstance(message, ErrorMessage | WarningMessage):
        return error_event(message, f"event_{secrets.token_hex(EVENT_ID_BYTES)}").to_json()
    return message.to_json()


REALTIME: Final = Endpoint(
    parse_event, EVENT_LIMIT_BYTES, EVENT_LIMIT_BYTES, write=spelled_as_event
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
            work = self._socket.send(self._endpoint.write(message))
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
            message = self._endpoint.read(raw)
            if message.type != "prepare":
                self._check_size(size_bytes, self._endpoint.message_bytes)
        except OmniError as error:
            return Rejected(error, at_s=now_s)
        return Received(message, at_s=now_s, size_bytes=size_bytes)

    @staticmethod
    def _check_size(size_bytes: int, most_bytes: int) -> None:
        if size_bytes > most_bytes:
            raise TooBigError(f"The message has {size_bytes} bytes; {most_bytes} are allowed.")
