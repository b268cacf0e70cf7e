"""Which pictures are looked at ahead of their unit: what is new to the engine, and what went. Pure.

One look is under way at a time; pictures that come meanwhile are asked for together after it.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.protocols.effects import Look


class Lookout:
    """The pictures that the performer was told to look at, and whether it still does."""

    def __init__(self) -> None:
        """Nothing was asked for."""
        self._asked: list[str] = []  # and neither taken by a unit nor dropped since
        self._is_looking = False

    @property
    def is_looking(self) -> bool:
        """A look is under way."""
        return self._is_looking

    def next_look(self, waiting: Iterable[str]) -> Look | None:
        """Return what is to be looked at and forgotten now, if anything, and note that it is.

        Args:
            waiting: The pictures that wait for their unit, oldest first.
        """
        if self._is_looking:
            return None
        now = list(waiting)
        look = Look(_without(now, self._asked), _without(self._asked, now))
        if not look.frames and not look.dropped:
            return None
        self._asked, self._is_looking = now, True
        return look

    def looked(self) -> None:
        """The look has ended."""
        self._is_looking = False

    def taken(self, frames: Iterable[str]) -> None:
        """A unit has begun with these pictures; it takes what was seen of them along."""
        self._asked = list(_without(self._asked, frames))


def _without(frames: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return what is left of `frames`; a picture that was sent twice counts twice."""
    rest, left = list(others), []
    for frame in frames:
        if frame in rest:
            rest.remove(frame)
        else:
            left.append(frame)
    return tuple(left)
