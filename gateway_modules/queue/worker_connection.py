"""One worker as the gateway knows it: its slots, their caches, and what its health says.

Health may put a worker out of service or back into it; it never takes a session from its owner.
Nothing here awaits, so every change is whole before anyone else runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.models import request_type_of
from gateway_modules.queue.worker_state import (
    DUPLEX_STATUSES,
    OUT_OF_SERVICE,
    RunningTask,
    ServiceState,
    Slot,
    sessions_of_others,
)

MISSES_TO_OFFLINE = 3  # unanswered polls that end the patience with a busy worker; section 3.5
UNANSWERED = "It did not answer."


def utc_now() -> datetime:
    """Return the wall clock's time with its zone."""
    return datetime.now(UTC)


class WorkerConnection:
    """A worker's address, slots and state. `WorkerPool` owns it and is the only one to assign."""

    def __init__(
        self,
        worker_id: str,
        host: str,
        port: int,
        gpu_id: int | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Describe a worker that has not answered yet: offline, one slot.

        Args:
            worker_id: Its name.
            host: Where it listens.
            port: Where it listens.
            gpu_id: Its GPU, until it says otherwise.
            clock: Returns the time with its zone.
        """
        self.worker_id = worker_id
        self.host = host
        self.port = port
        self.is_draining = False
        self.slots = [Slot()]
        self.service = ServiceState()
        self._gpu_id = gpu_id
        self._clock = clock

    def __repr__(self) -> str:
        """Show what a log line needs."""
        return f"<{self.worker_id} {self.host}:{self.port} {self.status.value}>"

    # Where it is and what it does.

    @property
    def url(self) -> str:
        """Base address of its HTTP service."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def gpu_id(self) -> int | None:
        """Its GPU; what the worker says counts."""
        latest = self.service.latest
        return latest.gpu_id if latest and latest.gpu_id is not None else self._gpu_id

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
        is_ending = service.latest is not None and service.latest.is_draining
        is_leaving = self.is_draining or service.is_restarting or is_ending
        return service.status not in OUT_OF_SERVICE and not is_leaving

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

    # Sessions.

    @property
    def tasks(self) -> list[RunningTask]:
        """What it serves for us."""
        return [slot.task for slot in self.slots if slot.task is not None]

    @property
    def oldest_slot(self) -> Slot | None:
        """The slot that has been busy longest, None if none is."""
        busy = [slot for slot in self.slots if slot.task is not None]
        return min(busy, key=lambda slot: slot.busy_since, default=None)

    @property
    def oldest_task(self) -> RunningTask | None:
        """What it has served longest, None if nothing."""
        slot = self.oldest_slot
        return slot.task if slot else None

    @property
    def current_session_id(self) -> str | None:
        """Its oldest session."""
        task = self.oldest_task
        return task.session_id if task else None

    @property
    def current_request_type(self) -> RequestType | None:
        """What that session is."""
        task = self.oldest_task
        return task.request_type if task else None

    @property
    def task_started_at(self) -> datetime | None:
        """When that session was assigned, with time zone."""
        task = self.oldest_task
        return task.started_at if task else None

    @task_started_at.setter
    def task_started_at(self, started_at: datetime) -> None:
        """Move the start of that session; a time without zone is local time."""
        task = self.oldest_task
        if task is not None:
            task.started_at = started_at.astimezone(UTC)

    def free_slots(self) -> list[Slot]:
        """Return the slots that may be given away now.

        Sessions that are not ours take the slots that are worth least.
        """
        if not self.is_in_service or self.is_silent:
            return []
        free = sorted((slot for slot in self.slots if slot.task is None), key=lambda s: s.worth)
        room = self.service.capacity - len(self.tasks) - self.service.other_sessions
        return free[len(free) - min(len(free), max(0, room)) :]

    def slot_of(self, ticket_id: str) -> Slot | None:
        """Return the slot that serves a ticket."""
        for slot in self.slots:
            if slot.task is not None and slot.task.ticket_id == ticket_id:
                return slot
        return None

    def elapsed_s(self, ticket_id: str) -> float | None:
        """Return how long it has served a ticket, s; None if it does not."""
        slot = self.slot_of(ticket_id)
        return (self._clock() - slot.busy_since).total_seconds() if slot else None

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

        Without a slot named, a free one is taken; without a free one, what is told replaces what
        was known of the newest session, so telling the same twice takes one slot only.

        Args:
            status: What it does meanwhile.
            request_type: What it serves.
            session_id: Whose it is.
            ticket_id: The ticket that was assigned.
            slot: Which slot.

        Raises:
            ValueError: There is no such request type.
        """
        task = RunningTask(
            ticket_id, request_type_of(request_type), status, session_id, self._clock()
        )
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
        slot.task = task
        self.service.epoch += 1
        self.service.status = WorkerStatus.IDLE  # who gives it work says it is in service
        return task

    def adopt(
        self, status: WorkerStatus, request_type: str, session_id: str, ticket_id: str
    ) -> None:
        """Record as this gateway's a session that the worker has kept for it; see `mark_busy`."""
        slot = next((slot for slot in self.slots if slot.task is None), None)
        if slot is None:  # the worker has not said yet how many it has
            slot = Slot()
            self.slots.append(slot)
        self.service.other_sessions = max(0, self.service.other_sessions - 1)
        self.mark_busy(status, request_type, session_id, ticket_id=ticket_id, slot=slot)

    def mark_idle(self) -> None:
        """Drop every session, this gateway's and others'; a worker out of service stays so."""
        for slot in self.slots:
            slot.task = None
        self.service.other_sessions = 0
        self.service.epoch += 1
        self._fit_slots()

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
        """Take a session off its slot.

        Args:
            slot: The slot.
            must_confirm: Count the session as another's until the worker says it is gone.
        """
        if must_confirm and slot.task is not None:
            self.service.other_sessions += 1
            self.service.other_status = slot.task.status
        slot.task = None
        self.service.epoch += 1
        self._fit_slots()

    # Caches.

    @property
    def cached_hash(self) -> str | None:
        """History its cache holds; of several the one used last."""
        return self._freshest_slot.cached_hash

    @cached_hash.setter
    def cached_hash(self, cached_hash: str | None) -> None:
        self._freshest_slot.cached_hash = cached_hash

    @property
    def last_cache_used_at(self) -> datetime | None:
        """When that was, with time zone."""
        return self._freshest_slot.last_cache_used_at

    @last_cache_used_at.setter
    def last_cache_used_at(self, used_at: datetime | None) -> None:
        """Set it; a time without zone is local time."""
        slot = self._freshest_slot
        slot.last_cache_used_at = used_at.astimezone(UTC) if used_at else None

    @property
    def _freshest_slot(self) -> Slot:
        return max(self.slots, key=lambda slot: slot.worth)

    def forget_caches(self, *, of_free_slots_only: bool = False) -> None:
        """Record that the caches are empty."""
        for slot in self.slots:
            if slot.task is None or not of_free_slots_only:
                slot.remember(None, self._clock())

    # Health.

    def observe(self, sample: WorkerHealth, epoch: int) -> None:
        """Take in an answer of the worker.

        What was asked for before the latest assignment or release says nothing about the time
        after it, so such an answer only shows that the worker is alive.

        Args:
            sample: The answer.
            epoch: `service.epoch` when it was asked for.
        """
        service = self.service
        now = self._clock()
        if service.hear(sample, now) or sample.worker_status is WorkerStatus.LOADING:
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

    def observe_miss(self) -> None:
        """Count a poll without an answer.

        An idle worker is offline at once, a busy one after `MISSES_TO_OFFLINE` in a row; until
        then it gets nothing new. Its sessions last until their own sockets find it lost.
        """
        service = self.service
        service.misses += 1
        if not self.tasks or service.misses >= MISSES_TO_OFFLINE:
            if service.status is not WorkerStatus.OFFLINE and not service.is_restarting:
                service.note_error(UNANSWERED, self._clock())
            service.status = WorkerStatus.OFFLINE
            service.other_sessions = 0

    def suspect(self) -> None:
        """Take it out of service until it answers again; its sessions stay with their owners."""
        self.service.epoch += 1
        self.service.status = WorkerStatus.OFFLINE

    def _fit_slots(self) -> None:
        """Have as many slots as the worker announced, more only while they are in use."""
        surplus = len(self.slots) - self.service.announced_slots
        self.slots.extend(Slot() for _ in range(-surplus))
        if surplus > 0:
            free = sorted((slot for slot in self.slots if slot.task is None), key=lambda s: s.worth)
            dropped = {id(slot) for slot in free[:surplus]}
            self.slots = [slot for slot in self.slots if id(slot) not in dropped]
