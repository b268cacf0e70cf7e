"""How many sessions the worker can serve in time, learnt from how long units take in the engine.

Pure but for the clock. Nothing a client chooses counts: neither how long its chunks waited because
it sent too many, nor the length of unit it asked for. A worker that shares passes between sessions
takes more of them than the time of one alone suggests; so every bound found here is a lower one,
and grows with the load.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from core.protocols.effects import Effect, Send
from core.protocols.events import Event
from core.schemas.duplex import Result

UNIT_MS: Final = 1_000  # the only unit length the model was trained on
HEADROOM: Final = 0.8  # ours: of a unit's length, that nearly every unit may take
SLOW_SHARE: Final = 0.05  # ours: of the units; so many may be slower, for what happens once
MEMORY_S: Final = 30.0  # ours: what happened longer ago does not count
PROOF_S: Final = 600.0  # ours: how long it is remembered that so many were served in time
TALKING_S: Final = 3.0  # ours: a session without a unit for so long does not talk now
SETTLE_S: Final = 3.0  # ours: after so long it shows what a new session costs
FIRST: Final = 8  # ours: sessions that may begin before anything is known
UNITS_MIN: Final = 20  # ours: fewer say nothing: one slow one would decide
UNITS_KEPT: Final = 4_096


@dataclass(frozen=True)
class _Unit:
    at_s: float
    share: float  # of its own length that it took
    talking: int  # sessions at that time


class Capacity:
    """What units tell about how many sessions there may be."""

    def __init__(
        self, now_s: Callable[[], float], has_memory: Callable[[], bool] = lambda: True
    ) -> None:
        """Know nothing yet.

        Args:
            now_s: A monotonic clock.
            has_memory: Says whether there is memory for what one session more would remember.
        """
        self._now_s = now_s
        self._has_memory = has_memory
        self._units: deque[_Unit] = deque(maxlen=UNITS_KEPT)
        self._last_s: dict[str, float] = {}  # by session: when it had a unit
        self._proven = 0  # sessions that were served in time together
        self._proven_s = 0.0  # when

    def note(self, session_id: str, share: float) -> None:
        """Learn from one unit.

        Args:
            session_id: Whose it is.
            share: How long the engine took for it, per its length.
        """
        now_s = self._now_s()
        self._last_s[session_id] = now_s
        talking = {name: s for name, s in self._last_s.items() if s > now_s - TALKING_S}
        self._last_s = talking
        self._units.append(_Unit(now_s, share, len(talking)))

    def sessions(self, ages_s: Sequence[float]) -> int:
        """Return how many sessions there may be now, at least 1.

        Args:
            ages_s: For how long each session there is has been going on.
        """
        most = self._in_time(ages_s)
        return most if self._has_memory() else max(1, min(most, len(ages_s)))

    def _in_time(self, ages_s: Sequence[float]) -> int:
        settled = sum(age_s >= SETTLE_S for age_s in ages_s)
        bound = self._bound()
        if bound is None:
            return max(self._proof(), settled + max(FIRST, settled))
        if self._is_overloaded():
            self._proven = min(self._proven, bound)
            return max(1, bound)
        most_talking = max(unit.talking for unit in self._units)
        if most_talking >= self._proof():
            self._proven, self._proven_s = most_talking, self._now_s()
        return max(1, self._proof(), min(bound, settled + max(FIRST, settled)))

    def _proof(self) -> int:
        return self._proven if self._now_s() < self._proven_s + PROOF_S else 0

    def _bound(self) -> int | None:
        """Return how many sessions the units of late speak for; None if they are too few."""
        while self._units and self._units[0].at_s < self._now_s() - MEMORY_S:
            self._units.popleft()
        if len(self._units) < UNITS_MIN:
            return None
        bounds = sorted(unit.talking * HEADROOM / max(unit.share, 1e-3) for unit in self._units)
        return int(bounds[int(SLOW_SHARE * len(bounds))])

    def _is_overloaded(self) -> bool:
        slow = sum(unit.share > HEADROOM for unit in self._units)
        return slow > SLOW_SHARE * len(self._units)


class CapacityObserver:
    """Tells the worker's capacity how long the units of one session take."""

    def __init__(self, capacity: Capacity, session_id: str) -> None:
        """Watch a session."""
        self._capacity = capacity
        self._session_id = session_id

    def saw(self, event: Event, effects: Sequence[Effect]) -> None:
        """Learn from each result."""
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Result):
                self._capacity.note(self._session_id, effect.message.cost_all_ms / UNIT_MS)

    async def close(self) -> None:
        """Nothing is held."""
