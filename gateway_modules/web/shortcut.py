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
    send: Take  # a text for the peer
    take: Take | None = None  # a text of the peer; None sends all through the task
    is_open: bool = False  # the task waits for the next text, and nothing is queued before it

    def offer(self, text: bytes) -> bool:
        """Forward a text of one frame; return whether that was possible, else the task gets it."""
        self.is_open = self.is_open and self.take is not None and self.take(text)
        return self.is_open
