"""Who occupies the worker: a lease per session, as many as can be served in time, oldest first.

How many that is, the worker learns from how long units take in the engine. Leases are taken and
released between two awaits, so no two sessions hold the same slot. Conversations that wait for
their next turn are kept beside the sessions that hold one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import WorkerBusyError
from core.history import CacheOptions, RawMessage, canonical_history, compute_history_hash
from core.modes import StreamingMode
from core.protocols.events import MS_PER_S
from core.schemas.queue import RequestType
from core.schemas.streaming import WorkerPrefill
from core.schemas.worker import WorkerStatus
from core.serving.observers import UnitTime, UnitTimes

HEADROOM: Final = 0.8  # ours: largest share of its own length that nearly every unit may take
CALM: Final = 0.6  # ours: that share while new sessions may still begin
SLOW_SHARE: Final = 0.05  # ours: units that may be slower, for example at a turn's end
PROOF_S: Final = 600.0  # ours: for how long a number of sessions served in time counts as proven
SETTLE_S: Final = 3.0  # ours: a session's first seconds, in which it costs more, without a model
TURNS_S: Final = 10.0  # ours: within this time a session has both listened and spoken
GROWTH: Final = 3  # ours: per so many sessions older than that, one more may begin
FIRST: Final = 8  # ours: sessions that may begin where nothing was measured at the start
UNITS_MIN: Final = 20  # ours: with fewer measured units, one slow unit would decide
LEAST_S: Final = 1e-3  # ours: least cost of a unit, against division by zero
# Ours: cost of a unit in service relative to the measurement at the start.
AGED: Final = 1.35


class Capacity:
    """How many sessions the worker can serve in time, from measured durations of units."""

    def __init__(
        self, now_s: Callable[[], float], has_memory: Callable[[], bool] = lambda: True
    ) -> None:
        """`has_memory` returns whether there is memory for the cache of another session."""
        self.units = UnitTimes(now_s)
        self._now_s = now_s
        self._has_memory = has_memory
        self._costs: UnitCosts | None = None  # measured at the start
        self._proven = 0  # sessions that were served in time, or the bound found under overload
        self._proven_s = -PROOF_S

    def expect(self, unit_s_by_sessions: Mapping[int, float]) -> None:
        """Set the measurement made before the first session; see `UnitCosts.of`."""
        self._costs = UnitCosts.of(unit_s_by_sessions)

    @property
    def is_calibrated(self) -> bool:
        """Whether the costs of units were measured at the start."""
        return self._costs is not None

    def sessions(self, ages_s: Sequence[float]) -> int:
        """Return the capacity now, at least 1, given the ages of the running sessions."""
        most = self._in_time(ages_s)
        return most if self._has_memory() else max(1, min(most, len(ages_s)))

    def _in_time(self, ages_s: Sequence[float]) -> int:
        growth = self._growth(ages_s)
        units = self.units.recent()
        if len(units) < UNITS_MIN:
            return max(1, self._proof(), growth)
        bounds = sorted(self._sessions_at(unit) for unit in units)
        bound = int(bounds[int(SLOW_SHARE * len(bounds))])
        slow = sum(unit.share > HEADROOM for unit in units)
        if slow > SLOW_SHARE * len(units):
            self._proven, self._proven_s = min(self._proof(), bound), self._now_s()
            return max(1, bound)
        # The expectation is for units with pictures, so units without prove nothing beyond it.
        costly = [u.active for u in units if u.has_picture or self._costs is None]
        most_active = max(costly, default=0)
        if most_active >= self._proof():
            self._proven, self._proven_s = most_active, self._now_s()
        return max(1, self._proof(), min(bound, growth))

    def _growth(self, ages_s: Sequence[float]) -> int:
        """Return how many sessions there may be before more of them have shown their costs."""
        if self._costs is None:
            settled = sum(age_s >= SETTLE_S for age_s in ages_s)
            return settled + max(FIRST, settled)
        settled = sum(age_s >= TURNS_S for age_s in ages_s)
        return settled + max(min(FIRST, self._costs.sessions), settled // GROWTH)

    def _proof(self) -> int:
        is_recent = self._now_s() < self._proven_s + PROOF_S
        if is_recent:
            return self._proven
        return 0 if self._costs is None else self._costs.sessions

    def _sessions_at(self, unit: UnitTime) -> float:
        """Return the capacity if all units took as long as this one."""
        share = max(unit.share, LEAST_S)
        if self._costs is None:
            return unit.active * HEADROOM / share
        each_s = max(1.0 - self._costs.idle_s / share, LEAST_S) / max(unit.active, 1)
        return self._costs.available_s / each_s


@dataclass(frozen=True)
class UnitCosts:
    """Costs of units in an engine that serves all pending ones in one batch after another.

    A batch of n units takes a + b n seconds, and n units arrive during one: with N sessions of one
    unit a second a batch takes a / (1 - b N). A unit waits for up to one batch and takes one, so
    the last session costs far more than the first.

    Attributes:
        alone_s: a, the fixed time of a batch.
        each_s: b, the time per unit.
        measured: units of the largest measured batch; no more are expected without measurement.
    """

    alone_s: float
    each_s: float
    measured: int

    @classmethod
    def of(cls, unit_s_by_sessions: Mapping[int, float]) -> UnitCosts | None:
        """Return the costs from the durations of two batches or more, else None."""
        if len(unit_s_by_sessions) < 2:
            return None
        (few, few_s), *_, (many, many_s) = sorted(unit_s_by_sessions.items())
        each_s = max((many_s - few_s) / (many - few), LEAST_S)
        return cls(max(0.0, few_s - few * each_s), AGED * each_s, many)

    @property
    def idle_s(self) -> float:
        """Longest duration of a unit in an otherwise idle engine."""
        return 2 * self.alone_s

    @property
    def available_s(self) -> float:
        """Seconds of each second that units may take so that nearly all of them stay calm."""
        return max(0.0, 1.0 - self.idle_s / CALM)

    @property
    def sessions(self) -> int:
        """Expected capacity, at least 1."""
        return max(1, min(self.measured, int(self.available_s / self.each_s)))


WAITING_MAX: Final = 64  # ours: sessions waiting for a slot; one more is refused at once
POLL_S: Final = 0.5  # ours: how often a waiting session checks whether more may begin
START_SPACING_S: Final = 0.1  # ours: between two starts, which cost 20 ms each, under load

BUSY_STATUS: Final = {
    RequestType.CHAT: WorkerStatus.BUSY_CHAT,
    RequestType.STREAMING: WorkerStatus.BUSY_STREAMING,
    RequestType.HALF_DUPLEX_AUDIO: WorkerStatus.BUSY_HALF_DUPLEX,
}
"""Status of the worker during a session; of any other kind, duplex."""


@dataclass(eq=False)
class Owner:
    """A session that holds a slot or waits for one.

    Attributes:
        machine_status: status of the worker according to the session's state machine.
        kv_tokens: tokens in its cache.
        secret: authenticates the session's client; "" without a gateway.
        model: model name requested by the client; "" if none.
        is_beta: the client uses the beta of its protocol.
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
        """Status of the worker during this session, busy until its resources are released."""
        status = self.machine_status()
        return status if status.is_busy else BUSY_STATUS.get(self.kind, WorkerStatus.DUPLEX_ACTIVE)


class Lease:
    """A slot held by a session; released exactly once."""

    def __init__(self, slots: Slots, owner: Owner, since_s: float) -> None:
        self.owner = owner
        self.since_s = since_s
        self._slots = slots

    def give_back(self) -> None:
        """Free the slot; idempotent."""
        self._slots.take_back(self)


@dataclass(eq=False)
class _Waiting:
    owner: Owner
    lease: asyncio.Future[Lease]
    is_served: bool = False


class Slots:
    """The slots of a worker.

    Overflow: at most `WAITING_MAX` owners wait; one more is refused.

    Attributes:
        count: number of slots.
        measured: limits the sessions to what is served in time; None for all slots.
        total_leases: leases since the start.
        total_ms: total duration of the released leases.
        lost: slots whose memory could not be freed and which are not used any more.
    """

    def __init__(
        self,
        count: int,
        now_s: Callable[[], float],
        measured: Capacity | None = None,
    ) -> None:
        self.count = count
        self.measured = measured
        self.total_leases = 0
        self.total_ms = 0.0
        self.lost = 0
        self._now_s = now_s
        self._leases: list[Lease] = []
        self._queue: deque[_Waiting] = deque()

    @property
    def owners(self) -> list[Owner]:
        return [lease.owner for lease in self._leases]

    @property
    def capacity(self) -> int:
        """Sessions that may run now: at least one, at most the usable slots."""
        usable = self.count - self.lost
        if self.measured is None:
            return usable
        now_s = self._now_s()
        ages_s = [now_s - lease.since_s for lease in self._leases]
        return min(usable, self.measured.sessions(ages_s))

    def _may_start(self, owner: Owner) -> bool:
        """Whether a session may start now; starts of live ones beside running ones are spaced."""
        if len(self._leases) >= self.capacity:
            return False
        is_spaced = self.measured is not None and self.measured.is_calibrated
        if not is_spaced or not self._leases or owner.kind in BUSY_STATUS:
            return True
        now_s = self._now_s()
        is_settled = now_s - self._leases[0].since_s >= SETTLE_S
        return not is_settled or now_s - self._leases[-1].since_s >= START_SPACING_S

    @property
    def is_free(self) -> bool:
        return not self._leases

    @property
    def mean_ms(self) -> float:
        ended = self.total_leases - len(self._leases)
        return self.total_ms / ended if ended else 0.0

    async def take(self, owner: Owner, wait_s: float) -> Lease:
        """Take a slot, in order of arrival.

        Raises:
            WorkerBusyError: None became free within `wait_s`, or too many are waiting.
        """
        if not self._queue and self._may_start(owner):
            return self._lease_to(owner)
        if len(self._queue) >= WAITING_MAX:
            raise WorkerBusyError()
        waiting = _Waiting(owner, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            async with asyncio.timeout(wait_s):
                while not waiting.lease.done():
                    await asyncio.wait([waiting.lease], timeout=POLL_S)
                    self._serve_queue()
                waiting.is_served = True
                return waiting.lease.result()
        except TimeoutError:
            raise WorkerBusyError() from None
        finally:
            self._leave_queue(waiting)

    def take_back(self, lease: Lease) -> None:
        """Free a slot and assign it to the next waiting owner."""
        if lease not in self._leases:
            return
        self._leases.remove(lease)
        self.total_ms += (self._now_s() - lease.since_s) * MS_PER_S
        self._serve_queue()

    def _serve_queue(self) -> None:
        while self._queue and self._may_start(self._queue[0].owner):
            waiting = self._queue.popleft()
            waiting.lease.set_result(self._lease_to(waiting.owner))

    def _lease_to(self, owner: Owner) -> Lease:
        lease = Lease(self, owner, self._now_s())
        self._leases.append(lease)
        self.total_leases += 1
        return lease

    def _leave_queue(self, waiting: _Waiting) -> None:
        """Leave the queue; a slot assigned meanwhile goes to the next owner."""
        if waiting in self._queue:
            self._queue.remove(waiting)
        elif not waiting.is_served:
            waiting.lease.result().give_back()


@dataclass(eq=False)
class Conversation:
    """A turn-based conversation: its view and the history in the view's cache.

    Attributes:
        history: in canonical form.
        options: settings that affect the cache.
        history_hash: None during a turn.
    """

    view: StreamingMode
    history: list[RawMessage] = field(default_factory=list)
    options: CacheOptions = field(default_factory=CacheOptions)
    history_hash: str | None = None
    _marked: int = 0

    def mark(self) -> None:
        self._marked = len(self.history)

    def add_messages(self, message: WorkerPrefill) -> None:
        """Add a prefilled message; hashes media, so not on the event loop."""
        if not self.history:
            self.options = CacheOptions.of(message)
        self.history += canonical_history(message.messages)

    def add_reply(self, text: str) -> None:
        self.history += canonical_history([{"role": "assistant", "content": text}])

    def roll_back(self) -> None:
        del self.history[self._marked :]

    def settle(self) -> str:
        """End the turn and return the hash that identifies the conversation for the next one."""
        self.history_hash = compute_history_hash(self.history, self.options)
        return self.history_hash


class SessionStore:
    """Conversations between turns, in order of use, identified by their history.

    Overflow: together with the sessions that hold a slot there are at most as many as slots; a new
    session evicts the least recently used conversation. The caller frees evicted ones.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: list[Conversation] = []

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kv_tokens(self) -> int:
        return sum(conversation.view.kv_cache_length for conversation in self._kept)

    @property
    def newest(self) -> Conversation | None:
        return self._kept[-1] if self._kept else None

    def keep(self, conversation: Conversation, active: int) -> list[Conversation]:
        """Store a conversation whose turn is over; `active` other sessions hold a slot.

        Returns:
            The evicted conversations: others of the same history, and the surplus.
        """
        same = [other for other in self._kept if other.history_hash == conversation.history_hash]
        self._kept = [other for other in self._kept if other not in same]
        self._kept.append(conversation)
        return same + self.make_room(active)

    def take(self, history_hash: str) -> Conversation | None:
        """Remove and return the conversation with exactly this history."""
        for conversation in self._kept:
            if conversation.history_hash == history_hash:
                self._kept.remove(conversation)
                return conversation
        return None

    def take_back(self, conversation: Conversation) -> bool:
        if conversation not in self._kept:
            return False
        self._kept.remove(conversation)
        return True

    def make_room(self, active: int) -> list[Conversation]:
        """Evict and return the surplus, given the number of active sessions."""
        surplus = max(0, len(self._kept) + active - self._capacity)
        evicted, self._kept = self._kept[:surplus], self._kept[surplus:]
        return evicted

    def clear(self) -> Sequence[Conversation]:
        evicted, self._kept = self._kept, []
        return evicted
