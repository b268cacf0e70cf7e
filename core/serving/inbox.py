"""Events on their way to one machine, in order of arrival.

Bounded: whoever puts a message or an engine result waits while the inbox is full, which in the end
slows the peer down. Timers and requests from outside never wait; there are only a few of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from core.protocols.events import Event


@dataclass(eq=False)
class _Entry:
    event: Event
    size_bytes: int
    is_in: asyncio.Future[None] | None = None  # of one that waits for room


class Inbox:
    """A queue bounded in events and in bytes, which can be closed."""

    def __init__(self, max_events: int, max_bytes: int) -> None:
        """Begin empty.

        Args:
            max_events: Most events that wait, but for what is posted.
            max_bytes: Most bytes of messages that wait; a single one is always let in.
        """
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._entries: deque[_Entry] = deque()
        self._outside: deque[_Entry] = deque()
        self._size_bytes = 0
        self._is_closed = False
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        """How many events wait inside."""
        return len(self._entries)

    async def put(self, event: Event, size_bytes: int = 0) -> None:
        """Add an event, waiting for room; once closed, return without adding."""
        entry = _Entry(event, size_bytes)
        if self._is_closed:
            return
        if not self._outside and self._has_room(entry):
            self._let_in(entry)
            return
        entry.is_in = asyncio.get_running_loop().create_future()
        self._outside.append(entry)
        await entry.is_in  # cancelled, it is done, and is passed over when its turn comes

    def post(self, event: Event) -> None:
        """Add an event at once, room or not."""
        if not self._is_closed:
            self._let_in(_Entry(event, 0))

    async def get(self) -> Event:
        """Wait for the oldest event."""
        while not self._entries:
            self._arrived.clear()
            await self._arrived.wait()
        entry = self._entries.popleft()
        self._size_bytes -= entry.size_bytes
        while self._outside and self._has_room(self._outside[0]):
            self._admit(self._outside.popleft())
        return entry.event

    def close(self) -> None:
        """Let nothing in any more; whoever waits for room is let go."""
        self._is_closed = True
        while self._outside:
            waiting = self._outside.popleft().is_in
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _has_room(self, entry: _Entry) -> bool:
        if not self._entries:
            return True
        fits = self._size_bytes + entry.size_bytes <= self._max_bytes
        return fits and len(self._entries) < self._max_events

    def _admit(self, entry: _Entry) -> None:
        if entry.is_in is not None and not entry.is_in.done():
            entry.is_in.set_result(None)
            self._let_in(entry)

    def _let_in(self, entry: _Entry) -> None:
        self._entries.append(entry)
        self._size_bytes += entry.size_bytes
        self._arrived.set()
