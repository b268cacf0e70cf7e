"""Meaning of repeated stop signals during draining. Pure."""

from __future__ import annotations

from typing import Final

# Ours. The kernel sends the parent-death signal once per thread of the parent: signals this close
# together are one request.
ONE_REQUEST_S: Final = 1.0


class StopSignals:
    def __init__(self) -> None:
        self._first_s: float | None = None

    def is_hurry(self, now_s: float) -> bool:
        """Note a signal; return whether it asks not to wait for running sessions."""
        if self._first_s is None:
            self._first_s = now_s
        return now_s >= self._first_s + ONE_REQUEST_S
