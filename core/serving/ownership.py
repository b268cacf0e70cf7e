"""Who occupies the worker: a lease per session, as many as it can serve in time, first come first.

Taking and giving back happen between two awaits, so no two sessions ever hold the same slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from core.errors import WorkerBusyError
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from core.serving.capacity import Capacity

WAITING_MAX: Final = 64  # ours: sessions that wait for a slot; one more is refused at once
LOOK_S: Final = 0.5  # ours: how often who waits looks whether more may begin by now
MS_PER_S: Final = 1_000

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
        told_status: what its machine says the worker is doing.
        kv_tokens: tokens in its cache.
        secret: what its client shows to prove that the session is its own; "" without a gateway.
    """

    session_id: str
    kind: RequestType
    told_status: Callable[[], WorkerStatus] = lambda: WorkerStatus.IDLE
    kv_tokens: Callable[[], int] = lambda: 0
    secret: str = ""

    @property
    def status(self) -> WorkerStatus:
        """What the worker is doing because of it: busy to the end, cleaning up included."""
        told = self.told_status()
        return told if told.is_busy else BUSY_STATUS.get(self.kind, WorkerStatus.DUPLEX_ACTIVE)


class Lease:
    """One slot, held; given back exactly once."""

    def __init__(self, slots: Slots, owner: Owner, since_s: float) -> None:
        """Hold a slot for an owner since then."""
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
        measured: how many sessions can be served at once, as units tell; None if nobody asks.
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
        """Nobody holds a slot."""
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
                    await asyncio.wait([waiting.lease], timeout=LOOK_S)
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
