"""Around a socket's task: what nothing has to wait for is taken in the turn in which it comes.

Waking a task costs more than moving a unit does. Whatever cannot be taken at once, and all that
comes while the task is busy, goes the ordinary way, so the order stays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SHORTCUT_MARK: Final = "shortcut"  # key in a socket's scope

Take = Callable[[bytes], bool]
"""Takes a text in UTF-8 at once and returns whether it could."""


@dataclass
class Shortcut:
    """One socket's.

    Attributes:
        send: Takes a text for the peer.
        take: Takes a text of the peer; None lets all go the ordinary way.
        is_open: The task waits for the next text, and there is none before it.
    """

    send: Take
    take: Take | None = None
    is_open: bool = False

    def offer(self, text: bytes) -> bool:
        """Have a text of one frame taken; return whether it was. If not, the task gets it."""
        self.is_open = self.is_open and self.take is not None and self.take(text)
        return self.is_open
