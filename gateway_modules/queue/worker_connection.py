"""The gateway's view of a worker: its sessions, its state, and the tickets that wait for one.

Health checks take a worker out of service and put it back; they never end a session.
Only `Ticket.wait` awaits, so every other change is atomic on the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Protocol, Self

from core.errors import OmniError
from core.schemas.queue import RequestType, SocketKind
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.estimates import OVERRUN_FLOOR_S, remaining_s
from gateway_modules.web.limits import happens
from settings.workers import WorkerPlace

UPDATE_PERIOD_S = 3.0  # between two `queue_update`; docs/specification/service.md#2.2
# Unanswered polls after which a busy worker is offline; docs/specification/service.md#3.5.
MISSES_TO_OFFLINE = 3
LOADING_ETA_S = 15.0  # assumed time to load a model
UNANSWERED = "It did not answer."
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
TICKET_BYTES = 6  # "q_" and twice as many digits; docs/specification/service.md#3.1
NEVER_S: Final = float("-inf")

STATUS_OF_REQUEST: Mapping[RequestType, WorkerStatus] = {
    RequestType.CHAT: WorkerStatus.BUSY_CHAT,
    RequestType.STREAMING: WorkerStatus.BUSY_STREAMING,
    RequestType.HALF_DUPLEX_AUDIO: WorkerStatus.BUSY_HALF_DUPLEX,
    RequestType.AUDIO_DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
    RequestType.OMNI_DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
    RequestType.DUPLEX: WorkerStatus.DUPLEX_ACTIVE,
}
"""Status of a worker that serves a request of each type."""

OUT_OF_SERVICE = frozenset({WorkerStatus.LOADING, WorkerStatus.ERROR, WorkerStatus.OFFLINE})
DUPLEX_STATUSES = frozenset({WorkerStatus.DUPLEX_ACTIVE, WorkerStatus.DUPLEX_PAUSED})
LONG_REQUESTS = frozenset(RequestType) - {RequestType.CHAT, RequestType.STREAMING}
"""Requests that occupy a slot for a whole session, not for one reply."""


class Clock(Protocol):
    def __call__(self) -> datetime: ...

    def elapsed_s(self) -> float:
        """Return the time since some moment, which goes on evenly when the date is set."""


class SystemClock:
    def __call__(self) -> datetime:
        return datetime.now(UTC)

    def elapsed_s(self) -> float:
        return time.monotonic()


utc_now: Final = SystemClock()


@dataclass(eq=False)
class Ticket:
    """A request in the queue or a slot, until the end of its block; only its pool changes it."""

    request_type: RequestType
    session_id: str | None = None
    history_hash: str = ""  # of the history it continues; "" if none
    client: str | None = None  # whose queue quota it uses, if any
    owner: str = ""  # hash of the client's session secret; "" if it has none
    order: int = 0  # sort key in the queue, comparable across gateways; see `ReturnTickets`
    kind: SocketKind | None = None  # of the client's socket; None for a request over HTTP
    ticket_id: str = field(default_factory=lambda: f"q_{secrets.token_hex(TICKET_BYTES)}")
    enqueued_at: datetime = LONG_AGO
    leave: Callable[[Ticket], None] = field(init=False, repr=False)  # of its pool
    position: int = 0  # 1 is next; 0 means assigned, refused or not known yet
    estimated_wait_s: float = 0.0
    assigned: WorkerConnection | None = None  # None while waiting or refused
    started_at: datetime = LONG_AGO
    started_s: float = 0.0  # the same by `Clock.elapsed_s`
    status: WorkerStatus = WorkerStatus.IDLE
    is_cache_hit: bool = False  # the worker should hold exactly the requested history
    refusal: OmniError | None = None
    has_started: bool = False  # so that its duration counts towards the estimates
    kept_hash: str = ""  # of the history in the worker's cache when the slot is released
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # position, worker or refusal
    on_end: Callable[[Ticket], None] | None = None  # called at the end of waiting
    on_status: Callable[[WorkerStatus], None] | None = None  # called by `update_status`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(self)

    @property
    def is_waiting(self) -> bool:
        return self.assigned is None and self.refusal is None

    @property
    def worker(self) -> WorkerConnection:
        assert self.assigned is not None, "no worker is assigned"
        return self.assigned

    @property
    def query(self) -> dict[str, str]:
        """Query parameters of its worker's address."""
        duplex = {RequestType.OMNI_DUPLEX: "omni", RequestType.AUDIO_DUPLEX: "audio"}
        variant = {"variant": duplex[self.request_type]} if self.request_type in duplex else {}
        return {"session_id": self.session_id or "", **variant}

    def end_wait(
        self, outcome: WorkerConnection | OmniError, *, is_cache_hit: bool = False
    ) -> None:
        self.position, self.estimated_wait_s = 0, 0.0
        if isinstance(outcome, OmniError):
            self.refusal = outcome
        else:
            self.assigned, self.is_cache_hit = outcome, is_cache_hit
        self.changed.set()
        if self.on_end is not None:
            self.on_end(self)

    async def wait(
        self, on_wait: OnWait | None = None, period_s: float = UPDATE_PERIOD_S
    ) -> WorkerConnection:
        """Wait for a worker, or raise the refusal.

        While waiting, `on_wait` is awaited at once, at every change of position and at least every
        `period_s`.
        """
        while self.is_waiting:
            self.changed.clear()
            if on_wait is not None and self.position:
                await on_wait(self)
            await happens(self.changed, period_s)
        if self.refusal is not None:
            raise self.refusal
        return self.worker

    def update_status(self, status: WorkerStatus) -> None:
        """Record that a duplex session was paused or resumed; other statuses are ignored."""
        if self.on_status is not None:
            self.on_status(status)
        if self.status in DUPLEX_STATUSES and status in DUPLEX_STATUSES:
            self.status = status


OnWait = Callable[[Ticket], Awaitable[None]]


@dataclass
class ServiceState:
    """State of a worker, from its health answers; one requested in an earlier `epoch` is stale."""

    status: WorkerStatus = WorkerStatus.OFFLINE  # `IDLE` in service
    foreign_status: WorkerStatus = WorkerStatus.IDLE  # for sessions of other gateways
    foreign_sessions: int = 0  # their number; each makes one slot unusable
    announced_slots: int = 1
    capacity: int = 1  # how many of those it can serve in time
    missed_polls: int = 0  # consecutive ones
    epoch: int = 0  # counts assignments, releases and failures
    started_at: datetime | None = None
    last_heartbeat: datetime | None = None
    latest: WorkerHealth | None = None
    last_error: tuple[str, datetime] | None = None  # and its time; survives the worker's restart
    is_restarting: bool = False

    def record(self, sample: WorkerHealth, now: datetime) -> bool:
        """Record a health answer; return whether the worker's process was replaced."""
        self.missed_polls, self.last_heartbeat = 0, now
        before, self.latest = self.latest, sample
        if sample.error:
            is_again = before is None or before.error != sample.error
            self.record_error(sample.error, now, is_again=is_again)
        if "uptime_s" in sample.model_fields_set:
            self.started_at = now - timedelta(seconds=sample.uptime_s)
        is_another = before is not None and before.boot_id != sample.boot_id
        # The first answer may be the next process's: which one was asked to restart is unknown.
        if is_another or (before is None and not sample.is_draining):
            self.is_restarting = False
        return is_another

    def record_error(self, text: str, now: datetime, *, is_again: bool = False) -> bool:
        """Return whether the error is new; `is_again`: the same one had passed meanwhile."""
        is_new = is_again or self.last_error is None or self.last_error[0] != text
        if is_new:
            self.last_error = text, now
        return is_new

    def update(self, sample: WorkerHealth, ours: int) -> None:
        """Apply a current answer; `ours` is the number of this gateway's sessions."""
        if sample.worker_status in OUT_OF_SERVICE:
            self.status, self.foreign_sessions = sample.worker_status, 0
            return
        self.status = WorkerStatus.IDLE
        self.announced_slots = self.capacity = sample.slots
        if sample.capacity is not None:
            self.capacity = min(sample.slots, sample.capacity)
        self.foreign_status = sample.worker_status
        if sample.active_sessions is not None:
            self.foreign_sessions = max(0, sample.active_sessions - ours)
        else:  # number unknown: assume all slots
            is_busy = sample.worker_status.is_busy and not ours
            self.foreign_sessions = sample.slots if is_busy else 0


def slot_rank(
    history_hash: str, cached_hash: str | None, last_used_s: float, running: int
) -> tuple[int, float, int]:
    """Return the sort key of a free slot for a request; the lowest is assigned, then the first.

    In this order: (1) slots whose cache holds its history, the most recent first, (2) those
    without a cache, (3) the least recently used cache. Ties go to the worker with the fewest
    sessions, `running`. `history_hash` is "" if the request cannot use a cache.

    Source: docs/specification/service.md#3.4.
    """
    if history_hash and cached_hash == history_hash:
        return 0, -last_used_s, 0
    return (1, 0.0, running) if cached_hash is None else (2, last_used_s, running)


@dataclass(eq=False, repr=False)
class WorkerConnection:
    """A worker's address, sessions and state; only `WorkerPool` assigns sessions to it.

    A session takes one of its slots. The others may hold the caches of ended sessions, which the
    histories in them identify.
    """

    worker_id: str
    place: WorkerPlace
    _clock: Clock = utc_now
    is_draining: bool = False
    has_left: bool = False
    tasks: list[Ticket] = field(default_factory=list)  # oldest first
    # Of unoccupied slots: each history and when its cache was used last, longest ago first.
    caches: dict[str, datetime] = field(default_factory=dict)
    service: ServiceState = field(default_factory=ServiceState)
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # set to have it polled at once

    @property
    def is_retiring(self) -> bool:
        """Gets no new sessions: drained by an administrator, or no longer listed."""
        return self.is_draining or self.has_left

    @property
    def status(self) -> WorkerStatus:
        if self.service.status in OUT_OF_SERVICE:
            return self.service.status
        task = self.oldest_task
        if task is not None:
            return task.status
        return self.service.foreign_status if self.service.foreign_sessions else WorkerStatus.IDLE

    @property
    def is_in_service(self) -> bool:
        service = self.service
        if service.status is not WorkerStatus.IDLE or self.is_retiring or service.is_restarting:
            return False
        return service.latest is None or not service.latest.is_draining

    @property
    def is_answering(self) -> bool:
        return self.service.status not in OUT_OF_SERVICE and not self.is_silent

    @property
    def is_silent(self) -> bool:
        """Missed the latest polls without being offline yet: it may only be busy."""
        service = self.service
        return service.missed_polls > 0 and service.status not in OUT_OF_SERVICE

    @property
    def oldest_task(self) -> Ticket | None:
        return self.tasks[0] if self.tasks else None

    @property
    def available_slots(self) -> int:
        """How many more sessions may be assigned now."""
        service = self.service
        left = service.capacity - len(self.tasks) - service.foreign_sessions
        return left if left > 0 and not service.missed_polls and self.is_in_service else 0

    @property
    def slot_caches(self) -> list[tuple[str | None, datetime | None]]:
        """The history in each slot's cache and its last use, those of sessions first."""
        used = [(one.history_hash, one.started_at) for one in self.tasks if one.is_cache_hit]
        known: list[tuple[str | None, datetime | None]] = [*used, *self.caches.items()]
        slots = max(self.service.announced_slots, len(self.tasks))
        return known + [(None, None)] * (slots - len(known))

    def cache_for(self, history_hash: str, available: int) -> str | None:
        """Return the history whose cache a session would take: its own, if it is there.

        Otherwise that used longest ago, or None if a slot without a cache is left. `available` is
        `available_slots`; sessions of other gateways occupy the least valuable slots.
        """
        lost = max(0, len(self.caches) - available)
        if history_hash in self.caches and history_hash not in islice(self.caches, lost):
            return history_hash
        return next(islice(self.caches, lost, None)) if len(self.caches) >= available else None

    def serve(self, ticket: Ticket) -> None:
        ticket.started_at, ticket.started_s = self._clock(), self._clock.elapsed_s()
        ticket.status = STATUS_OF_REQUEST[ticket.request_type]
        self.tasks.append(ticket)
        self.service.epoch += 1
        self.service.status = WorkerStatus.IDLE  # an assigned worker is in service
        self._drop_caches()

    def adopt(self, ticket: Ticket) -> None:
        self.service.foreign_sessions = max(0, self.service.foreign_sessions - 1)
        self.serve(ticket)

    def release(self, ticket: Ticket, *, must_confirm: bool = False) -> None:
        """With `must_confirm` its session counts as foreign until a health answer omits it."""
        if must_confirm:
            self.service.foreign_sessions += 1
            self.service.foreign_status = ticket.status
        self.tasks.remove(ticket)
        self.service.epoch += 1
        self.remember(ticket.kept_hash)

    def occupied_s(self, eta_s: Mapping[RequestType, float]) -> list[float]:
        """Return the remaining time, s, of each occupied slot that will serve the queue next."""
        if self.is_retiring:
            return []
        if self.service.status is WorkerStatus.LOADING:
            return [LOADING_ETA_S] * self.service.announced_slots
        if not self.is_in_service:
            return []
        now_s = self._clock.elapsed_s()
        ours = [(eta_s[each.request_type], now_s - each.started_s) for each in self.tasks]
        left_s = [remaining_s(all_s, past_s) for all_s, past_s in ours]
        return left_s + [OVERRUN_FLOOR_S] * self.service.foreign_sessions

    def remember(self, history_hash: str) -> None:
        """Note that an unoccupied slot's cache holds a history; "" for none."""
        self.caches.pop(history_hash, None)
        if history_hash:
            self.caches[history_hash] = self._clock()
        self._drop_caches()

    def observe(self, sample: WorkerHealth, epoch: int) -> None:
        """Apply a health answer; one of an earlier `epoch` only shows that the worker is alive."""
        service, now = self.service, self._clock()
        if service.record(sample, now) or sample.worker_status is WorkerStatus.LOADING:
            self.caches.clear()
        if epoch != service.epoch:
            return
        if "kv_cache_length" in sample.model_fields_set and sample.kv_cache_length == 0:
            self.caches.clear()
        service.update(sample, len(self.tasks))
        self._drop_caches()

    def observe_miss(self, reason: str = UNANSWERED) -> bool:
        """Count an unanswered poll; return whether the worker's state or error changed.

        An idle worker is offline at once, a busy one after `MISSES_TO_OFFLINE` in a row; until
        then it gets no new sessions. Its sessions last until their own sockets fail.
        """
        service = self.service
        service.missed_polls += 1
        if self.tasks and service.missed_polls < MISSES_TO_OFFLINE:
            return False
        was_there = service.status is not WorkerStatus.OFFLINE
        service.status, service.foreign_sessions = WorkerStatus.OFFLINE, 0
        if service.is_restarting:
            return False
        failed_at, answered_at = (service.last_error or ("", LONG_AGO))[1], service.last_heartbeat
        is_again = answered_at is not None and answered_at > failed_at
        return service.record_error(reason, self._clock(), is_again=is_again) or was_there

    def mark_offline(self) -> None:
        """Take the worker out of service until it answers again; its sessions continue."""
        self.service.epoch += 1
        self.service.status = WorkerStatus.OFFLINE

    def _drop_caches(self) -> None:
        """Drop the caches used longest ago for which no slot is left."""
        while len(self.caches) > max(0, self.service.announced_slots - len(self.tasks)):
            del self.caches[next(iter(self.caches))]
