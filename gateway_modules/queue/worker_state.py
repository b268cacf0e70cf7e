"""Records that make up a worker's state: its slots, what runs in them, what its health says.

Nothing here decides anything; `WorkerConnection` does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.scheduling import FreeSlot

LONG_AGO = datetime.min.replace(tzinfo=UTC)

IN_SERVICE = WorkerStatus.IDLE
OUT_OF_SERVICE = frozenset({WorkerStatus.LOADING, WorkerStatus.ERROR, WorkerStatus.OFFLINE})
DUPLEX_STATUSES = frozenset({WorkerStatus.DUPLEX_ACTIVE, WorkerStatus.DUPLEX_PAUSED})


@dataclass(eq=False)
class RunningTask:
    """One session or reply a worker serves.

    Attributes:
        ticket_id: The ticket that it was assigned.
        request_type: What it is.
        status: What the worker does meanwhile.
        session_id: Whose it is.
        started_at: When it was assigned.
    """

    ticket_id: str
    request_type: RequestType
    status: WorkerStatus
    session_id: str | None
    started_at: datetime


@dataclass(eq=False)
class Slot:
    """Room for one session on a worker, and the history its cache still holds."""

    task: RunningTask | None = None
    cached_hash: str | None = None
    last_cache_used_at: datetime | None = None

    @property
    def busy_since(self) -> datetime:
        """When its session was assigned; long ago if it serves none."""
        return self.task.started_at if self.task is not None else LONG_AGO

    @property
    def worth(self) -> tuple[bool, datetime]:
        """Sorts slots: no cache first, then by when the cache was last used."""
        return self.cached_hash is not None, self.last_cache_used_at or LONG_AGO

    def remember(self, cached_hash: str | None, now: datetime) -> None:
        """Set what the cache holds; None: nothing of use."""
        self.cached_hash = cached_hash
        self.last_cache_used_at = None if cached_hash is None else now


@dataclass(eq=False)
class FreeSlots:
    """The slots of a worker that serve nothing, as long as none of them changes.

    Attributes:
        slots: Worth least first.
        hashes: Histories that they hold.
        offers: What is offered to requests that continue none of these, by the worker's room.
    """

    slots: list[Slot]
    hashes: set[str | None]
    offers: dict[int, FreeSlot] = field(default_factory=dict)


@dataclass
class ServiceState:
    """What the worker's health answers add up to.

    Attributes:
        status: `IDLE` in service; `LOADING`, `ERROR` or `OFFLINE` out of it.
        other_status: What the worker says it does for sessions that are not ours.
        other_sessions: How many of those there are; each makes one slot unusable.
        announced_slots: Sessions the worker takes at once.
        measured_capacity: Sessions it can serve in time; None if it does not say.
        misses: Polls in a row without an answer.
        epoch: Counts assignments, releases and suspicions; an answer asked for in an earlier
            epoch is stale.
        started_at: When the worker's process began, by its uptime.
        last_heartbeat: When it last answered.
        latest: That answer.
        last_error: What was wrong last, and when; it outlives the worker's process.
        is_restarting: It was asked to end and to be started again.
    """

    status: WorkerStatus = WorkerStatus.OFFLINE
    other_status: WorkerStatus = WorkerStatus.IDLE
    other_sessions: int = 0
    announced_slots: int = 1
    measured_capacity: int | None = None
    misses: int = 0
    epoch: int = 0
    started_at: datetime | None = None
    last_heartbeat: datetime | None = None
    latest: WorkerHealth | None = None
    last_error: tuple[str, datetime] | None = None
    is_restarting: bool = False

    @property
    def capacity(self) -> int:
        """Sessions that may be given to the worker."""
        if self.measured_capacity is None:
            return self.announced_slots
        return min(self.announced_slots, self.measured_capacity)

    def record(self, sample: WorkerHealth, now: datetime) -> bool:
        """Record an answer of the worker.

        Returns:
            Whether its process is another one than before.
        """
        self.misses = 0
        self.last_heartbeat = now
        before, self.latest = self.latest, sample
        if sample.error:
            self.note_error(sample.error, now)
        if "uptime_s" in sample.model_fields_set:
            self.started_at = now - timedelta(seconds=sample.uptime_s)
        is_another = before is not None and before.boot_id != sample.boot_id
        if is_another:
            self.is_restarting = False
        return is_another

    def note_error(self, text: str, now: datetime) -> bool:
        """Remember what is wrong, and return whether it is new; else the first time counts."""
        is_new = self.last_error is None or self.last_error[0] != text
        if is_new:
            self.last_error = text, now
        return is_new


def sessions_of_others(sample: WorkerHealth, ours: int) -> int:
    """Return how many of a worker's reported sessions are not this gateway's."""
    if sample.active_sessions is not None:
        return max(0, sample.active_sessions - ours)
    if sample.worker_status.is_busy and not ours:
        return sample.slots  # it does not say how many: all of them, to be safe
    return 0
