"""One worker as the gateway knows it: its slots, their caches, and what its health says.

Health may put a worker out of service or back into it; it never takes a session from its owner.
Nothing here awaits, so every change is whole before anyone else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.scheduling import OVERRUN_FLOOR_S, FreeSlot, remaining_s
from gateway_modules.queue.worker_state import (
    DUPLEX_STATUSES,
    IN_SERVICE,
    OUT_OF_SERVICE,
    FreeSlots,
    RunningTask,
    ServiceState,
    Slot,
    sessions_of_others,
)
from settings.workers import WorkerPlace

MISSES_TO_OFFLINE = 3  # unanswered polls that end the patience with a busy worker; section 3.5
LOADING_ETA_S = 15.0  # how long a model takes to load; ours
UNANSWERED = "It did not answer."


def utc_now() -> datetime:
    """Return the wall clock's time with its zone."""
    return datetime.now(UTC)


class WorkerConnection:
    """A worker's address, slots and state. `WorkerPool` owns it and is the only one to assign."""

    def __init__(
        self,
        worker_id: str,
        place: WorkerPlace,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Describe a worker that has not answered yet: offline, with one slot."""
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
        """What it is doing, in one word; of several sessions the oldest counts."""
        if self.service.status in OUT_OF_SERVICE:
            return self.service.status
        task = self.oldest_task
        if task is not None:
            return task.status
        return self.service.other_status if self.service.other_sessions else WorkerStatus.IDLE

    @status.setter
    def status(self, status: WorkerStatus) -> None:
        """Say what it does, instead of health; sessions of ours stay where they are."""
        if status in OUT_OF_SERVICE:
            self.service.status = status
            return
        self.service.status = WorkerStatus.IDLE
        self.service.other_status = status
        self.service.other_sessions = self.service.announced_slots if status.is_busy else 0

    @property
    def is_in_service(self) -> bool:
        """It may be given work, if it has room."""
        service = self.service
        if service.status is not IN_SERVICE or self.is_retiring or service.is_restarting:
            return False
        return service.latest is None or not service.latest.is_draining

    @property
    def is_answering(self) -> bool:
        """It answered the latest poll and is loaded and well."""
        return self.service.status not in OUT_OF_SERVICE and self.service.misses == 0

    @property
    def is_silent(self) -> bool:
        """It missed the latest polls, but is not offline yet: it may only be busy."""
        return self.service.misses > 0 and self.service.status not in OUT_OF_SERVICE

    @property
    def is_idle(self) -> bool:
        """It is ready and has no session."""
        return self.status is WorkerStatus.IDLE

    @property
    def is_busy(self) -> bool:
        """It has a session."""
        return self.status.is_busy

    @property
    def tasks(self) -> list[RunningTask]:
        """What it serves for us."""
        return [slot.task for slot in self.slots if slot.task is not None]

    @property
    def is_serving(self) -> bool:
        """It serves a session of ours."""
        return len(self._free.slots) < len(self.slots)

    @property
    def oldest_slot(self) -> Slot | None:
        """The slot that has been busy longest, None if none is."""
        busy = [slot for slot in self.slots if slot.task is not None]
        return min(busy, key=lambda slot: slot.busy_since, default=None)

    @property
    def oldest_task(self) -> RunningTask | None:
        """What it has served longest, None if nothing."""
        return self.oldest_slot.task if self.oldest_slot else None

    @property
    def current_session_id(self) -> str | None:
        """Its oldest session."""
        return self.oldest_task.session_id if self.oldest_task else None

    @property
    def room(self) -> int:
        """How many sessions may be given to it now."""
        service = self.service
        if service.misses or not self.is_in_service:
            return 0
        free = len(self._free.slots)
        if not free:
            return 0
        busy = len(self.slots) - free
        return max(0, min(free, service.capacity - busy - service.other_sessions))

    def free_slots(self) -> list[Slot]:
        """Return the slots that may be assigned now, worth least first.

        Sessions that are not ours take the slots that are worth least.
        """
        free = self._free.slots
        return free[len(free) - self.room :]

    def next_slot(self, history_hash: str, room: int) -> Slot:
        """Return the free slot for a request that continues a history.

        Args:
            history_hash: The freshest slot that holds it is chosen, else the one worth least.
            room: What `room` is now, at least one.
        """
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
            free = (slot for slot in self.slots if slot.task is None)
            ordered = sorted(free, key=lambda slot: slot.worth)
            self._ordered = FreeSlots(ordered, {slot.cached_hash for slot in ordered})
        return self._ordered

    def slot_of(self, ticket_id: str) -> Slot | None:
        """Return the slot that serves a ticket."""
        for slot in self.slots:
            if slot.task is not None and slot.task.ticket_id == ticket_id:
                return slot
        return None

    def mark_busy(
        self,
        status: WorkerStatus,
        request_type: str,
        session_id: str | None = None,
        *,
        ticket_id: str = "",
        slot: Slot | None = None,
    ) -> RunningTask:
        """Record that it serves a request from now on.

        Without a slot named, a free one is taken; without a free one, the newest
        session is replaced, so recording the same one twice takes one slot only.

        Args:
            status: For it and the next three see `RunningTask`.
            request_type: See there.
            session_id: See there.
            ticket_id: See there.
            slot: Which slot.

        Raises:
            ValueError: There is no such request type.
        """
        task = RunningTask(ticket_id, RequestType(request_type), status, session_id, self._clock())
        if slot is None:
            slot = next((slot for slot in self.slots if slot.task is None), None)
        if slot is None:
            slot = max(self.slots, key=lambda slot: slot.busy_since)
            if slot.task is not None:
                known = slot.task
                task = replace(
                    task,
                    ticket_id=ticket_id or known.ticket_id,
                    session_id=session_id or known.session_id,
                )
        slot.task, self._ordered = task, None
        self.service.epoch += 1
        self.service.status = WorkerStatus.IDLE  # it was assigned, so it is in service
        return task

    def adopt(
        self, status: WorkerStatus, request_type: str, session_id: str | None, ticket_id: str
    ) -> None:
        """Record as this gateway's a session that the worker has kept for it; see `mark_busy`."""
        slot = next((slot for slot in self.slots if slot.task is None), None)
        if slot is None:  # the worker has not said yet how many it has
            slot = Slot()
            self.slots.append(slot)
        self.service.other_sessions = max(0, self.service.other_sessions - 1)
        self.mark_busy(status, request_type, session_id, ticket_id=ticket_id, slot=slot)

    def update_duplex_status(self, status: WorkerStatus, ticket_id: str | None = None) -> None:
        """Record that a duplex session was paused or resumed; other statuses are ignored.

        Args:
            status: `DUPLEX_ACTIVE` or `DUPLEX_PAUSED`.
            ticket_id: Whose; without it the session served longest.
        """
        slot = self.slot_of(ticket_id) if ticket_id else None
        task = slot.task if slot else self.oldest_task
        if task is not None and task.status in DUPLEX_STATUSES and status in DUPLEX_STATUSES:
            task.status = status

    def vacate(self, slot: Slot, *, must_confirm: bool = False) -> None:
        """Free a slot.

        With `must_confirm` its session may still run on the worker: it takes up room, as one that
        is not ours, until an answer of the worker no longer counts it.
        """
        if must_confirm and slot.task is not None:
            self.service.other_sessions += 1
            self.service.other_status = slot.task.status
        slot.task = None
        self.service.epoch += 1
        self._fit_slots()

    def occupied_s(self, eta_s: Mapping[RequestType, float]) -> list[float]:
        """Return the time left of each slot that is occupied and will serve the queue afterwards.

        Args:
            eta_s: How long a request of each type is expected to take, s.
        """
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

    @property
    def cached_hash(self) -> str | None:
        """History its cache holds; of several the one used last."""
        return self._freshest_slot.cached_hash

    @cached_hash.setter
    def cached_hash(self, cached_hash: str | None) -> None:
        self._freshest_slot.cached_hash = cached_hash
        self._ordered = None

    @property
    def last_cache_used_at(self) -> datetime | None:
        """When that was, with time zone."""
        return self._freshest_slot.last_cache_used_at

    @last_cache_used_at.setter
    def last_cache_used_at(self, used_at: datetime | None) -> None:
        """Set it; a time without zone is local time."""
        slot = self._freshest_slot
        slot.last_cache_used_at = used_at.astimezone(UTC) if used_at else None
        self._ordered = None

    @property
    def _freshest_slot(self) -> Slot:
        return max(self.slots, key=lambda slot: slot.worth)

    def remember(self, slot: Slot, cached_hash: str | None) -> None:
        """Record what a slot's cache holds; None: nothing of use."""
        slot.remember(cached_hash, self._clock())
        self._ordered = None

    def forget_caches(self, *, of_free_slots_only: bool = False) -> None:
        """Record that the caches are empty."""
        for slot in self.slots:
            if slot.task is None or not of_free_slots_only:
                self.remember(slot, None)

    def observe(self, sample: WorkerHealth, epoch: int) -> None:
        """Handle an answer of the worker.

        What was asked for before the latest assignment or release says nothing about the time
        after it, so such an answer only shows that the worker is alive.

        Args:
            sample: The answer.
            epoch: `service.epoch` when it was asked for.
        """
        service, now = self.service, self._clock()
        if service.record(sample, now) or sample.worker_status is WorkerStatus.LOADING:
            self.forget_caches()
        if epoch != service.epoch:
            return
        if "kv_cache_length" in sample.model_fields_set and sample.kv_cache_length == 0:
            self.forget_caches(of_free_slots_only=True)
        if sample.worker_status in OUT_OF_SERVICE:
            service.status = sample.worker_status
            service.other_sessions = 0
            return
        service.status = WorkerStatus.IDLE
        service.announced_slots = sample.slots
        service.measured_capacity = sample.capacity
        service.other_status = sample.worker_status
        service.other_sessions = sessions_of_others(sample, len(self.tasks))
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
        """Have as many slots as the worker announced, more only while they are in use."""
        self._ordered = None
        surplus = len(self.slots) - self.service.announced_slots
        self.slots.extend(Slot() for _ in range(-surplus))
        if surplus > 0:
            dropped = {id(slot) for slot in self._free.slots[:surplus]}
            self.slots = [slot for slot in self.slots if id(slot) not in dropped]
        self._ordered = None
