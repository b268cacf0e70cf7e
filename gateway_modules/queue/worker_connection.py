"""A worker as the gateway sees it, its slots, and the tickets that they serve.

Health may put a worker out of service or back into it; it never takes a session from its owner.
Only a ticket's wait awaits, so every change is whole before anyone else runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from core.errors import OmniError
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.models import (
    DUPLEX_STATUSES,
    OUT_OF_SERVICE,
    STATUS_OF_REQUEST,
    ServiceState,
)
from gateway_modules.queue.scheduling import OVERRUN_FLOOR_S, FreeSlot, remaining_s
from settings.workers import WorkerPlace

UPDATE_PERIOD_S = 3.0  # between two `queue_update`; docs/specification/service.md#2.2
MISSES_TO_OFFLINE = 3  # unanswered polls that end the patience with a busy worker; section 3.5
LOADING_ETA_S = 15.0  # how long a model takes to load; ours
UNANSWERED = "It did not answer."
LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(eq=False)
class Ticket:
    """A request from its wait in the queue to the slot it releases when its block ends.

    Only its pool makes one, moves it and ends it.

    Attributes:
        ticket_id: "q_" and 12 hexadecimal digits.
        leave: Leaves the queue or releases the worker; the second time nothing happens.
        history_hash: History that it continues; "" if none.
        client: Whom its wait counts against, if anybody.
        owner: Hash of the secret that its client shows; "" if it has none.
        order: Its position among all others, those of other gateways too; see `ReturnTickets`.
        position: 1 is next, 0 is assigned, no longer waiting, or not known yet.
        assigned: The worker, None while it waits and if it is refused.
        is_cache_hit: The worker should hold exactly the history that was asked for.
        has_started: Its session really began, so its duration counts for estimates.
        kept_hash: History that the worker's cache holds when the slot is released.
        changed: Set when position, worker or refusal changed.
    """

    ticket_id: str
    request_type: RequestType
    session_id: str | None
    enqueued_at: datetime
    leave: Callable[[Ticket], None]
    history_hash: str = ""
    client: str | None = None
    owner: str = ""
    order: int = 0
    position: int = 0
    estimated_wait_s: float = 0.0
    assigned: WorkerConnection | None = None
    started_at: datetime = LONG_AGO
    status: WorkerStatus = WorkerStatus.IDLE
    is_cache_hit: bool = False
    refusal: OmniError | None = None
    has_started: bool = False
    kept_hash: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(self)

    @property
    def is_waiting(self) -> bool:
        return self.assigned is None and self.refusal is None

    @property
    def cancelled(self) -> bool:
        return self.refusal is not None

    @property
    def worker(self) -> WorkerConnection:
        assert self.assigned is not None, "no worker is assigned"
        return self.assigned

    def end_wait(
        self, outcome: WorkerConnection | OmniError, *, is_cache_hit: bool = False
    ) -> None:
        self.position, self.estimated_wait_s = 0, 0.0
        if isinstance(outcome, OmniError):
            self.refusal = outcome
        else:
            self.assigned, self.is_cache_hit = outcome, is_cache_hit
        self.changed.set()

    async def wait(
        self, on_wait: OnWait | None = None, period_s: float = UPDATE_PERIOD_S
    ) -> WorkerConnection:
        """Wait for its worker, or raise the refusal.

        `on_wait` is awaited if there is a wait at all: first, at every change of position, and at
        least every `period_s`.
        """
        while self.is_waiting:
            self.changed.clear()
            if on_wait is not None and self.position:
                await on_wait(self)
            with suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await self.changed.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.worker

    def retain(self, cached_hash: str) -> None:
        """Set which history the worker's cache holds when the slot is released; "": none."""
        self.kept_hash = cached_hash or None

    def update_status(self, status: WorkerStatus) -> None:
        """Record that a duplex session was paused or continues; other statuses are ignored."""
        if self.status in DUPLEX_STATUSES and status in DUPLEX_STATUSES:
            self.status = status


OnWait = Callable[[Ticket], Awaitable[None]]


@dataclass(eq=False)
class Slot:
    """Room for one session on a worker, and the history its cache still holds."""

    ticket: Ticket | None = None
    cached_hash: str | None = None
    last_cache_used_at: datetime | None = None

    @property
    def worth(self) -> tuple[bool, datetime]:
        return self.cached_hash is not None, self.last_cache_used_at or LONG_AGO


@dataclass(eq=False)
class FreeSlots:
    """The free slots of a worker, worth least first, as long as none of them changes.

    `offers` are for requests that continue none of the `hashes`, by the worker's room.
    """

    slots: list[Slot]
    hashes: set[str | None]
    offers: dict[int, FreeSlot] = field(default_factory=dict)


class WorkerConnection:
    """A worker's address, slots and state. `WorkerPool` owns it and is the only one to assign."""

    def __init__(
        self,
        worker_id: str,
        place: WorkerPlace,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self.worker_id = worker_id
        self.place = place
        self.is_draining = False
        self.has_left = False
        self.slots = [Slot()]
        self.service = ServiceState()
        self._clock = clock
        self._ordered: FreeSlots | None = None  # see `_free`; None: to be sorted again

    @property
    def is_retiring(self) -> bool:
        """It gets nothing new: an administrator says so, or it is not listed any more."""
        return self.is_draining or self.has_left

    @property
    def status(self) -> WorkerStatus:
        if self.service.status in OUT_OF_SERVICE:
            return self.service.status
        task = self.oldest_task
        if task is not None:
            return task.status
        return self.service.other_status if self.service.other_sessions else WorkerStatus.IDLE

    @property
    def is_in_service(self) -> bool:
        service = self.service
        if service.status is not WorkerStatus.IDLE or self.is_retiring or service.is_restarting:
            return False
        return service.latest is None or not service.latest.is_draining

    @property
    def is_answering(self) -> bool:
        return self.service.status not in OUT_OF_SERVICE and self.service.misses == 0

    @property
    def is_silent(self) -> bool:
        """It missed the latest polls, but is not offline yet: it may only be busy."""
        return self.service.misses > 0 and self.service.status not in OUT_OF_SERVICE

    @property
    def is_idle(self) -> bool:
        return self.status is WorkerStatus.IDLE

    @property
    def is_busy(self) -> bool:
        return self.status.is_busy

    @property
    def tasks(self) -> list[Ticket]:
        return [slot.ticket for slot in self.slots if slot.ticket is not None]

    @property
    def is_serving(self) -> bool:
        return len(self._free.slots) < len(self.slots)

    @property
    def oldest_task(self) -> Ticket | None:
        return min(self.tasks, key=lambda ticket: ticket.started_at, default=None)

    @property
    def room(self) -> int:
        service = self.service
        if service.misses or not self.is_in_service:
            return 0
        free = len(self._free.slots)
        if not free:
            return 0
        busy = len(self.slots) - free
        return max(0, min(free, service.capacity - busy - service.other_sessions))

    def next_slot(self, history_hash: str, room: int) -> Slot:
        """Return the freshest free slot that holds a history, else the free one worth least."""
        free = self._free.slots
        if history_hash and history_hash in self._free.hashes:
            for slot in reversed(free[len(free) - room :]):
                if slot.cached_hash == history_hash:
                    return slot
        return free[len(free) - room]

    def offer(self, history_hash: str, room: int) -> FreeSlot:
        """Return the slot that a request would get here; arguments as of `next_slot`."""
        free = self._free
        if not history_hash or history_hash not in free.hashes:
            history_hash = ""
            if room in free.offers:
                return free.offers[room]
        slot = self.next_slot(history_hash, room)
        used_s = slot.last_cache_used_at.timestamp() if slot.last_cache_used_at else None
        busy = len(self.slots) - len(free.slots)
        offer = FreeSlot(self.worker_id, busy, slot.cached_hash, used_s)
        if not history_hash:
            free.offers[room] = offer
        return offer

    @property
    def _free(self) -> FreeSlots:
        if self._ordered is None:
            free = (slot for slot in self.slots if slot.ticket is None)
            ordered = sorted(free, key=lambda slot: slot.worth)
            self._ordered = FreeSlots(ordered, {slot.cached_hash for slot in ordered})
        return self._ordered

    def slot_of(self, ticket: Ticket) -> Slot | None:
        return next((slot for slot in self.slots if slot.ticket is ticket), None)

    def serve(self, ticket: Ticket, slot: Slot) -> None:
        ticket.started_at, ticket.status = self._clock(), STATUS_OF_REQUEST[ticket.request_type]
        slot.ticket, self._ordered = ticket, None
        self.service.epoch += 1
        self.service.status = WorkerStatus.IDLE  # it was assigned, so it is in service

    def adopt(self, ticket: Ticket) -> None:
        slot = next((slot for slot in self.slots if slot.ticket is None), None)
        if slot is None:  # the worker has not said yet how many it has
            slot = Slot()
            self.slots.append(slot)
        self.service.other_sessions = max(0, self.service.other_sessions - 1)
        self.serve(ticket, slot)

    def vacate(self, slot: Slot, *, must_confirm: bool = False) -> None:
        """With `must_confirm` its session may still run on the worker.

        It takes up room, as one of others, until an answer of the worker no longer counts it.
        """
        if must_confirm and slot.ticket is not None:
            self.service.other_sessions += 1
            self.service.other_status = slot.ticket.status
        slot.ticket = None
        self.service.epoch += 1
        self._fit_slots()

    def occupied_s(self, eta_s: Mapping[RequestType, float]) -> list[float]:
        """Return the time left of each occupied slot that will serve the queue afterwards."""
        if self.is_retiring:
            return []
        if self.service.status is WorkerStatus.LOADING:
            return [LOADING_ETA_S] * self.service.announced_slots
        if not self.is_in_service:
            return []
        now = self._clock()
        return [
            remaining_s(eta_s[task.request_type], (now - task.started_at).total_seconds())
            for task in self.tasks
        ] + [OVERRUN_FLOOR_S] * self.service.other_sessions

    def remember(self, slot: Slot, cached_hash: str | None) -> None:
        slot.cached_hash = cached_hash
        slot.last_cache_used_at = None if cached_hash is None else self._clock()
        self._ordered = None

    def forget_caches(self, *, of_free_slots_only: bool = False) -> None:
        for slot in self.slots:
            if slot.ticket is None or not of_free_slots_only:
                self.remember(slot, None)

    def observe(self, sample: WorkerHealth, epoch: int) -> None:
        """Follow an answer of the worker.

        What was asked for before the latest assignment or release, hence in an earlier `epoch`,
        says nothing about the time after it: such an answer only shows that the worker is alive.
        """
        service, now = self.service, self._clock()
        if service.record(sample, now) or sample.worker_status is WorkerStatus.LOADING:
            self.forget_caches()
        if epoch != service.epoch:
            return
        if "kv_cache_length" in sample.model_fields_set and sample.kv_cache_length == 0:
            self.forget_caches(of_free_slots_only=True)
        service.update(sample, len(self.tasks))
        self._fit_slots()

    def observe_miss(self, reason: str = UNANSWERED) -> bool:
        """Count a poll without an answer, and return whether it says anything new.

        An idle worker is offline at once, a busy one after `MISSES_TO_OFFLINE` in a row; until
        then it gets nothing new. Its sessions last until their own sockets find it lost.
        """
        service = self.service
        service.misses += 1
        is_over = not self.tasks or service.misses >= MISSES_TO_OFFLINE
        is_news = False
        if is_over and not service.is_restarting:
            was_there = service.status is not WorkerStatus.OFFLINE
            is_news = service.note_error(reason, self._clock()) or was_there
        if is_over:
            service.status = WorkerStatus.OFFLINE
            service.other_sessions = 0
        return is_news

    def suspect(self) -> None:
        """Take it out of service until it answers again; its sessions stay with their owners."""
        self.service.epoch += 1
        self.service.status = WorkerStatus.OFFLINE

    def _fit_slots(self) -> None:
        self._ordered = None
        surplus = len(self.slots) - self.service.announced_slots
        self.slots.extend(Slot() for _ in range(-surplus))
        if surplus > 0:
            dropped = {id(slot) for slot in self._free.slots[:surplus]}
            self.slots = [slot for slot in self.slots if id(slot) not in dropped]
        self._ordered = None
