"""Pictures looked at ahead of their units, for one session: what was made of them, until taken.

Holds exactly what the machine asked for and no unit has taken. Everything but the looking itself
happens on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from PIL import Image

from core.engine import WorkCancelledError
from core.errors import OmniError, PictureError
from core.images import PictureLimits, decode_wire_picture
from core.protocols.effects import Frame, Look
from core.serving.backend import DuplexTalk, SeenPicture
from core.serving.crew import SessionCalls

Seen = SeenPicture | PictureError
"""What came of a look: what the model made of the picture, or why it cannot be used."""


class _Look:
    """One picture on its way."""

    def __init__(self, data: str) -> None:
        self._data = data
        self.has_begun = False
        self.seen: Seen | None = None
        self._has_ended = asyncio.Event()

    async def run(self, calls: SessionCalls, look_at: Callable[[str], SeenPicture]) -> None:
        """Look; what fails for other reasons than the picture is left to its unit."""
        self.has_begun = True
        try:
            self.seen = await calls.look(partial(look_at, self._data))
        except PictureError as problem:
            self.seen = problem
        except (OmniError, WorkCancelledError):
            self.seen = None
        finally:
            self._has_ended.set()

    async def result(self) -> Seen | None:
        """Wait for what came of it; None if its unit has to look itself."""
        if self.has_begun:
            await self._has_ended.wait()
        return self.seen


class Looks:
    """The pictures that were asked for, oldest first."""

    def __init__(self, allowed: PictureLimits) -> None:
        """Nothing was asked for.

        Args:
            allowed: What a picture may be.
        """
        self._allowed = allowed
        self._waiting: dict[Frame, _Look] = {}

    def __len__(self) -> int:
        """How many pictures it holds something of."""
        return len(self._waiting)

    def ask(self, effect: Look) -> None:
        """Note what is to be looked at; forget what was dropped."""
        for frame in effect.dropped:
            self._waiting.pop(frame, None)
        self._waiting |= {frame: _Look(frame.data) for frame in effect.frames}

    async def run(self, calls: SessionCalls, talk: DuplexTalk, max_slices: int) -> None:
        """Look at everything that still waits, one picture at a time."""

        def look_at(data: str) -> SeenPicture:
            return talk.look(self.decode(data), max_slices)

        while (look := self._next()) is not None:
            await look.run(calls, look_at)

    def decode(self, data: str) -> Image.Image:
        """Decode a picture; blocks, and raises as `decode_wire_picture`."""
        return decode_wire_picture(data, allowed=self._allowed)

    async def take(self, frames: Sequence[Frame]) -> list[Seen | None]:
        """Hand over what came of a unit's pictures, waiting for looks under way.

        A look that has not begun is not begun any more.

        Args:
            frames: The unit's pictures.

        Returns:
            For each what came of it, or None if the unit has to look itself.
        """
        looks = [self._waiting.pop(frame, None) for frame in frames]
        return [None if look is None else await look.result() for look in looks]

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()

    def _next(self) -> _Look | None:
        return next((look for look in self._waiting.values() if not look.has_begun), None)
