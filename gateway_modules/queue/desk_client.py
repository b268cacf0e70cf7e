"""The pool as a door has it: requests are queued at the desk, sessions go straight to workers.

Everything that changes a ticket is synchronous. All that the desk needs is in the tickets that
are held, so a connection that begins says all of it again and nothing is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from core import errors
from core.protocols.events import Event, RawMessage, Rejected
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from gateway_modules.queue import desk_link as wire
from gateway_modules.queue.directory import KnownWorkers
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection, utc_now
from gateway_modules.queue.worker_pool import ReturnTickets, WorkerPool, new_ticket_id
from gateway_modules.web.responses import ERROR_OF_CODE
from settings.workers import WorkerPlace

STOP: Final = RawMessage("stop", '{"type":"stop"}')
AWAY_LIMIT_S: Final = 60.0  # then those that wait are refused; as long as a return ticket lives


class DoorTicket(Ticket):
    send: Callable[[wire.FromDoor], None]

    def update_status(self, status: WorkerStatus) -> None:
        self.send(wire.StatusChanged(ticket_id=self.ticket_id, status=status))


class DoorWorkers(KnownWorkers):
    def __init__(self, send: Callable[[wire.FromDoor], None]) -> None:
        super().__init__()
        self._send = send
        self._by_place: dict[str, WorkerConnection] = {}

    def report_unreachable(self, worker: WorkerConnection) -> None:
        super().report_unreachable(worker)
        self._send(wire.Unreachable(worker=worker.place.netloc))

    def at(self, place: str) -> WorkerConnection | None:
        return self._by_place.get(place)

    def update(self, states: list[wire.WorkerState]) -> None:
        """Have exactly these workers; sessions keep those that are not among them."""
        before, self._by_place = self._by_place, {}
        self.workers.clear()
        for state in states:
            place = WorkerPlace(state.host, state.port)
            worker = before.get(place.netloc) or WorkerConnection(state.worker_id, place)
            worker.worker_id, worker.has_left = state.worker_id, state.is_retiring
            self._by_place[place.netloc] = self.workers[state.worker_id] = worker
            worker.observe(state.health, worker.service.epoch)
            worker.service.misses = state.misses


class DeskClient:
    """The pool of a door: requests are queued at the desk.

    While the desk is away, new requests are refused and sessions continue; those that waited keep
    waiting for `AWAY_LIMIT_S` and have their positions again when it is back. What is to be sent is
    bounded by the tickets that are held: each change of one is a message, and a desk that reads
    none of them answers no ping either, which ends the connection and empties the outbox.
    """

    def __init__(
        self, link: wire.DeskLink, client: WorkerClient, post: Callable[[str, Event], None]
    ) -> None:
        """`post` queues an event for a session of this door; `client` is closed by `stop`."""
        self.client = client
        self.tickets = ReturnTickets()
        self.directory = DoorWorkers(link.send)
        self.queue_length = 0
        self.longest_wait_s = 0.0
        self.is_stopped = False
        self._link = link
        self._post = post
        self._held: dict[str, Ticket] = {}
        self._task: asyncio.Task[None] | None = None
        self._away: asyncio.TimerHandle | None = None
        self._quiet = asyncio.Event()

    @property
    def is_open(self) -> bool:
        return self._task is not None and not self.is_stopped

    @property
    def is_connected(self) -> bool:
        return self._link.is_open

    @property
    def ready_count(self) -> int:
        workers = self.directory.workers.values() if self.is_connected else ()
        return sum(worker.is_idle or worker.is_busy for worker in workers)

    def gather(self, gathering_s: float) -> None:
        """Nothing: the desk does."""

    async def start(self) -> None:
        run = self._link.run(self._begin, self._handle, self._lose)
        self._task = asyncio.create_task(run, name="desk")

    async def stop(self) -> None:
        self.close_intake()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._away is not None:
            self._away.cancel()
        await self.client.close()

    def close_intake(self) -> None:
        self.is_stopped = True
        self._refuse_waiting(errors.ShuttingDownError())
        self._note_quiet()

    async def wait_until_quiet(self, limit_s: float) -> bool:
        self._note_quiet()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._quiet.wait()
        return self._quiet.is_set()

    def check_intake(self, client: str | None) -> None:
        if self.is_stopped:
            raise errors.ShuttingDownError()
        if not self.is_connected:
            raise wire.DeskAwayError()

    def refresh_estimates(self) -> None:
        """Nothing: the desk sends them."""

    def enqueue(
        self,
        request_type: str,
        session_id: str | None = None,
        history_hash: str | None = None,
        *,
        client: str | None = None,
        owner: str = "",
        order: int | None = None,
    ) -> Ticket:
        if order is None or self.is_stopped:
            self.check_intake(client)
        ticket = self._made(RequestType(request_type), session_id, client, owner)
        ticket.history_hash, ticket.order = history_hash or "", order or 0
        # A position that was spent here is of a request whose worker was lost, not of a client.
        is_return = order is not None and not self.tickets.is_spent(order)
        self._link.send(_entry(ticket, is_return=is_return))
        return ticket

    def adopt(
        self,
        worker: WorkerConnection,
        request_type: RequestType,
        session_id: str | None,
        owner: str = "",
    ) -> Ticket:
        ticket = self._made(request_type, session_id, None, owner)
        ticket.end_wait(worker)
        self._link.send(_entry(ticket))
        return ticket

    def leave(self, ticket: Ticket) -> None:
        if self._held.pop(ticket.ticket_id, None) is None:
            return
        self._link.send(
            wire.Leave(
                ticket_id=ticket.ticket_id,
                has_started=ticket.has_started,
                kept_hash=ticket.kept_hash,
            )
        )
        if ticket.is_waiting:
            ticket.end_wait(errors.QueueCancelledError())
        self._note_quiet()

    def _made(
        self, request_type: RequestType, session_id: str | None, client: str | None, owner: str
    ) -> Ticket:
        name, now = new_ticket_id(), utc_now()
        ticket = DoorTicket(name, request_type, session_id, now, self.leave, "", client, owner)
        ticket.send = self._link.send
        self._held[ticket.ticket_id] = ticket
        self._quiet.clear()
        return ticket

    def _refuse_waiting(self, error: errors.OmniError) -> None:
        for ticket in list(self._held.values()):
            if ticket.is_waiting:
                ticket.end_wait(error)
                self.leave(ticket)

    def _note_quiet(self) -> None:
        if not self._held:
            self._quiet.set()

    # --- the desk ---

    def _begin(self, welcome: wire.Welcome) -> Iterator[wire.FromDoor]:
        """Yield what is held: sessions first, so that nobody is assigned their slots."""
        if self._away is not None:
            self._away.cancel()
            self._away = None
        self.tickets.key = bytes.fromhex(welcome.ticket_key)
        yield from map(_entry, sorted(self._held.values(), key=lambda ticket: ticket.is_waiting))

    def _lose(self) -> None:
        if self._away is None:
            give_up, loop = self._refuse_waiting, asyncio.get_running_loop()
            self._away = loop.call_later(AWAY_LIMIT_S, give_up, wire.DeskAwayError())

    def _handle(self, message: wire.FromDesk) -> None:
        match message:
            case wire.Workers(workers=states):
                self.directory.update(states)
            case wire.Queue():
                self.queue_length = message.length
                self.longest_wait_s = message.longest_wait_s
                for ticket_id, order, position, wait_s in message.tickets:
                    self._move(ticket_id, order, position, wait_s)
            case wire.Assigned():
                self._assign(message)
            case wire.Refused(ticket_id=ticket_id):
                ticket = self._held.pop(ticket_id, None)
                if ticket is not None and ticket.is_waiting:
                    ticket.end_wait(ERROR_OF_CODE[message.code](message.message))
                self._note_quiet()
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

    def _assign(self, message: wire.Assigned) -> None:
        ticket = self._held.get(message.ticket_id)
        if ticket is None:
            return  # it left meanwhile, which the desk is about to read
        worker = self.directory.at(message.worker)
        assert worker is not None, "a desk names its workers before it assigns them"
        ticket.order = message.order
        self.tickets.spend(message.order)
        ticket.end_wait(worker, is_cache_hit=message.is_cache_hit)


Pool = WorkerPool | DeskClient
"""What a relay queues in: the pool of this process, or that of a desk."""


def _entry(ticket: Ticket, *, is_return: bool = False) -> wire.FromDoor:
    """Return what a new desk needs of a ticket."""
    held = {
        "ticket_id": ticket.ticket_id,
        "request_type": ticket.request_type,
        "session_id": ticket.session_id,
        "owner": ticket.owner,
    }
    if ticket.assigned is not None:
        return wire.Adopt.model_validate(held | {"worker": ticket.assigned.place.netloc})
    waiting = {
        "history_hash": ticket.history_hash,
        "client": ticket.client,
        "order": ticket.order or None,
        "is_return": is_return,
    }
    return wire.Enter.model_validate(held | waiting)
