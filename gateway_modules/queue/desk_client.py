"""A door's worker pool: requests queue at the desk, sessions connect directly to workers.

Everything that changes a ticket is synchronous. A new connection to the desk begins with all
tickets held here, so messages lost with the old one need not be repeated.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog
from pydantic import ValidationError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from config import Settings
from core import errors
from core.metrics import GatewayMetrics
from core.schemas.limits import MIB
from core.schemas.worker import WORKER_SECRET_HEADER
from core.worker_tls import client_context
from gateway_modules.queue import desk_link as wire
from gateway_modules.queue.directory import WorkerSet
from gateway_modules.queue.worker_client import TimedConnection, WorkerClient, socket_options
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection, utc_now
from gateway_modules.queue.worker_pool import ReturnTickets, TicketSource, WorkerPool
from gateway_modules.web.limits import first_of, happens
from gateway_modules.web.responses import ERROR_OF_CODE
from settings.workers import WorkerPlace

AWAY_LIMIT_S: Final = 60.0  # then waiting tickets are refused; the life of a return ticket
DOOR_ID_BYTES: Final = 8
RETRY_S: Final = 0.5  # between two attempts to connect
MESSAGE_MAX_BYTES: Final = 64 * MIB  # 100,000 waiting tickets in one text
LOAD_S: Final = 5.0  # longest interval between reports of units and refusals
LOG: Final = structlog.get_logger("door")


@dataclass(eq=False, repr=False)
class DoorWorkers(WorkerSet):
    _send: Callable[[wire.FromDoor], None]
    is_known: bool = False  # the desk has named its workers

    def report_unreachable(self, worker: WorkerConnection) -> None:
        super().report_unreachable(worker)
        self._send(wire.Unreachable(worker=worker.place.netloc))

    def update(self, states: list[wire.WorkerState]) -> None:
        """Replace the set of workers; sessions retain those that are no longer in it."""
        self.is_known = True
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
        self,
        settings: Settings,
        client: WorkerClient,
        metrics: GatewayMetrics,
        obey: Callable[[wire.SessionCommand], None],
    ) -> None:
        """`obey` carries out a command for a session of this door.

        Raises ValueError without a desk or a secret in the settings.
        """
        super().__init__(client, ReturnTickets(), utc_now)
        desk, tls = wire.desk_place(settings), client_context(settings)
        secret, door_id = wire.shared_secret(settings), secrets.token_hex(DOOR_ID_BYTES)
        self.directory = DoorWorkers(self._send)
        self.queue_length = 0
        self.longest_wait_s = 0.0
        self.is_connected = False
        self._connect = partial(
            connect,
            f"{'wss' if tls else 'ws'}://{desk.netloc}{wire.DOOR_PATH}",
            create_connection=TimedConnection,
            additional_headers={WORKER_SECRET_HEADER: secret, wire.DOOR_ID: door_id},
            max_size=MESSAGE_MAX_BYTES,
            **socket_options(tls, settings.limits.heartbeat_s),
        )
        self._metrics = metrics
        self._obey = obey
        self._held: dict[str, Ticket] = {}
        self._outbox: list[wire.FromDoor] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._away: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._task is not None and not self.is_stopped

    @property
    def is_busy(self) -> bool:
        return bool(self._held)

    @property
    def ready_count(self) -> int:
        return self.directory.ready_count if self.is_connected else 0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="desk")

    async def stop(self) -> None:
        self.close_intake()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._away is not None:
            self._away.cancel()
        await self.client.close()

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
        ticket.on_status = lambda status: self._send(
            wire.StatusChanged(ticket_id=ticket.ticket_id, status=status)
        )
        self._held[ticket.ticket_id] = ticket
        self._update_idle()
        self._send(_entry(ticket, is_return=is_return))

    def leave(self, ticket: Ticket) -> None:
        if self._held.pop(ticket.ticket_id, None) is None:
            return
        self._send(wire.Leave.model_validate(ticket))
        if ticket.is_waiting:
            ticket.end_wait(errors.QueueCancelledError())
        self._update_idle()

    def _refuse_waiting(self, error: errors.OmniError) -> None:
        for ticket in list(self._held.values()):
            if ticket.is_waiting:
                ticket.end_wait(error)
                self.leave(ticket)

    def _send(self, message: wire.FromDoor) -> None:
        """Queue a message; while disconnected it is discarded."""
        if self.is_connected:
            self._outbox.append(message)
            self._wake.set()

    async def _run(self) -> None:
        """Connect and reconnect until cancelled.

        After any failure, also of a handler, a new connection starts from a consistent state.
        """
        problem = ""
        while True:
            try:
                async with self._connect() as socket:
                    [welcome] = wire.FROM_DESK.validate_json(await socket.recv(decode=False))
                    assert isinstance(welcome, wire.Welcome), "a desk's first message"
                    problem, self.is_connected = "", True
                    LOG.info("desk connected")
                    if self._away is not None:
                        self._away.cancel()
                        self._away = None
                    self.tickets.key = bytes.fromhex(welcome.ticket_key)
                    # Sessions first, so that their slots are not assigned again.
                    for ticket in sorted(self._held.values(), key=lambda held: held.is_waiting):
                        self._send(_entry(ticket))
                    await first_of(self._read(socket), self._write(socket))
            except (OSError, TimeoutError, WebSocketException, ValidationError) as error:
                if self.is_connected or str(error) != problem:
                    LOG.warning("desk away", reason=str(error))
                problem = str(error)
            except Exception:
                LOG.exception("connection to the desk failed")
            finally:
                self.is_connected = False
                self._outbox.clear()
                if self._away is None:
                    self._away = asyncio.get_running_loop().call_later(AWAY_LIMIT_S, self._give_up)
            await asyncio.sleep(RETRY_S)

    def _give_up(self) -> None:
        self._away = None  # for the tickets that return to their positions from now on
        self._refuse_waiting(wire.DeskAwayError())

    async def _read(self, socket: ClientConnection) -> None:
        while True:
            for message in wire.FROM_DESK.validate_json(await socket.recv(decode=False)):
                self._handle(message)

    async def _write(self, socket: ClientConnection) -> None:
        while True:
            await happens(self._wake, LOAD_S)
            self._wake.clear()
            messages, self._outbox = self._outbox, []
            units_ms, refused = self._metrics.take_units(), self._metrics.take_refused()
            if units_ms or refused:
                messages.append(wire.Load(units_ms=units_ms, refused=refused))
            if messages:
                await socket.send(wire.FROM_DOOR.dump_json(messages), text=True)

    def _handle(self, message: wire.FromDesk) -> None:
        match message:
            case wire.Workers(workers=states):
                self.directory.update(states)
            case wire.Queue(tickets=moved):
                self.queue_length, self.longest_wait_s = message.length, message.longest_wait_s
                for now in moved:
                    ticket = self._held.get(now.ticket_id)
                    if ticket is not None and ticket.is_waiting:
                        has_moved = ticket.position != now.position
                        ticket.order, ticket.position = now.order, now.position
                        ticket.estimated_wait_s = now.estimated_wait_s
                        if has_moved:
                            ticket.changed.set()
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
            case wire.SessionCommand():
                self._obey(message)


Pool = WorkerPool | DeskClient
"""The pool that a relay uses: that of this process, or that of a desk."""


def _entry(ticket: Ticket, *, is_return: bool = False) -> wire.Enter:
    place = ticket.assigned.place.netloc if ticket.assigned else ""
    changes = {"is_return": is_return, "place": place}
    return wire.Enter.model_validate(ticket).model_copy(update=changes)
