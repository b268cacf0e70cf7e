"""What waits to be sent to the gateway: sound and events in their order, both bounded."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

SOUNDS_MAX: Final = 50  # a second in pieces of 20 ms; the oldest gives way
EVENTS_MAX: Final = 64  # one more is refused
EVENT_CHARS_MAX: Final = 1024 * 1024  # of all events together


class Outbox:
    """A queue with two kinds of entries."""

    def __init__(self) -> None:
        """Begin empty."""
        self._waiting: deque[tuple[bool, str]] = deque()
        self._filled = asyncio.Event()

    def put_sound(self, text: str) -> None:
        """Append sound; the oldest sound is dropped when there is too much."""
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
        """Wait for the oldest entry."""
        while not self._waiting:
            self._filled.clear()
            await self._filled.wait()
        return self._waiting.popleft()[1]

    def _put(self, is_sound: bool, text: str) -> None:
        self._waiting.append((is_sound, text))
        self._filled.set()
