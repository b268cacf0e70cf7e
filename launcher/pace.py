"""Intervals, time limits and restart delays. Pure: time comes in as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class RestartPolicy:
    """When a program that died is started again.

    Attributes:
        first_s: delay before the first restart.
        longest_s: the delay doubles each time up to this.
        jitter: share by which a delay varies, so that programs that died together do not come
            back together.
        stable_s: after this long in good health the count of failures starts anew.
        max_failures: after more failures in a row than this the delay is `retry_s`.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    jitter: float = 0.2
    stable_s: float = 120.0
    max_failures: int = 5
    retry_s: float = 60.0


@dataclass(frozen=True)
class Pace:
    """Intervals and limits of the launcher.

    Attributes:
        poll_s: between checks that a program still runs.
        ask_s: between health checks of a program that is starting.
        watch_s: between health checks of one that runs.
        answer_limit_s: longest wait for an answer.
        misses_allowed: health checks in a row a running program may leave unanswered.
        ready_limit_s: longest wait for the gateway to find the workers.
        end_margin_s: how long a program gets to end beyond its draining.
    """

    poll_s: float = 0.1
    ask_s: float = 0.5
    watch_s: float = 5.0
    answer_limit_s: float = 5.0
    misses_allowed: int = 6
    ready_limit_s: float = 60.0
    end_margin_s: float = 10.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


@dataclass
class Restarts:
    policy: RestartPolicy
    random: Random = field(default_factory=Random)
    total: int = 0
    _failures: int = 0

    @property
    def are_too_many(self) -> bool:
        """Whether it failed so often in a row that it is only tried now and then."""
        return self._failures > self.policy.max_failures

    def count_requested(self) -> None:
        """Count a restart that was requested: no failure, so no delay."""
        self.total += 1

    def next_delay_s(self, healthy_s: float) -> float:
        """Count a failure after `healthy_s` of good health; return the delay before the restart."""
        if healthy_s >= self.policy.stable_s:
            self._failures = 0
        self._failures += 1
        self.total += 1
        spread = 1 + self.policy.jitter * self.random.uniform(-1, 1)
        if self.are_too_many:
            return self.policy.retry_s * spread
        doubled = self.policy.first_s * 2.0 ** (self._failures - 1)
        return min(doubled, self.policy.longest_s) * spread
