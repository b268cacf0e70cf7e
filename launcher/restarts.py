"""When a program that died is started again. Pure: time comes in as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True)
class RestartPolicy:
    """How patient to be.

    Attributes:
        first_s: wait before the first restart.
        longest_s: the wait doubles each time up to this.
        jitter: share by which a wait is made longer or shorter, so that programs that died
            together do not come back together.
        stable_s: a program healthy for this long is taken to be well; counting starts anew.
        max_failures: after more deaths in a row than this it is tried again only now and then.
        retry_s: wait before each of these tries.
    """

    first_s: float = 1.0
    longest_s: float = 60.0
    jitter: float = 0.2
    stable_s: float = 120.0
    max_failures: int = 5
    retry_s: float = 60.0


@dataclass
class Restarts:
    """Deaths of one program.

    Attributes:
        policy: how patient to be.
        random: source of the jitter.
        total: restarts since the launcher started.
    """

    policy: RestartPolicy
    random: Random = field(default_factory=Random)
    total: int = 0
    _failures: int = 0

    def asked_for(self) -> float:
        """Count a restart that somebody asked for: no failure, no wait; return the wait."""
        self.total += 1
        return 0.0

    @property
    def are_too_many(self) -> bool:
        """It died so often in a row that only a try now and then is worth it."""
        return self._failures > self.policy.max_failures

    def next_delay_s(self, healthy_s: float) -> float:
        """Count a death and return how long to wait before starting the program again.

        Args:
            healthy_s: how long it had been healthy, 0 if it never was.
        """
        if healthy_s >= self.policy.stable_s:
            self._failures = 0
        self._failures += 1
        self.total += 1
        spread = 1 + self.policy.jitter * self.random.uniform(-1, 1)
        if self.are_too_many:
            return self.policy.retry_s * spread
        doubled = self.policy.first_s * 2.0 ** (self._failures - 1)
        return min(doubled, self.policy.longest_s) * spread
