"""What waits to be sent, bounded: events to the peer, audio and events to the gateway."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from aiortc import RTCDataChannel

LABEL: Final = "oai-events"
WAITING_MAX: Final = 256  # events before the channel opens; one more ends the call
UNSENT_MAX_BYTES: Final = 1024 * 1024  # that a slow peer has not taken; more end the call
SOUNDS_MAX: Final = 50  # a second in pieces of 20 ms; the oldest gives way
EVENTS_MAX: Final = 64  # one more is refused
EVENT_CHARS_MAX: Final = 1024 * 1024  # of all events together


class TooSlowError(Exception):
    """The peer does not read what is sent to it."""


class EventChannel:
    """Sends events over the data channel that the peer opens, in order; until then they wait."""

    def __init__(self) -> None:
        self._channel: RTCDataChannel | None = None
        self._waiting: deque[str] = deque()
        self._sent = asyncio.Event()

    async def drain(self) -> None:
        while self._channel and self._channel.bufferedAmount:
            self._sent.clear()
            await self._sent.wait()

    def open(self, channel: RTCDataChannel) -> None:
        """Use the channel, and send what has waited; raises as `send`."""
        self._channel = channel
        channel.on("bufferedamountlow", self._sent.set)
        while self._waiting:
            self.send(self._waiting.popleft())

    def send(self, text: str) -> None:
        """Send an event now or when the channel opens; a TooSlowError if too much waits already."""
        if self._channel is None:
            if len(self._waiting) >= WAITING_MAX:
                raise TooSlowError(f"{WAITING_MAX} events wait for the data channel")
            self._waiting.append(text)
        elif self._channel.readyState == "open":
            if self._channel.bufferedAmount > UNSENT_MAX_BYTES:
                raise TooSlowError(f"{UNSENT_MAX_BYTES} bytes wait on the data channel")
            self._channel.send(text)


class Outbox:
    """A queue of audio and events for the gateway, in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[bool, str]] = deque()
        self._filled = asyncio.Event()

    def put_sound(self, text: str) -> None:
        """Append audio; the oldest audio is dropped when there is too much."""
        sounds = [at for at, (is_sound, _) in enumerate(self._waiting) if is_sound]
        if len(sounds) >= SOUNDS_MAX:
            del self._waiting[sounds[0]]
        self._put(True, text)

    def put_event(self, text: str) -> bool:
        """Append an event; return whether there was room."""
        sizes = [len(waiting) for is_sound, waiting in self._waiting if not is_sound]
        if len(sizes) >= EVENTS_MAX or sum(sizes) + len(text) > EVENT_CHARS_MAX:
            return False
        self._put(False, text)
        return True

    async def get(self) -> str:
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()[1]

    def _put(self, is_sound: bool, text: str) -> None:
        self._waiting.append((is_sound, text))
        self._filled.set()
