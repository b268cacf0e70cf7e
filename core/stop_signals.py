"""Pure: what a repeated stop signal means to a program that drains."""

from __future__ import annotations

from typing import Final

# Ours. The kernel sends the signal of a parent's death once for each thread of the parent, so
# signals this close together are one request.
ONE_REQUEST_S: Final = 1.0


class StopSignals:
    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_hurry(self, now_s: float) -> bool:
        """Count a signal at a monotonic time; true if it asks not to wait for running sessions."""
        if self._first_s is None:
            self._first_s = now_s
        return now_s >= self._first_s + ONE_REQUEST_S
