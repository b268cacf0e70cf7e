"""Measures named stages of one call; the clock is passed in and serves metrics only."""

from __future__ import annotations

from collections.abc import Callable


class Stopwatch:
    """Adds up seconds per stage; each lap runs from the previous lap's end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = self._last = clock()
        self._stages: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Book the time since the last lap under `stage`."""
        now = self._clock()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last
        self._last = now

    def seconds(self, stage: str) -> float:
        """Seconds booked under `stage`, 0 if it never ran."""
        return self._stages.get(stage, 0.0)

    def total(self) -> float:
        """Seconds since the stopwatch was made."""
        return self._clock() - self._start
