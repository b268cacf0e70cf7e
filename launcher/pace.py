"""Intervals, time limits and restart delays. Pure: time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class Pace:
    poll_s: float = 0.1  # interval of checks that a process is alive
    ask_s: float = 0.5  # interval of health checks of a starting program
    watch_s: float = 5.0  # interval of health checks of a running program
    answer_limit_s: float = 5.0  # timeout of a health check
    misses_allowed: int = 6  # consecutive health checks that a running program may miss
    ready_limit_s: float = 60.0  # for a gateway to respond, and at the start to find its workers
    end_margin_s: float = 10.0  # time to exit after draining
    first_delay_s: float = 1.0  # delay before the first restart of a failed program; it doubles
    longest_delay_s: float = 60.0  # upper limit of the doubling delay
    # Relative random variation of a delay, so that programs that failed together do not restart
    # together.
    jitter: float = 0.2
    stable_s: float = 120.0  # healthy time that resets the failure count
    max_failures: int = 5  # consecutive failures after which the delay is `retry_s`
    retry_s: float = 60.0


@dataclass
class Restarts:
    pace: Pace
    random: Random = field(default_factory=Random)
    total: int = 0
    _failures: int = 0

    @property
    def are_too_many(self) -> bool:
        """Whether it failed so often in a row that the long retry delay applies."""
        return self._failures > self.pace.max_failures

    def count_requested(self) -> None:
        """Count a requested restart, which is no failure and has no delay."""
        self.total += 1

    def next_delay_s(self, healthy_s: float) -> float:
        """Count a failure after `healthy_s` of health; return the delay before the restart."""
        if healthy_s >= self.pace.stable_s:
            self._failures = 0
        self._failures += 1
        self.total += 1
        spread = 1 + self.pace.jitter * self.random.uniform(-1, 1)
        if self.are_too_many:
            return self.pace.retry_s * spread
        doubled = self.pace.first_delay_s * 2.0 ** (self._failures - 1)
        return min(doubled, self.pace.longest_delay_s) * spread
