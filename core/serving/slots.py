"""Who occupies the worker: a lease per session, as many as it can serve in time, first come first.

How many that is, it learns from how long units take in the engine: at the start, then all the
time. Taking and giving back happen between two awaits, so no two sessions hold the same slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from core.errors import WorkerBusyError
from core.protocols.effects import Effect, Send
from core.protocols.events import Event
from core.schemas.duplex import Result
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus

MS_PER_S: Final = 1_000
UNIT_MS: Final = 1_000  # the only unit length the model was trained on
HEADROOM: Final = 0.8  # ours: of a unit's length, that nearly every unit may take
CALM: Final = 0.6  # ours: of a unit's length, that nearly every unit takes where one more may begin
SLOW_SHARE: Final = 0.05  # ours: of the units; so many may be slower, for what happens once
MEMORY_S: Final = 30.0  # ours: what happened longer ago does not count
PROOF_S: Final = 600.0  # ours: how long it is remembered that so many were served in time
TALKING_S: Final = 3.0  # ours: a session without a unit for so long does not talk now
SETTLE_S: Final = 3.0  # ours: after so long it shows that a new session costs nothing special
TURNS_S: Final = 30.0  # ours: after so long a session has listened, spoken and grown
FIRST: Final = 8  # ours: sessions that may begin where nothing was measured at the start
UNITS_MIN: Final = 20  # ours: fewer say nothing: one slow one would decide
UNITS_KEPT: Final = 4_096
LEAST_S: Final = 1e-3  # ours: nothing is taken to cost less
AGED: Final = (
    1.5  # ours: units of conversations that go on against those of new ones; seen: 10 to 6.5 ms
)


@dataclass(frozen=True)
class _Unit:
    at_s: float
    share: float  # of its own length that it took
    talking: int  # sessions at that time


class Capacity:
    """How many sessions there may be, learnt from units."""

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
        self._costs: UnitCosts | None = None  # measured at the start
        self._proven = 0  # sessions that were served in time together, or that were too many
        self._proven_s = -PROOF_S  # when

    def expect(self, unit_s_by_sessions: Mapping[int, float]) -> None:
        """Begin with what was measured before the first session; see `UnitCosts.of`."""
        self._costs = UnitCosts.of(unit_s_by_sessions)

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
        settle_s = SETTLE_S if self._costs is None else TURNS_S
        settled = sum(age_s >= settle_s for age_s in ages_s)
        first = FIRST if self._costs is None else min(FIRST, self._costs.sessions)
        growth = settled + max(first, settled)
        bound = self._bound()
        if bound is None:
            return max(1, self._proof(), growth)
        if self._is_overloaded():
            self._proven, self._proven_s = min(self._proof(), bound), self._now_s()
            return max(1, bound)
        most_talking = max(unit.talking for unit in self._units)
        if most_talking >= self._proof():
            self._proven, self._proven_s = most_talking, self._now_s()
        return max(1, self._proof(), min(bound, growth))

    def _proof(self) -> int:
        is_recent = self._now_s() < self._proven_s + PROOF_S
        if is_recent:
            return self._proven
        return 0 if self._costs is None else self._costs.sessions

    def _bound(self) -> int | None:
        """Return how many sessions the units of late speak for; None if they are too few."""
        while self._units and self._units[0].at_s < self._now_s() - MEMORY_S:
            self._units.popleft()
        if len(self._units) < UNITS_MIN:
            return None
        bounds = sorted(self._spoken_for(unit) for unit in self._units)
        return int(bounds[int(SLOW_SHARE * len(bounds))])

    def _spoken_for(self, unit: _Unit) -> float:
        """Return how many sessions there may be if all units took as long as this one."""
        share = max(unit.share, LEAST_S)
        if self._costs is None:
            return unit.talking * HEADROOM / share
        each_s = max(1.0 - self._costs.idle_s / share, LEAST_S) / max(unit.talking, 1)
        return self._costs.room_s / each_s

    def _is_overloaded(self) -> bool:
        slow = sum(unit.share > HEADROOM for unit in self._units)
        return slow > SLOW_SHARE * len(self._units)


@dataclass(frozen=True)
class UnitCosts:
    """What units cost the engine, which serves all that wait in one round after the other.

    A round of n units takes a + b n seconds, and n of them come during one: with N sessions of a
    unit a second each a round takes a / (1 - b N). A unit waits for up to one round and takes one.
    So what the first session costs is nothing to what the last one does.

    Attributes:
        alone_s: a, what a round takes beside its units.
        each_s: b, what each unit adds.
        measured: units of the largest round there was; no more are expected before they have been
            served together.
    """

    alone_s: float
    each_s: float
    measured: int

    @classmethod
    def of(cls, unit_s_by_sessions: Mapping[int, float]) -> UnitCosts | None:
        """Read the costs off rounds that were measured; None of fewer than two numbers of units.

        Args:
            unit_s_by_sessions: how long a round of so many units took, in seconds.
        """
        if len(unit_s_by_sessions) < 2:
            return None
        (few, few_s), *_, (many, many_s) = sorted(unit_s_by_sessions.items())
        each_s = max((many_s - few_s) / (many - few), LEAST_S)
        return cls(max(0.0, few_s - few * each_s), AGED * each_s, many)

    @property
    def idle_s(self) -> float:
        """What a unit takes at most where the engine has next to nothing else to do."""
        return 2 * self.alone_s

    @property
    def room_s(self) -> float:
        """Seconds of each second that units may take, so that nearly all of them stay calm."""
        return max(0.0, 1.0 - self.idle_s / CALM)

    @property
    def sessions(self) -> int:
        """How many sessions there is room for, at least 1."""
        return max(1, min(self.measured, int(self.room_s / self.each_s)))


class CapacityObserver:
    """Reports to the worker's capacity how long the units of one session take."""

    def __init__(self, capacity: Capacity, session_id: str) -> None:
        self._capacity = capacity
        self._session_id = session_id

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Result):
                self._capacity.note(self._session_id, effect.message.cost_all_ms / UNIT_MS)

    async def close(self) -> None:
        """Nothing is held."""


WAITING_MAX: Final = 64  # ours: sessions that wait for a slot; one more is refused at once
POLL_S: Final = 0.5  # ours: how often a waiting session checks whether more may begin

BUSY_STATUS: Final = {
    RequestType.CHAT: WorkerStatus.BUSY_CHAT,
    RequestType.STREAMING: WorkerStatus.BUSY_STREAMING,
    RequestType.HALF_DUPLEX_AUDIO: WorkerStatus.BUSY_HALF_DUPLEX,
}
"""What a session makes of the worker; of any other kind it is duplex."""


@dataclass(eq=False)
class Owner:
    """A session that occupies the worker, or wants to.

    Attributes:
        session_id: its id.
        kind: what it is.
        machine_status: what its machine says the worker is doing.
        kv_tokens: tokens in its cache.
        model: what its client is told that the model is called; "" where no client asks.
        secret: what its client shows to prove that the session is its own; "" without a gateway.
        is_beta: its client speaks the beta of its protocol.
    """

    session_id: str
    kind: RequestType
    machine_status: Callable[[], WorkerStatus] = lambda: WorkerStatus.IDLE
    kv_tokens: Callable[[], int] = lambda: 0
    secret: str = ""
    model: str = ""
    is_beta: bool = False

    @property
    def status(self) -> WorkerStatus:
        """What the worker is doing because of it: busy to the end, cleaning up included."""
        status = self.machine_status()
        return status if status.is_busy else BUSY_STATUS.get(self.kind, WorkerStatus.DUPLEX_ACTIVE)


class Lease:
    """One slot, held; given back exactly once."""

    def __init__(self, slots: Slots, owner: Owner, since_s: float) -> None:
        self.owner = owner
        self.since_s = since_s
        self._slots = slots

    def give_back(self) -> None:
        """Free the slot; harmless when called again."""
        self._slots.take_back(self)


@dataclass(eq=False)
class _Waiting:
    owner: Owner
    lease: asyncio.Future[Lease]
    is_served: bool = False


class Slots:
    """All slots of a worker.

    Overflow: at most `WAITING_MAX` owners wait; one more is refused.

    Attributes:
        count: how many slots there are.
        measured: how many sessions can be served at once, as learnt from units, or None.
        total_leases: how many were given away since the start.
        total_ms: for how long, those given back.
        lost: slots whose memory could not be freed; they are given to no session any more.
    """

    def __init__(
        self,
        count: int,
        now_s: Callable[[], float],
        measured: Capacity | None = None,
    ) -> None:
        """Begin with every slot free.

        Args:
            count: Slots.
            now_s: A monotonic clock.
            measured: Says how many sessions can be served at once; without it, as many as there
                are slots.
        """
        self.count = count
        self.measured = measured
        self.total_leases = 0
        self.total_ms = 0.0
        self.lost = 0
        self._now_s = now_s
        self._leases: list[Lease] = []
        self._line: deque[_Waiting] = deque()

    @property
    def owners(self) -> list[Owner]:
        """Who holds a slot, oldest first."""
        return [lease.owner for lease in self._leases]

    @property
    def capacity(self) -> int:
        """How many sessions there may be now: one at least, and no more than usable slots."""
        usable = self.count - self.lost
        if self.measured is None:
            return usable
        now_s = self._now_s()
        ages_s = [now_s - lease.since_s for lease in self._leases]
        return min(usable, self.measured.sessions(ages_s))

    @property
    def is_free(self) -> bool:
        return not self._leases

    @property
    def mean_ms(self) -> float:
        """How long a slot was held, on average."""
        ended = self.total_leases - len(self._leases)
        return self.total_ms / ended if ended else 0.0

    async def take(self, owner: Owner, wait_s: float) -> Lease:
        """Take a slot, waiting in line for it.

        Args:
            owner: Whom it is for.
            wait_s: Longest wait.

        Raises:
            WorkerBusyError: None became free in time, or too many wait.
        """
        if not self._line and len(self._leases) < self.capacity:
            return self._lease_to(owner)
        if len(self._line) >= WAITING_MAX:
            raise WorkerBusyError()
        waiting = _Waiting(owner, asyncio.get_running_loop().create_future())
        self._line.append(waiting)
        try:
            async with asyncio.timeout(wait_s):
                while not waiting.lease.done():
                    await asyncio.wait([waiting.lease], timeout=POLL_S)
                    self._serve_line()
                waiting.is_served = True
                return waiting.lease.result()
        except TimeoutError:
            raise WorkerBusyError() from None
        finally:
            self._leave_line(waiting)

    def take_back(self, lease: Lease) -> None:
        """Free a slot and hand it to the next in line."""
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        self.total_ms += (self._now_s() - lease.since_s) * MS_PER_S
        self._serve_line()

    def _serve_line(self) -> None:
        while self._line and len(self._leases) < self.capacity:
            waiting = self._line.popleft()
            waiting.lease.set_result(self._lease_to(waiting.owner))

    def _lease_to(self, owner: Owner) -> Lease:
        lease = Lease(self, owner, self._now_s())
        self._leases.append(lease)
        self.total_leases += 1
        return lease

    def _leave_line(self, waiting: _Waiting) -> None:
        """Stop waiting; a slot handed over in the moment of giving up goes to the next."""
        if waiting in self._line:
            self._line.remove(waiting)
        elif not waiting.is_served:
            waiting.lease.result().give_back()
