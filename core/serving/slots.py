"""Slots of a worker: their owners, oldest first, and the conversations between turns.

Slots are granted and given back between two awaits, so no two sessions hold the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from core.errors import WorkerBusyError
from core.history import CacheOptions, RawMessage, canonical_history, compute_history_hash
from core.modes import StreamingMode, Threads
from core.protocols.events import MS_PER_S
from core.schemas.queue import RequestType
from core.schemas.streaming import WorkerPrefill
from core.schemas.worker import WorkerStatus
from core.serving.capacity import SETTLE_S, Capacity

BUSY_WAIT_S: Final = 5.0  # source: docs/specification/service.md#2.3.4 and #2.5.6
WAITING_MAX: Final = 64  # ours: sessions waiting for a slot; one more is refused at once
START_SPACING_S: Final = 0.1  # ours: between two starts, which cost 20 ms each, under load
RETRY_S: Final = START_SPACING_S  # how often it is checked whether a waiting session may begin

BUSY_STATUS: Final = {
    RequestType.CHAT: WorkerStatus.BUSY_CHAT,
    RequestType.STREAMING: WorkerStatus.BUSY_STREAMING,
    RequestType.HALF_DUPLEX_AUDIO: WorkerStatus.BUSY_HALF_DUPLEX,
}
"""Status of the worker during a session; of any other kind, duplex."""


@dataclass(eq=False)
class Owner:
    """A session that holds a slot or waits for one."""

    session_id: str
    kind: RequestType
    machine_status: Callable[[], WorkerStatus] = lambda: WorkerStatus.IDLE
    kv_tokens: Callable[[], int] = lambda: 0  # in its cache
    secret: str = ""  # authenticates the session's client; "" without a gateway
    model: str = ""  # requested by the client; "" if none
    is_beta: bool = False  # the client uses the beta of its protocol
    is_recorded: bool = True  # there may be a recording of it

    @property
    def status(self) -> WorkerStatus:
        """Status of the worker during this session, busy until its resources are released."""
        status = self.machine_status()
        return status if status.is_busy else BUSY_STATUS.get(self.kind, WorkerStatus.DUPLEX_ACTIVE)


class Slots:
    """The slots of a worker.

    Overflow: at most `WAITING_MAX` owners wait; one more is refused.
    """

    def __init__(
        self, count: int, now_s: Callable[[], float], has_memory: Callable[[], bool] = lambda: True
    ) -> None:
        self.count = count
        self.measured = Capacity(now_s, has_memory)  # how many sessions are served in time
        self.total_grants = 0  # since the start
        self.total_ms = 0.0  # of the slots given back
        self.lost = 0  # whose memory could not be freed; they are not used any more
        self._now_s = now_s
        self._since_s: dict[Owner, float] = {}  # of each owner, the oldest first
        self._queue: dict[Owner, asyncio.Event] = {}  # set once the slot is granted
        self._retry: asyncio.TimerHandle | None = None  # while owners wait

    @property
    def owners(self) -> list[Owner]:
        return list(self._since_s)

    @property
    def capacity(self) -> int:
        """Sessions that may run now: at most the usable slots; zero only if all are lost."""
        ages_s = [self._now_s() - since_s for since_s in self._since_s.values()]
        return min(max(0, self.count - self.lost), self.measured.sessions(ages_s))

    def _may_start(self, owner: Owner) -> bool:
        """Whether a session may start now; starts of live ones beside running ones are spaced."""
        if len(self._since_s) >= self.capacity:
            return False
        if not (self.measured.is_calibrated and self._since_s) or owner.kind in BUSY_STATUS:
            return True
        now_s, since_s = self._now_s(), list(self._since_s.values())
        return now_s - since_s[0] < SETTLE_S or now_s - since_s[-1] >= START_SPACING_S

    @property
    def mean_ms(self) -> float:
        ended = self.total_grants - len(self._since_s)
        return self.total_ms / ended if ended else 0.0

    async def take(self, owner: Owner, wait_s: float | None = None) -> None:
        """Take a slot for an owner that has none, in order of arrival.

        Raises `WorkerBusyError` if none became free within `wait_s`, by default `BUSY_WAIT_S`, or
        too many are waiting.
        """
        if len(self._queue) >= WAITING_MAX:
            raise WorkerBusyError()
        granted, is_served = asyncio.Event(), False
        self._queue[owner] = granted
        self._serve_queue()
        try:
            async with asyncio.timeout(BUSY_WAIT_S if wait_s is None else wait_s):
                await granted.wait()
            is_served = True
        except TimeoutError:
            raise WorkerBusyError() from None
        finally:
            self._queue.pop(owner, None)
            if not is_served:  # a slot granted meanwhile goes to the next owner
                self.give_back(owner)

    def give_back(self, owner: Owner) -> None:
        """Free an owner's slot, if it has one, and grant it to the next one that waits."""
        since_s = self._since_s.pop(owner, None)
        if since_s is not None:
            self.total_ms += (self._now_s() - since_s) * MS_PER_S
            self._serve_queue()

    def _serve_queue(self) -> None:
        """Grant slots in order, and try again soon while owners wait."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        while self._queue and self._may_start(owner := next(iter(self._queue))):
            self._since_s[owner] = self._now_s()
            self.total_grants += 1
            self._queue.pop(owner).set()
        if self._queue:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._serve_queue)


@dataclass(eq=False)
class Conversation:
    """A turn-based conversation: its view and the history in the view's cache."""

    view: StreamingMode
    history: list[RawMessage] = field(default_factory=list)  # in canonical form
    options: CacheOptions = field(default_factory=CacheOptions)  # which affect the cache
    history_hash: str | None = None  # as of its last turn; None before the first has ended
    threads: Threads | None = None  # of the socket that used it last
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

        Evicts and returns another one of the same history, and the surplus.
        """
        same = self.take(conversation.history_hash)
        self._kept.append(conversation)
        return [*([] if same is None else [same]), *self.make_room(active)]

    def take(self, history_hash: str | None) -> Conversation | None:
        """Remove and return the conversation with exactly this history; there is at most one."""
        for conversation in self._kept:
            if conversation.history_hash == history_hash:
                self._kept.remove(conversation)
                return conversation
        return None

    def take_oldest(self) -> Conversation | None:
        """Remove and return the least recently used conversation."""
        return self._kept.pop(0) if self._kept else None

    def make_room(self, active: int) -> list[Conversation]:
        """Evict and return the surplus, given the number of active sessions."""
        surplus = max(0, len(self._kept) + active - self._capacity)
        evicted, self._kept = self._kept[:surplus], self._kept[surplus:]
        return evicted
