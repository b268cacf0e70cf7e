"""Decides how many seats a cluster has, and which are removed. Pure: time is an argument.

A seat with sessions is never removed to save a machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from core.schemas.limits import WORKERS_MAX
from launcher.run_folder import Phase

SPARE: Final = 1  # spare seats, since loading a model takes longer than users wait
DOWN_AFTER_S: Final = 600.0  # ours: demand often returns within minutes
SETTLE_S: Final = 5.0  # by then, sessions assigned earlier have reached their seat
SEAT: Final = "seat_"
FRONT: Final = "front_0"


@dataclass(frozen=True)
class Bounds:
    """Minimum and maximum number of seats, written `12` or `4:64`."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Bounds:
        """Parse the text, or raise a ValueError."""
        found = re.fullmatch(r"(\d{1,4})(?::(\d{1,4}))?", text)
        if found is not None:
            bounds = cls(int(found[1]), int(found[2] or found[1]))
            if 1 <= bounds.least <= bounds.most <= WORKERS_MAX:
                return bounds
        raise ValueError(f"--workers {text}: must be a number or MIN:MAX, from 1 to {WORKERS_MAX}")

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class PostStatus:
    name: str
    phase: Phase
    node: str = ""  # machine id in the engine
    address: str = ""  # "host:port" that its program listens on
    url: str = ""
    runs_on: str = ""
    note: str = ""
    restarts: int = 0
    sessions: int = 0  # sessions on a worker
    slots: int | None = None  # sessions that a worker can serve in time; None until it is ready


@dataclass(frozen=True)
class Decision:
    """Actions to take now, by seat names."""

    want: int  # desired number of seats
    create: tuple[str, ...]
    draining: frozenset[str]  # get no new sessions
    end: tuple[str, ...]  # have no sessions left


@dataclass
class Scaling:
    """Scaling decisions over time; its state may be lost without harm."""

    bounds: Bounds
    draining: dict[str, float] = field(default_factory=dict)  # seat names, and since when
    _too_many_since_s: float | None = None

    def wanted(self, seats: Sequence[PostStatus], waiting: int) -> int:
        slots = [seat.slots for seat in seats if seat.slots]
        need = SPARE  # no seat has reported yet
        if slots:
            demand = sum(seat.sessions for seat in seats) + waiting
            need = math.ceil(demand / median(slots)) + SPARE
        return min(max(self.bounds.least, need), self.bounds.most)

    def decide(
        self, seats: Sequence[PostStatus], waiting: int, now_s: float, leaving: Collection[str] = ()
    ) -> Decision:
        """Return the actions for now; unplaced seats count, `leaving` machines will be removed."""
        want = self.wanted(seats, waiting)
        self.draining = {
            seat.name: self.draining.get(seat.name, now_s)
            for seat in seats
            if seat.node in leaving or seat.name in self.draining
        }
        staying = [seat for seat in seats if seat.name not in self.draining]
        draining = [seat for seat in seats if seat.name in self.draining]
        returning = [seat for seat in draining if seat.node not in leaving]
        for seat in sorted(returning, key=lambda one: -one.sessions)[: max(0, want - len(staying))]:
            del self.draining[seat.name]
            staying.append(seat)
        self._drain_surplus(staying, want, now_s)
        taken = {seat.name for seat in seats}
        free = (name for n in range(2 * WORKERS_MAX) if (name := f"{SEAT}{n}") not in taken)
        create = tuple(name for name, _ in zip(free, range(want - len(staying)), strict=False))
        empty = (seat.name for seat in seats if not seat.sessions)
        end = tuple(n for n in empty if now_s - self.draining.get(n, now_s) >= SETTLE_S)
        return Decision(want, create, frozenset(self.draining), end)

    def _drain_surplus(self, staying: Sequence[PostStatus], want: int, now_s: float) -> None:
        """Select surplus seats: after a delay, or at once above the maximum."""
        surplus = len(staying) - want
        if surplus <= 0:
            self._too_many_since_s = None
            return
        if self._too_many_since_s is None:
            self._too_many_since_s = now_s
        if now_s - self._too_many_since_s < DOWN_AFTER_S:
            surplus = len(staying) - self.bounds.most
        if surplus > 0:
            # First seats without sessions that are not ready, then those with the fewest sessions.
            order = sorted(staying, key=lambda seat: (seat.sessions, seat.slots is not None))
            self.draining |= dict.fromkeys([seat.name for seat in order[:surplus]], now_s)
