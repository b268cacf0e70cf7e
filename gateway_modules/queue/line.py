"""The queue: requests in order of arrival, and one request's place until its worker is released."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from core.errors import QueueCancelledError, ShuttingDownError
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.dispatch import WaitingRequest
from gateway_modules.queue.eta import EtaTracker, estimate_waits
from gateway_modules.queue.models import LONG_REQUESTS, QueueItem, QueueTicket
from gateway_modules.queue.worker_connection import WorkerConnection


@dataclass(eq=False)
class QueueEntry:
    """What the pool keeps of a request.

    Attributes:
        ticket: Its place, kept up to date.
        future: Becomes the worker; cancelled when the place is given up.
        history_hash: History it continues, "" if none.
        client: Whom its wait counts against, if anybody.
        changed: Set when position or future changed.
        is_cache_hit: The assigned slot's cache holds that history.
    """

    ticket: QueueTicket
    future: asyncio.Future[WorkerConnection]
    history_hash: str = ""
    client: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_cache_hit: bool = False

    @property
    def worker(self) -> WorkerConnection | None:
        """The assigned worker, None while waiting and after giving up."""
        if self.future.done() and not self.future.cancelled():
            return self.future.result()
        return None

    def accept(self, worker: WorkerConnection, *, is_cache_hit: bool) -> None:
        """Hand the worker to the waiting task."""
        self.ticket.position, self.ticket.estimated_wait_s = 0, 0.0
        self.is_cache_hit = is_cache_hit
        self.future.set_result(worker)
        self.changed.set()

    def give_up(self) -> None:
        """Refuse: the waiting task gets the error."""
        self.ticket.cancelled = True
        self.ticket.position, self.ticket.estimated_wait_s = 0, 0.0
        self.future.cancel()
        self.changed.set()


class WaitingLine:
    """Entries by ticket, oldest first. How many there may be is for its owner to say."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: OrderedDict[str, QueueEntry] = OrderedDict()

    def add(self, entry: QueueEntry, *, goes_first: bool = False) -> None:
        """Put an entry at the end, or before all others."""
        self.entries[entry.ticket.ticket_id] = entry
        self.entries.move_to_end(entry.ticket.ticket_id, last=not goes_first)

    def drop_abandoned(self) -> None:
        """Remove the entries whose future was ended elsewhere."""
        for entry in [entry for entry in self.entries.values() if entry.future.done()]:
            del self.entries[entry.ticket.ticket_id]
            entry.give_up()

    def empty(self) -> None:
        """Give up every entry."""
        while self.entries:
            self.entries.popitem(last=False)[1].give_up()

    def head(self, count: int) -> list[WaitingRequest]:
        """Return the first entries as dispatch wants to see them."""
        return [
            WaitingRequest(
                ticket_id=entry.ticket.ticket_id,
                is_streaming=entry.ticket.request_type is RequestType.STREAMING,
                history_hash=entry.history_hash,
            )
            for entry in islice(self.entries.values(), count)
        ]

    def renumber(self) -> None:
        """Make positions 1 to n and tell those whose position changed."""
        for position, entry in enumerate(self.entries.values(), start=1):
            if entry.ticket.position != position:
                entry.ticket.position = position
                entry.changed.set()

    def estimate(self, occupied_s: list[float], eta_tracker: EtaTracker) -> None:
        """Set every ticket's estimated wait.

        Args:
            occupied_s: Time left of each occupied slot, s.
            eta_tracker: Knows how long each waiting request will take.
        """
        tickets = [entry.ticket for entry in self.entries.values()]
        eta_s = {request_type: eta_tracker.get_eta(request_type) for request_type in RequestType}
        durations_s = [eta_s[ticket.request_type] for ticket in tickets]
        waits_s = estimate_waits(occupied_s, durations_s)
        for ticket, wait_s in zip(tickets, waits_s, strict=True):
            ticket.estimated_wait_s = wait_s

    def waiting_of(self, client: str) -> int:
        """Return how many entries count against a client."""
        return sum(entry.client == client for entry in self.entries.values())

    def items(self, now: datetime) -> list[QueueItem]:
        """Describe the line, next first."""
        return [
            QueueItem(
                ticket_id=ticket.ticket_id,
                request_type=ticket.request_type,
                session_id=ticket.session_id,
                position=ticket.position,
                estimated_wait_s=ticket.estimated_wait_s,
                enqueued_at=ticket.enqueued_at,
                wait_elapsed_s=round(max(0.0, (now - ticket.enqueued_at).total_seconds()), 1),
            )
            for ticket in (entry.ticket for entry in self.entries.values())
        ]


if TYPE_CHECKING:
    from gateway_modules.queue.worker_pool import WorkerPool

UPDATE_PERIOD_S = 3.0  # between two `queue_update`; docs/specification/service.md#2.2

OnWait = Callable[[QueueTicket], Awaitable[None]]
"""Reports its place to a waiting client."""


class Place:
    """What a handler holds from queueing until it is done with its worker.

    Made by `WorkerPool.assigned` and `WorkerPool.place`, which see to it that it is left.
    """

    def __init__(self, pool: WorkerPool, entry: QueueEntry) -> None:
        """Hold an entry of a pool."""
        self._pool = pool
        self._entry = entry
        self._has_started = False
        self._cached_hash: str | None = None

    @property
    def ticket(self) -> QueueTicket:
        """Position and estimate, kept up to date."""
        return self._entry.ticket

    @property
    def is_assigned(self) -> bool:
        """A worker is ours."""
        return self._entry.worker is not None

    @property
    def worker(self) -> WorkerConnection:
        """The worker; ask only when one is assigned."""
        worker = self._entry.worker
        assert worker is not None, "no worker is assigned"
        return worker

    @property
    def is_cache_hit(self) -> bool:
        """The worker should hold exactly the history that was asked for."""
        return self._entry.is_cache_hit

    async def wait(
        self, on_wait: OnWait | None = None, period_s: float = UPDATE_PERIOD_S
    ) -> WorkerConnection:
        """Wait for a worker.

        Args:
            on_wait: Awaited first if there is a wait at all, then at every change of position and
                at least every `period_s`.
            period_s: See there.

        Returns:
            The worker; it is marked busy.

        Raises:
            QueueCancelledError: The ticket was cancelled.
            ShuttingDownError: The pool was stopped.
        """
        entry = self._entry
        if on_wait is None:
            await asyncio.wait(
                [entry.future]
            )  # unlike `await future`, leaves it alone if cancelled
        while on_wait is not None and not entry.future.done():
            entry.changed.clear()
            self._pool.refresh_estimates()
            await on_wait(entry.ticket)
            try:
                async with asyncio.timeout(period_s):
                    await entry.changed.wait()
            except TimeoutError:
                continue
        if not self.is_assigned:
            raise ShuttingDownError() if self._pool.is_stopped else QueueCancelledError()
        return self.worker

    def note_started(self) -> None:
        """Say that the session really began, so that its duration counts for estimates."""
        self._has_started = True

    def retain(self, cached_hash: str) -> None:
        """Say which history the worker's cache holds when this place is left."""
        self._cached_hash = cached_hash or None

    def update_status(self, status: WorkerStatus) -> None:
        """Say that a duplex session was paused or goes on."""
        if self.is_assigned:
            self.worker.update_duplex_status(status, self.ticket.ticket_id)

    def leave(self) -> None:
        """Give up the wait or give back the worker; the second time nothing happens."""
        ticket, worker = self.ticket, self._entry.worker
        if worker is None:
            self._pool.cancel(ticket.ticket_id)
            return
        self._pool.release_worker(
            worker,
            duration_s=worker.elapsed_s(ticket.ticket_id) if self._has_started else None,
            cached_hash=self._cached_hash,
            ticket_id=ticket.ticket_id,
            must_confirm=ticket.request_type in LONG_REQUESTS,
        )
