"""Slots of a worker: a lease per session, oldest first, and the conversations between turns.

Leases are taken and released between two awaits, so no two sessions hold the same slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.errors import WorkerBusyError
from core.history import CacheOptions, RawMessage, canonical_history, compute_history_hash
from core.modes import StreamingMode
from core.protocols.events import MS_PER_S
from core.schemas.queue import RequestType
from core.schemas.streaming import WorkerPrefill
from core.schemas.worker import WorkerStatus
from core.serving.capacity import SETTLE_S, Capacity

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
        is_recorded: there may be a recording of it.
    """

    session_id: str
    kind: RequestType
    machine_status: Callable[[], WorkerStatus] = lambda: WorkerStatus.IDLE
    kv_tokens: Callable[[], int] = lambda: 0
    secret: str = ""
    model: str = ""
    is_beta: bool = False
    is_recorded: bool = True

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
