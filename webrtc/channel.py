"""The data channel `oai-events`: events wait, in order, until it is open."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from aiortc import RTCDataChannel

LABEL: Final = "oai-events"
WAITING_MAX: Final = 256  # events before the channel opens; one more ends the call
UNSENT_MAX_BYTES: Final = 1024 * 1024  # that a slow peer has not taken; more end the call


class TooSlowError(Exception):
    """The peer does not take what is sent to it."""


class EventChannel:
    """Sends events over the channel that the peer opens."""

    def __init__(self) -> None:
        """Begin without a channel."""
        self._channel: RTCDataChannel | None = None
        self._waiting: deque[str] = deque()
        self._sent = asyncio.Event()

    async def drain(self) -> None:
        """Wait until everything has been sent."""
        while self._channel and self._channel.bufferedAmount:
            self._sent.clear()
            await self._sent.wait()

    def open(self, channel: RTCDataChannel) -> None:
        """Take the channel, and send what has waited.

        Raises:
            TooSlowError: That is too much.
        """
        self._channel = channel
        channel.on("bufferedamountlow", self._sent.set)
        while self._waiting:
            self.send(self._waiting.popleft())

    def send(self, text: str) -> None:
        """Send an event now or when the channel opens; nothing once it is closed.

        Raises:
            TooSlowError: Too much waits already.
        """
        if self._channel is None:
            if len(self._waiting) >= WAITING_MAX:
                raise TooSlowError(f"{WAITING_MAX} events wait for the data channel")
            self._waiting.append(text)
        elif self._channel.readyState == "open":
            if self._channel.bufferedAmount > UNSENT_MAX_BYTES:
                raise TooSlowError(f"{UNSENT_MAX_BYTES} bytes wait on the data channel")
            self._channel.send(text)
