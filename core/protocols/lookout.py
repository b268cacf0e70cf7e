"""Which pictures are looked at ahead of their unit: what is new to the engine, and what went. Pure.

One look is under way at a time; pictures that come meanwhile are asked for together after it. A
client that sends more than its units can use does not keep the engine looking: what is beyond the
budget of a unit is left to the unit itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from core.protocols.effects import Frame, Look


class Lookout:
    """The pictures that were asked for ahead of their unit, and whether they still are encoded."""

    def __init__(self, max_new: int) -> None:
        """Nothing was asked for.

        Args:
            max_new: Most pictures that are asked for between the beginnings of two units.
        """
        self._max_new = self._left = max_new
        self._asked: tuple[Frame, ...] = ()  # and neither taken by a unit nor dropped since
        self._is_looking = False

    @property
    def is_looking(self) -> bool:
        """A look is under way."""
        return self._is_looking

    def next_look(self, waiting: Iterable[Frame]) -> Look | None:
        """Return what is to be looked at and forgotten now, if anything, and note that it is.

        Args:
            waiting: The pictures that wait for their unit, oldest first.
        """
        if self._is_looking:
            return None
        now = tuple(waiting)
        new, gone = _without(now, self._asked), _without(self._asked, now)
        look = Look(new[: self._left], gone)
        if not look.frames and not look.dropped:
            return None
        self._asked = (*_without(self._asked, gone), *look.frames)
        self._left -= len(look.frames)
        self._is_looking = True
        return look

    def looked(self) -> None:
        """The look has ended."""
        self._is_looking = False

    def taken(self, frames: Iterable[Frame]) -> None:
        """A unit has begun with these pictures; it takes what was seen of them along."""
        self._asked = _without(self._asked, frames)
        self._left = self._max_new


def _without(frames: Iterable[Frame], others: Iterable[Frame]) -> tuple[Frame, ...]:
    excluded = frozenset(others)
    return tuple(frame for frame in frames if frame not in excluded)
