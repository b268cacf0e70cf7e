"""The queue and the pool of workers; the only code that assigns sessions to workers.

Everything that changes the queue or a slot is synchronous and therefore atomic on the event loop;
only waiting and health checks await.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import SecretStr

from core import errors
from core.files import ensure_token
from core.schemas.queue import RequestType
from gateway_modules.queue import estimates
from gateway_modules.queue.directory import Directory
from gateway_modules.queue.estimates import EtaTracker, Forecast
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import (
    LONG_REQUESTS,
    NEVER_S,
    Clock,
    Ticket,
    WorkerConnection,
    slot_rank,
    utc_now,
)
from gateway_modules.web.limits import happens
from gateway_modules.web.security import is_same_secret

TICKET_LIFE_S: Final = 60  # since it was issued; as long as a session waits for its client
KEY_BYTES: Final = 32
TICKET_FILE: Final = "ticket_secret"  # exists while valid tickets may be outstanding
SIGNATURE_BYTES: Final = 16
MICROSECONDS: Final = 1_000_000
REFRESH_S: Final = 0.25  # between two refreshes of estimates


@dataclass(eq=False, repr=False)
class ReturnTickets:
    """Issues and verifies signed queue positions: `order.issued.signature`, numbers in decimal.

    Without `key` a random one is used, which no other gateway accepts.
    """

    key: bytes = field(default_factory=partial(secrets.token_bytes, KEY_BYTES))
    clock: Callable[[], datetime] = utc_now
    awaits_returns: bool = False  # clients of an earlier gateway may still return
    has_outstanding: bool = False  # clients may hold valid tickets of this gateway
    _last: int = 0
    # Those of the last `TICKET_LIFE_S`.
    _spent: OrderedDict[int, float] = field(default_factory=OrderedDict)

    def draw(self) -> int:
        """Return a position after all others: Unix time in microseconds, strictly increasing."""
        self._last = max(self._last + 1, int(self.clock().timestamp() * MICROSECONDS))
        return self._last

    def issue(self, order: int, session_id: str, kind: str) -> str:
        payload = f"{order}.{int(self.clock().timestamp())}"
        return f"{payload}.{self._signature(payload, session_id, kind)}"

    def read(self, ticket: str, session_id: str, kind: str) -> int | None:
        """Return a ticket's position; None if it is invalid for this session, expired or spent."""
        payload, _, signature = ticket.rpartition(".")
        if not is_same_secret(signature, self._signature(payload, session_id, kind)):
            return None
        order, issued_s = map(int, payload.split("."))
        if self.clock().timestamp() - issued_s > TICKET_LIFE_S or self.is_spent(order):
            return None
        self.draw_after(order)
        return order

    def draw_after(self, order: int) -> None:
        """Draw later positions only, also when the clock is behind that of the gateway before."""
        self._last = max(self._last, order)

    def is_spent(self, order: int) -> bool:
        return order in self._spent

    def spend(self, order: int) -> None:
        """Revoke the tickets of a position: a worker was assigned, or its wait was cancelled."""
        now_s = self.clock().timestamp()
        self._spent[order] = now_s
        while now_s - next(iter(self._spent.values())) > TICKET_LIFE_S:
            self._spent.popitem(last=False)

    def _signature(self, payload: str, session_id: str, kind: str) -> str:
        signed = f"{payload}/{session_id}/{kind}".encode("utf-8", "surrogatepass")
        digest = hmac.digest(self.key, signed, "sha256")[:SIGNATURE_BYTES]
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def opened_tickets(configured: SecretStr | None, data_dir: Path) -> ReturnTickets:
    """Return the signer of queue positions, with the previous gateway's key if it is known.

    The key is a secret of its own: the holder of a ticket could test guesses of a shared one.
    """
    if configured is not None:
        return ReturnTickets(configured.get_secret_value().encode(), awaits_returns=True)
    file = data_dir / TICKET_FILE
    awaits_returns = file.exists()
    return ReturnTickets(ensure_token(file, KEY_BYTES).encode(), awaits_returns=awaits_returns)


@dataclass(eq=False, repr=False)
class TicketSource(ABC):
    """Draws tickets, for requests and for sessions that already run; `stop` closes `client`."""

    client: WorkerClient
    tickets: ReturnTickets
    _clock: Clock
    is_stopped: bool = False
    _idle: asyncio.Event | None = None  # set when the pool is idle

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether requests wait or are served."""

    @abstractmethod
    def check_intake(self, client: str | None) -> None:
        """Raise the error that `enqueue` would raise for this client now."""

    @abstractmethod
    def leave(self, ticket: Ticket) -> None:
        """Leave the queue or release the slot; idempotent."""

    @abstractmethod
    def _enter(self, ticket: Ticket) -> None:
        """Queue a new ticket, or give it the slot that its session has."""

    @abstractmethod
    def _refuse_waiting(self, error: errors.OmniError) -> None:
        """End the wait of all tickets."""

    def enqueue(self, ticket: Ticket) -> Ticket:
        """Queue a new ticket; its block, or `leave`, releases the position or the slot.

        Its `order`, if any, is a position to return to: its worker was lost, or its client
        reconnected.

        Raises:
            QueueFullError: No worker is free and the queue, or the client's quota, is full; for a
                position to return to, only the latter.
            NoWorkerError: Intake is paused, or there is no connection to the queue.
            ShuttingDownError: The pool was stopped.
        """
        if not ticket.order or self.is_stopped:
            self.check_intake(ticket.client)
        return self._begin(ticket)

    def adopt(self, ticket: Ticket, worker: WorkerConnection) -> Ticket:
        """Accept a new ticket of a session that already occupies a worker; see `enqueue`."""
        ticket.end_wait(worker)
        return self._begin(ticket)

    def _begin(self, ticket: Ticket) -> Ticket:
        ticket.enqueued_at, ticket.leave = self._clock(), self.leave
        self._enter(ticket)
        return ticket

    def close_intake(self) -> None:
        self.is_stopped = True
        self._refuse_waiting(errors.ShuttingDownError())
        self._update_idle()

    async def wait_until_idle(self, limit_s: float) -> bool:
        idle = self._idle = self._idle or asyncio.Event()
        self._update_idle()
        return await happens(idle, limit_s)

    def _update_idle(self) -> None:
        if self._idle is not None:
            self._idle.clear() if self.is_busy else self._idle.set()


class WorkerPool(TicketSource):
    """Owns the workers, the queue and the wait estimates.

    The queue holds at most `max_queue_size` requests; one more is refused with `QueueFullError`.
    Order is strictly first come, first served over all request types.
    """

    def __init__(
        self,
        worker_addresses: Sequence[str],
        max_queue_size: int = 1000,
        *,
        eta_tracker: EtaTracker | None = None,
        client: WorkerClient | None = None,
        tickets: ReturnTickets | None = None,
        max_waiting_per_client: int = 0,
        clock: Clock = utc_now,
    ) -> None:
        """All workers are offline until `start` begins to poll them.

        `max_waiting_per_client` 0 is no limit. ValueError for an invalid or duplicate address.
        """
        super().__init__(client or WorkerClient(), tickets or ReturnTickets(clock=clock), clock)
        self.max_queue_size = max_queue_size
        self.eta_tracker = eta_tracker or EtaTracker()
        self.is_intake_paused = False
        self._queue: OrderedDict[str, Ticket] = OrderedDict()
        self._max_waiting_per_client = max_waiting_per_client
        self._held_until_s = NEVER_S  # nothing is assigned before this Unix time
        self._estimated_s = NEVER_S  # Unix time of the latest refresh
        self._forecast = Forecast(())
        self.directory = Directory(worker_addresses, self.client.health, self._dispatch_next, clock)

    @property
    def workers(self) -> dict[str, WorkerConnection]:
        return self.directory.workers

    async def start(self) -> None:
        self.directory.start()

    def hold_for_returns(self, hold_s: float) -> None:
        """Assign nothing for `hold_s` if clients of an earlier gateway may still return."""
        if self.tickets.awaits_returns:
            self._held_until_s = self._clock().timestamp() + hold_s
            asyncio.get_running_loop().call_later(hold_s, self._end_hold)

    @property
    def is_open(self) -> bool:
        return self.directory.is_running and not self.is_stopped

    async def stop(self) -> None:
        """Refuse new and waiting requests and stop polling; running sessions continue."""
        self.close_intake()
        try:
            await self.directory.stop()
        finally:
            await self.client.close()

    def _refuse_waiting(self, error: errors.OmniError) -> None:
        self.tickets.has_outstanding |= bool(self._queue) or self.tickets.awaits_returns
        while self._queue:
            self._queue.popitem(last=False)[1].end_wait(error)

    def _enter(self, ticket: Ticket) -> None:
        if ticket.assigned is not None:
            ticket.assigned.adopt(ticket)
            return
        if not ticket.order:
            ticket.order = self.tickets.draw()
        elif not self.tickets.is_spent(ticket.order):  # else its worker was lost
            self._check_quota(ticket.client, ticket.order)
            self.tickets.draw_after(ticket.order)  # of a door: an earlier desk drew it
        is_last = ticket.order >= next(reversed(self._queue.values()), ticket).order
        self._queue[ticket.ticket_id] = ticket
        ticket.position = len(self._queue)
        if not is_last:
            self._queue = OrderedDict(sorted(self._queue.items(), key=lambda item: item[1].order))
            self._renumber()
        self._dispatch_next()
        if ticket.is_waiting:
            age_s = ticket.enqueued_at.timestamp() - self._estimated_s
            if is_last and abs(age_s) < REFRESH_S:
                wait_s = self._forecast.add(self.eta_tracker.get_eta(ticket.request_type))
                ticket.estimated_wait_s = round(max(0.0, wait_s - age_s), 1)
            else:
                self.refresh_estimates(is_forced=not is_last)

    def _end_hold(self) -> None:
        self.tickets.awaits_returns = False
        self._held_until_s = NEVER_S
        self._dispatch_next()

    def leave(self, ticket: Ticket, *, is_lost: bool = False) -> None:
        """With `is_lost` the process that held the ticket died; the session may still run."""
        worker = ticket.assigned
        if worker is None:
            self._withdraw(ticket.ticket_id)
            return
        if ticket not in worker.tasks:
            return
        if ticket.has_started:
            elapsed_s = self._clock.elapsed_s() - ticket.started_s
            self.eta_tracker.record_duration(ticket.request_type, elapsed_s)
        is_unsure = is_lost or ticket.request_type in LONG_REQUESTS
        must_confirm = is_unsure and self.directory.is_running
        worker.release(ticket, must_confirm=must_confirm)
        if must_confirm:
            worker.wake.set()
        self._dispatch_next()

    def cancel(self, ticket_id: str) -> bool:
        """End a wait for good: its return tickets are revoked."""
        if (ticket := self._queue.get(ticket_id)) is not None:
            self.tickets.spend(ticket.order)
            self._withdraw(ticket_id)
        return ticket is not None

    def _withdraw(self, ticket_id: str) -> None:
        if (ticket := self._queue.pop(ticket_id, None)) is not None:
            ticket.end_wait(errors.QueueCancelledError())
            self._renumber()
            self._dispatch_next()

    def check_intake(self, client: str | None) -> None:
        if self.is_stopped:
            raise errors.ShuttingDownError()
        if self.is_intake_paused:
            raise errors.NoWorkerError("No new requests are taken at the moment.")
        may_assign = not (self._queue or self.tickets.awaits_returns)
        if may_assign and any(worker.available_slots for worker in self.workers.values()):
            return
        if len(self._queue) >= self.max_queue_size:
            raise errors.QueueFullError(f"Queue full ({self.queue_length} requests)")
        self._check_quota(client)

    def _check_quota(self, client: str | None, returning: int = 0) -> None:
        """`returning` is a position that may still be held by a socket not known to be lost."""
        if client and self._max_waiting_per_client:
            others = (ticket for ticket in self._queue.values() if ticket.order != returning)
            waiting = sum(ticket.client == client for ticket in others)
            if waiting >= self._max_waiting_per_client:
                raise errors.QueueFullError(f"Queue full ({waiting} of your requests wait already)")

    def _dispatch_next(self) -> None:
        """Assign free slots to the head of the queue; the only place where workers are assigned."""
        self.directory.forget_left()
        is_held = self.tickets.awaits_returns or not self._queue
        workers = () if is_held else self.workers.values()
        available = {worker: slots for worker in workers if (slots := worker.available_slots)}
        if available:
            while available and self._queue:
                self._assign(self._queue.popitem(last=False)[1], available)
            self._renumber()
        self._update_idle()

    def _assign(self, ticket: Ticket, available: dict[WorkerConnection, int]) -> None:
        wanted_hash = ticket.history_hash if ticket.request_type is RequestType.STREAMING else ""
        offers = {one: one.cache_for(wanted_hash, slots) for one, slots in available.items()}

        def rank(worker: WorkerConnection) -> tuple[int, float, int]:
            cached_hash = offers[worker]
            used_s = worker.caches[cached_hash].timestamp() if cached_hash else NEVER_S
            return slot_rank(wanted_hash, cached_hash, used_s, len(worker.tasks))

        worker = min(offers, key=rank)
        cached_hash = offers[worker] or ""
        worker.caches.pop(cached_hash, None)
        worker.serve(ticket)
        self.tickets.spend(ticket.order)
        ticket.end_wait(worker, is_cache_hit=wanted_hash != "" and cached_hash == wanted_hash)
        available[worker] = worker.available_slots
        if not available[worker]:
            del available[worker]

    def _renumber(self) -> None:
        for position, ticket in enumerate(self._queue.values(), start=1):
            if ticket.position != position:
                ticket.position = position
                ticket.changed.set()

    def refresh_estimates(self, *, is_forced: bool = False) -> None:
        """Estimate the wait of each ticket, unless that was done within `REFRESH_S`.

        This visits every session and every ticket: 20 ms for 46,400 of them. So a ticket that
        enters in between is only added to the latest forecast.
        """
        now_s = self._clock().timestamp()
        if abs(now_s - self._estimated_s) < REFRESH_S and not is_forced:
            return
        eta_s = {kind: self.eta_tracker.get_eta(kind) for kind in RequestType}
        self._estimated_s, workers = now_s, self.workers.values()
        held_s = max(0.0, self._held_until_s - now_s)
        free_at_s = [max(held_s, left) for worker in workers for left in worker.occupied_s(eta_s)]
        if held_s:
            free_at_s += [held_s] * sum(worker.available_slots for worker in workers)
        self._forecast = Forecast(free_at_s, held_s)
        for ticket in self._queue.values():
            ticket.estimated_wait_s = self._forecast.add(eta_s[ticket.request_type])

    @property
    def queue_length(self) -> int:
        return len(self._queue)

    @property
    def longest_wait_s(self) -> float:
        self.refresh_estimates()
        return max((ticket.estimated_wait_s for ticket in self._queue.values()), default=0.0)

    @property
    def ready_count(self) -> int:
        return self.directory.ready_count

    def get_ticket(self, ticket_id: str) -> Ticket | None:
        self.refresh_estimates()
        return self._queue.get(ticket_id)

    def get_queue_status(self) -> estimates.QueueStatus:
        self.refresh_estimates()
        now, workers = self._clock(), self.workers.values()
        return estimates.QueueStatus(
            queue_length=self.queue_length,
            max_queue_size=self.max_queue_size,
            items=[_item(ticket, now) for ticket in self._queue.values()],
            running_tasks=[self._running(one, task) for one in workers for task in one.tasks],
        )

    def _running(self, worker: WorkerConnection, task: Ticket) -> estimates.RunningTaskInfo:
        elapsed_s = self._clock.elapsed_s() - task.started_s
        left_s = self.eta_tracker.get_eta(task.request_type) - elapsed_s
        return estimates.RunningTaskInfo(
            worker_id=worker.worker_id,
            request_type=task.request_type,
            session_id=task.session_id,
            started_at=task.started_at,
            elapsed_s=round(elapsed_s, 1),
            estimated_remaining_s=round(max(0.0, left_s), 1),
        )

    def update_eta_config(self, eta_config: estimates.EtaConfig) -> estimates.EtaStatus:
        self.eta_tracker.update_config(eta_config)
        self.refresh_estimates(is_forced=True)
        return self.eta_tracker.get_status()

    def drain_worker(self, worker: WorkerConnection, *, is_draining: bool = True) -> None:
        worker.is_draining = is_draining
        drained = self.directory.drained
        drained.add(worker.worker_id) if is_draining else drained.discard(worker.worker_id)
        self._dispatch_next()
        self.refresh_estimates(is_forced=True)

    @property
    def is_busy(self) -> bool:
        return bool(self._queue) or any(worker.tasks for worker in self.workers.values())


def _item(ticket: Ticket, now: datetime) -> estimates.QueueItem:
    known = dict(estimates.TicketInfo.model_validate(ticket))
    waited_s = max(0.0, (now - ticket.enqueued_at).total_seconds())
    return estimates.QueueItem(**known, wait_elapsed_s=round(waited_s, 1))
