"""Pictures encoded ahead of their units, for one session: what was made of them, until taken.

Holds exactly what the machine asked for and no unit has taken. Everything but the encoding itself
happens on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from core.engine import WorkCancelledError
from core.errors import OmniError, PictureError
from core.protocols.effects import Frame, Look


class SeenPicture(Protocol):
    """A picture that was encoded ahead of its unit.

    Attributes:
        max_slices: limit that it was sliced by.
    """

    @property
    def max_slices(self) -> int: ...


Seen = SeenPicture | PictureError
"""What came of a picture: what the model made of it, or why it cannot be used."""

Encode = Callable[[str], Awaitable[SeenPicture]]
"""Decodes and encodes one picture, sent as Base64."""


class _Entry:
    """One picture on its way."""

    def __init__(self, data: str) -> None:
        self._data = data
        self.has_begun = False
        self.seen: Seen | None = None
        self._has_ended = asyncio.Event()

    async def run(self, encode: Encode) -> None:
        """Encode; what fails for other reasons than the picture is left to its unit."""
        self.has_begun = True
        try:
            self.seen = await encode(self._data)
        except PictureError as problem:
            self.seen = problem
        except (OmniError, WorkCancelledError):
            self.seen = None
        finally:
            self._has_ended.set()

    async def result(self) -> Seen | None:
        """Wait for what came of it; None if its unit has to encode it itself."""
        if self.has_begun:
            await self._has_ended.wait()
        return self.seen


class PicturePrefetch:
    """The pictures that were asked for, oldest first."""

    def __init__(self) -> None:
        """Create an empty one."""
        self._waiting: dict[int, _Entry] = {}  # by the picture's number

    def __len__(self) -> int:
        """How many pictures it holds something of."""
        return len(self._waiting)

    def ask(self, effect: Look) -> None:
        """Add what is to be encoded; drop what no unit will need."""
        for frame in effect.dropped:
            self._waiting.pop(frame.number, None)
        self._waiting |= {frame.number: _Entry(frame.data) for frame in effect.frames}

    async def run(self, encode: Encode) -> None:
        """Encode everything that still waits, one picture at a time."""
        while (entry := self._next()) is not None:
            await entry.run(encode)

    async def take(self, frames: Sequence[Frame]) -> list[Seen | None]:
        """Hand over what came of a unit's pictures, waiting for those under way.

        A picture whose encoding has not begun is not encoded ahead any more.

        Args:
            frames: The unit's pictures.

        Returns:
            For each what came of it, or None if the unit has to encode it itself.
        """
        entries = [self._waiting.pop(frame.number, None) for frame in frames]
        return [None if entry is None else await entry.result() for entry in entries]

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()

    def _next(self) -> _Entry | None:
        return next((entry for entry in self._waiting.values() if not entry.has_begun), None)
