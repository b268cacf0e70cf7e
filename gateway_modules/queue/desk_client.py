"""A door's worker pool: requests queue at the desk, sessions connect directly to workers.

Everything that changes a ticket is synchronous. A new connection to the desk begins with all
tickets held here, so messages lost with the old one need not be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from core import errors
from core.protocols.events import Event, RawMessage, Rejected
from core.schemas.worker import WorkerStatus
from gateway_modules.queue import desk_link as wire
from gateway_modules.queue.directory import WorkerSet
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection, utc_now
from gateway_modules.queue.worker_pool import ReturnTickets, TicketSource, WorkerPool
from gateway_modules.web.limits import happens
from gateway_modules.web.responses import ERROR_OF_CODE
from settings.workers import WorkerPlace

STOP: Final = RawMessage("stop", '{"type":"stop"}')
AWAY_LIMIT_S: Final = 60.0  # then waiting tickets are refused; the life of a return ticket


class DoorWorkers(WorkerSet):
    def __init__(self, send: Callable[[wire.FromDoor], None]) -> None:
        super().__init__()
        self._send = send

    def report_unreachable(self, worker: WorkerConnection) -> None:
        super().report_unreachable(worker)
        self._send(wire.Unreachable(worker=worker.place.netloc))

    def update(self, states: list[wire.WorkerState]) -> None:
        """Replace the set of workers; sessions retain those that are no longer in it."""
        before = {worker.place.netloc: worker for worker in self.workers.values()}
        self.workers.clear()
        for state in states:
            place = WorkerPlace(state.host, state.port)
            worker = before.get(place.netloc) or WorkerConnection(state.worker_id, place)
            worker.worker_id, worker.has_left = state.worker_id, state.is_retiring
            self.workers[state.worker_id] = worker
            worker.observe(state.health, worker.service.epoch)
            worker.service.missed_polls = state.misses


class DeskClient(TicketSource):
    """The pool of a door: requests are queued at the desk.

    While the desk is unreachable, new requests are refused and sessions continue; waiting requests
    wait for `AWAY_LIMIT_S` and regain their positions when it returns. The outbox is bounded by
    the tickets held: each change of one is a message, and a desk that does not read does not
    answer pings either, which ends the connection and clears the outbox.
    """

    def __init__(
        self, link: wire.DeskLink, client: WorkerClient, post: Callable[[str, Event], None]
    ) -> None:
        """`post` queues an event for a session of this door."""
        super().__init__(client, ReturnTickets(), utc_now)
        self.directory = DoorWorkers(link.send)
        self.queue_length = 0
        self.longest_wait_s = 0.0
        self._link = link
        self._post = post
        self._held: dict[str, Ticket] = {}
        self._task: asyncio.Task[None] | None = None
        self._away: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._task is not None and not self.is_stopped

    @property
    def is_connected(self) -> bool:
        return self._link.is_open

    @property
    def ready_count(self) -> int:
        return self.directory.ready_count if self.is_connected else 0

    async def start(self) -> None:
        run = self._link.run(self._begin, self._handle, self._lose)
        self._task = asyncio.create_task(run, name="desk")

    async def stop(self) -> None:
        self.close_intake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._away is not None:
            self._away.cancel()
        await self.client.close()

    def close_intake(self) -> None:
        self.is_stopped = True
        self._refuse_waiting(errors.ShuttingDownError())
        self._update_idle()

    async def wait_until_idle(self, limit_s: float) -> bool:
        self._update_idle()
        return await happens(self._idle, limit_s)

    def check_intake(self, client: str | None) -> None:
        if self.is_stopped:
            raise errors.ShuttingDownError()
        if not self.is_connected:
            raise wire.DeskAwayError()

    def refresh_estimates(self) -> None:
        """No-op: the desk sends them."""

    def _enter(self, ticket: Ticket) -> None:
        # A position that was spent here belongs to a request whose worker was lost.
        is_return = ticket.order > 0 and not self.tickets.is_spent(ticket.order)
        self._hold(ticket, is_return=is_return)

    def _occupy(self, ticket: Ticket) -> None:
        self._hold(ticket)

    def _hold(self, ticket: Ticket, *, is_return: bool = False) -> None:
        ticket.on_status = self._report_status
        self._held[ticket.ticket_id] = ticket
        self._idle.clear()
        self._link.send(_entry(ticket, is_return=is_return))

    def _report_status(self, ticket: Ticket, status: WorkerStatus) -> None:
        self._link.send(wire.StatusChanged(ticket_id=ticket.ticket_id, status=status))

    def leave(self, ticket: Ticket) -> None:
        if self._held.pop(ticket.ticket_id, None) is None:
            return
        self._link.send(wire.Leave.model_validate(ticket))
        if ticket.is_waiting:
            ticket.end_wait(errors.QueueCancelledError())
        self._update_idle()

    def _refuse_waiting(self, error: errors.OmniError) -> None:
        for ticket in list(self._held.values()):
            if ticket.is_waiting:
                ticket.end_wait(error)
                self.leave(ticket)

    def _update_idle(self) -> None:
        if not self._held:
            self._idle.set()

    def _begin(self, welcome: wire.Welcome) -> Iterator[wire.FromDoor]:
        """Yield the tickets held: sessions first, so that their slots are not assigned again."""
        if self._away is not None:
            self._away.cancel()
            self._away = None
        self.tickets.key = bytes.fromhex(welcome.ticket_key)
        yield from map(_entry, sorted(self._held.values(), key=lambda ticket: ticket.is_waiting))

    def _lose(self) -> None:
        if self._away is None:
            loop = asyncio.get_running_loop()
            self._away = loop.call_later(AWAY_LIMIT_S, self._give_up)

    def _give_up(self) -> None:
        self._away = None  # for the tickets that return to their positions from now on
        self._refuse_waiting(wire.DeskAwayError())

    def _handle(self, message: wire.FromDesk) -> None:
        match message:
            case wire.Workers(workers=states):
                self.directory.update(states)
            case wire.Queue():
                self.queue_length = message.length
                self.longest_wait_s = message.longest_wait_s
                for ticket_id, order, position, wait_s in message.tickets:
                    self._move(ticket_id, order, position, wait_s)
            case wire.Assigned(ticket_id=ticket_id):
                if (ticket := self._held.get(ticket_id)) is not None:  # else it has left
                    worker = self.directory.at(message.worker)
                    assert worker is not None, "a desk names its workers before it assigns them"
                    ticket.order = message.order
                    self.tickets.spend(message.order)
                    ticket.end_wait(worker, is_cache_hit=message.is_cache_hit)
            case wire.Refused(ticket_id=ticket_id):
                ticket = self._held.pop(ticket_id, None)
                if ticket is not None and ticket.is_waiting:
                    ticket.end_wait(ERROR_OF_CODE[message.code](message.message))
                self._update_idle()
            case wire.SessionCommand(session_id=session_id, command=command):
                end = Rejected(errors.EndedByAdminError())
                self._post(session_id, STOP if command == "stop" else end)

    def _move(self, ticket_id: str, order: int, position: int, wait_s: float) -> None:
        ticket = self._held.get(ticket_id)
        if ticket is None or not ticket.is_waiting:
            return
        has_moved = ticket.position != position
        ticket.order, ticket.position, ticket.estimated_wait_s = order, position, wait_s
        if has_moved:
            ticket.changed.set()


Pool = WorkerPool | DeskClient
"""The pool that a relay uses: that of this process, or that of a desk."""


def _entry(ticket: Ticket, *, is_return: bool = False) -> wire.FromDoor:
    if ticket.assigned is None:
        return wire.Enter.model_validate(ticket).model_copy(update={"is_return": is_return})
    held = wire.TicketHeld.model_validate(ticket)
    return wire.Adopt(**dict(held), worker=ticket.assigned.place.netloc)
