"""When one thread works and for how long, as other threads may read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Heartbeat:
    """Written by one thread, read by any.

    Attributes:
        worked_s: how long the thread has worked in all.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """Begin idle.

        Args:
            now_s: a monotonic clock.
        """
        self.worked_s = 0.0
        self._now_s = now_s
        self._began_s: float | None = None

    @property
    def silent_s(self) -> float:
        """How long the piece of work at hand has taken; 0 if there is none."""
        began_s = self._began_s
        return 0.0 if began_s is None else self._now_s() - began_s

    @contextmanager
    def beat(self) -> Iterator[None]:
        """Count the block as one piece of work."""
        began_s = self._began_s = self._now_s()
        try:
            yield
        finally:
            self._began_s = None
            self.worked_s += self._now_s() - began_s
