"""The queue and the workers: who waits, who is served where, and the one place that assigns.

Everything that changes the queue or a slot is synchronous, so each change is whole before anyone
else runs; only waiting and health polling await.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from types import EllipsisType

from core.errors import NoWorkerError, QueueFullError, ShuttingDownError
from gateway_modules.queue.dispatch import Assignment, assign
from gateway_modules.queue.eta import DEFAULT_EMA_ALPHA, DEFAULT_MIN_SAMPLES, EtaTracker
from gateway_modules.queue.health import HealthMonitor
from gateway_modules.queue.line import UPDATE_PERIOD_S, OnWait, Place, QueueEntry, WaitingLine
from gateway_modules.queue.models import (
    STATUS_OF_REQUEST,
    EtaConfig,
    EtaStatus,
    QueueStatus,
    QueueTicket,
    ServiceStatus,
    request_type_of,
)
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import WorkerConnection, utc_now
from gateway_modules.queue.worker_set import WorkerSet

__all__ = ["Place", "QueueEntry", "QueueFullError", "WorkerConnection", "WorkerPool"]

TICKET_BYTES = 6  # "q_" and twice as many digits; docs/specification/service.md#3.1
# Estimates are rounded to a tenth, so reading them more often would show the same.
REFRESH = timedelta(seconds=0.1)


class WorkerPool(WorkerSet):
    """Owns workers, queue and wait estimates.

    The queue holds at most `max_queue_size` waiting requests; one more is refused with
    `QueueFullError`. Order is strictly first come, first served over all request types.
    """

    QueueFullError = QueueFullError

    def __init__(
        self,
        worker_addresses: Sequence[str],
        max_queue_size: int = 1000,
        request_timeout: float = 300.0,
        eta_config: EtaConfig | None = None,
        ema_alpha: float = DEFAULT_EMA_ALPHA,
        ema_min_samples: int = DEFAULT_MIN_SAMPLES,
        *,
        client: WorkerClient | None = None,
        max_waiting_per_client: int = 0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Build a pool of workers that are offline until `start` begins to poll them.

        Args:
            worker_addresses: "host:port" of each; without a port, 22400 and its index.
            max_queue_size: How many requests may wait.
            request_timeout: Limit of one HTTP call to a worker, s.
            eta_config: Expected durations.
            ema_alpha: Weight of the newest measured duration.
            ema_min_samples: Durations needed before measurements count.
            client: Calls the workers; the pool closes it.
            max_waiting_per_client: How many requests of one client may wait; 0 is no limit.
            clock: Returns the time with its zone.

        Raises:
            ValueError: An address cannot be read or comes twice.
        """
        super().__init__(worker_addresses, clock)
        self.client = client or WorkerClient(request_timeout_s=request_timeout)
        self.max_queue_size = max_queue_size
        self.eta_tracker = EtaTracker(eta_config, ema_alpha, ema_min_samples)
        self.is_intake_paused = False
        self.is_started = False
        self.is_stopped = False
        self._line = WaitingLine()
        self._queue = self._line.entries
        self._monitor = HealthMonitor(self.client.health, self._dispatch_next)
        self._max_waiting_per_client = max_waiting_per_client
        self._quiet = asyncio.Event()
        self._estimated_at: datetime | None = None

    async def start(self) -> None:
        """Begin to poll the workers' health."""
        self.is_started = True
        self._monitor.start(self.workers.values())

    async def stop(self) -> None:
        """Refuse new requests, send away those that wait, end polling. Running ones go on."""
        self.close_intake()
        try:
            await self._monitor.stop()
        finally:
            await self.client.close()

    def close_intake(self) -> None:
        """Refuse new requests for good and send away those that wait; polling goes on."""
        self.is_stopped = True
        self._line.empty()
        self._note_quiet()

    async def wait_until_quiet(self, limit_s: float) -> bool:
        """Wait at most `limit_s` until the queue is empty and all workers are idle."""
        self._note_quiet()
        try:
            async with asyncio.timeout(limit_s):
                await self._quiet.wait()
        except TimeoutError:
            return False
        return True

    # Queueing.

    def enqueue(
        self,
        request_type: str,
        session_id: str | None = None,
        history_hash: str | None = None,
        *,
        client: str | None = None,
    ) -> tuple[QueueTicket, asyncio.Future[WorkerConnection]]:
        """Ask for a worker. `assigned` is safer: here the caller must cancel or release itself.

        Args:
            request_type: One of `RequestType`, or an older name of one.
            session_id: Whose request it is.
            history_hash: History a streaming request continues.
            client: Whom the wait counts against.

        Returns:
            The ticket, and the future that becomes the worker; it may be done already.

        Raises:
            QueueFullError: No worker is free and the queue, or the client's share of it, is full.
            NoWorkerError: Intake is paused.
            ShuttingDownError: The pool was stopped.
            ValueError: There is no such request type.
        """
        entry = self._enter(request_type, session_id, history_hash, client)
        return entry.ticket, entry.future

    @asynccontextmanager
    async def assigned(
        self,
        request_type: str,
        session_id: str | None = None,
        history_hash: str | None = None,
        *,
        client: str | None = None,
        on_wait: OnWait | None = None,
        period_s: float = UPDATE_PERIOD_S,
    ) -> AsyncIterator[Place]:
        """Wait for a worker, have it for the block, give it back however the block ends.

        Args:
            request_type: For this and the next three see `enqueue`.
            session_id: See there.
            history_hash: See there.
            client: See there.
            on_wait: See `Place.wait`.
            period_s: See there.

        Raises:
            QueueCancelledError: The ticket was cancelled. The others are those of `enqueue`.
        """
        with self.place(request_type, session_id, history_hash, client=client) as place:
            await place.wait(on_wait, period_s)
            yield place

    @contextmanager
    def place(
        self,
        request_type: str,
        session_id: str | None = None,
        history_hash: str | None = None,
        *,
        client: str | None = None,
        goes_first: bool = False,
    ) -> Iterator[Place]:
        """Do as `assigned`, but wait in the block; who was assigned a lost worker `goes_first`."""
        place = Place(self, self._enter(request_type, session_id, history_hash, client, goes_first))
        try:
            yield place
        finally:
            place.leave()

    def cancel(self, ticket_id: str) -> bool:
        """Give up a place in the queue.

        Returns:
            Whether it was waiting; a ticket that is unknown or assigned stays as it is.
        """
        entry = self._queue.pop(ticket_id, None)
        if entry is None:
            return False
        entry.give_up()
        self._dispatch_next()
        return True

    def release_worker(
        self,
        worker: WorkerConnection,
        request_type: str | None = None,
        duration_s: float | None = None,
        cached_hash: str | None | EllipsisType = ...,
        *,
        ticket_id: str | None = None,
        must_confirm: bool = False,
    ) -> None:
        """Give a worker's slot back.

        Args:
            worker: The worker.
            request_type: As what the duration counts; without it, as what was assigned.
            duration_s: How long it took; None leaves the estimates as they are.
            cached_hash: History its cache holds now, None for nothing; left out, as before.
            ticket_id: Whose slot; without it, the one that has been busy longest. A ticket that
                holds none changes nothing.
            must_confirm: Give it away again only when the worker says that the session is gone.
        """
        slot = worker.slot_of(ticket_id) if ticket_id is not None else worker.oldest_slot
        if slot is not None and slot.task is not None:
            if duration_s is not None:
                counted_as = request_type or slot.task.request_type
                self.eta_tracker.record_duration(counted_as, duration_s)
            if not isinstance(cached_hash, EllipsisType):
                slot.remember(cached_hash, self._clock())
            must_confirm = must_confirm and self._monitor.is_running
            worker.vacate(slot, must_confirm=must_confirm)
            if must_confirm:
                self._monitor.poke(worker)
        self._dispatch_next()

    def refresh_estimates(self, *, is_forced: bool = False) -> None:
        """Bring every ticket's estimate up to date, at most ten times a second unless forced."""
        now = self._clock()
        last = self._estimated_at
        if not is_forced and last is not None and abs(now - last) < REFRESH:
            return
        self._estimated_at = now
        self._line.estimate(self._occupied_s(self.eta_tracker), self.eta_tracker)

    @property
    def queue_length(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def queue_full(self) -> bool:
        """No more may wait."""
        return len(self._queue) >= self.max_queue_size

    def get_ticket(self, ticket_id: str) -> QueueTicket | None:
        """Return a waiting ticket with a fresh estimate, None if it does not wait."""
        entry = self._queue.get(ticket_id)
        if entry is None:
            return None
        self.refresh_estimates()
        return entry.ticket

    def get_queue_status(self) -> QueueStatus:
        """Return who waits and what runs, with fresh estimates."""
        self.refresh_estimates()
        return QueueStatus(
            queue_length=self.queue_length,
            max_queue_size=self.max_queue_size,
            items=self._line.items(self._clock()),
            running_tasks=self._running_tasks(self.eta_tracker),
        )

    def get_service_status(self) -> ServiceStatus:
        """Return all counts at once."""
        return self._service_status(
            self.eta_tracker,
            queue_length=self.queue_length,
            max_queue_size=self.max_queue_size,
            is_intake_paused=self.is_intake_paused,
        )

    # Administration.

    def update_eta_config(self, eta_config: EtaConfig) -> EtaStatus:
        """Change expected durations; estimates follow at once."""
        self.eta_tracker.update_config(eta_config)
        self.refresh_estimates(is_forced=True)
        return self.eta_tracker.get_status()

    def pause_intake(self) -> None:
        """Refuse new requests; those that wait or run go on."""
        self.is_intake_paused = True

    def resume_intake(self) -> None:
        """Take new requests again."""
        self.is_intake_paused = False

    def drain_worker(self, worker_id: str, *, is_draining: bool = True) -> bool:
        """Give a worker nothing new, or work again; what it serves goes on either way.

        Returns:
            Whether there is such a worker.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            return False
        worker.is_draining = is_draining
        self._dispatch_next()
        return True

    def recheck(self, worker: WorkerConnection) -> None:
        """Ask a worker how it is now, not at the end of its period; give away what may be."""
        self._monitor.poke(worker)
        self._dispatch_next()

    def report_unreachable(self, worker: WorkerConnection) -> None:
        """Give a worker that could not be reached nothing new until it answers again."""
        worker.suspect()
        self._monitor.poke(worker)

    def _enter(
        self,
        request_type: str,
        session_id: str | None,
        history_hash: str | None,
        client: str | None,
        goes_first: bool = False,
    ) -> QueueEntry:
        kind = request_type_of(request_type)
        if not goes_first or self.is_stopped:
            self.check_intake(client)
        entry = QueueEntry(
            QueueTicket(f"q_{secrets.token_hex(TICKET_BYTES)}", kind, session_id, self._clock()),
            asyncio.get_running_loop().create_future(),
            history_hash or "",
            client,
        )
        self._line.add(entry, goes_first=goes_first)
        entry.future.add_done_callback(lambda _: self._forget_abandoned(entry))
        self._dispatch_next()
        return entry

    def check_intake(self, client: str | None) -> None:
        """Raise what `enqueue` would raise for this client now."""
        if self.is_stopped:
            raise ShuttingDownError()
        if self.is_intake_paused:
            raise NoWorkerError("No new requests are taken at the moment.")
        if not self._queue and self._free_slots():
            return
        if self.queue_full:
            raise QueueFullError(f"Queue full ({self.queue_length} requests)")
        if client and self._max_waiting_per_client:
            if (waiting := self._line.waiting_of(client)) >= self._max_waiting_per_client:
                raise QueueFullError(f"Queue full ({waiting} of your requests wait already)")

    def _dispatch_next(self) -> None:
        """Give free slots to the head of the queue: the only place where workers are assigned."""
        self._line.drop_abandoned()
        free = self._free_slots()
        for assignment in assign(self._line.head(len(free)), free):
            self._assign(assignment)
        self._line.renumber()
        self.refresh_estimates(is_forced=True)
        self._note_quiet()

    def _assign(self, assignment: Assignment) -> None:
        entry = self._queue.pop(assignment.ticket_id)
        worker = self.workers[assignment.worker_id]
        slot = worker.slots[assignment.slot_index]
        ticket = entry.ticket
        worker.mark_busy(
            STATUS_OF_REQUEST[ticket.request_type],
            ticket.request_type,
            ticket.session_id,
            ticket_id=ticket.ticket_id,
            slot=slot,
        )
        slot.remember(entry.history_hash if assignment.is_cache_hit else None, self._clock())
        entry.accept(worker, is_cache_hit=assignment.is_cache_hit)

    def _forget_abandoned(self, entry: QueueEntry) -> None:
        """Close the gap when a waiter was cancelled while it awaited its future itself."""
        if entry.ticket.ticket_id in self._queue:
            self._dispatch_next()

    def _note_quiet(self) -> None:
        if self._queue or self._has_tasks:
            self._quiet.clear()
        else:
            self._quiet.set()
