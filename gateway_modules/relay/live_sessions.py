"""Connected sessions: of this process's clients, and of the doors of a desk.

When a door is lost, its tickets leave the queue at once. Its sessions may continue, so their slots
stay occupied until the workers report their end or the door reconnects and claims them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, Literal

import structlog
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from core.errors import CloseCode, OmniError, SessionInUseError
from core.metrics import GatewayMetrics
from core.schemas.queue import QueueingPhase, SocketKind
from core.schemas.worker import ActionResult, WorkerHealth
from core.sockets import close_quietly
from gateway_modules.queue import desk_link as wire
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.relay.relay import Relay
from gateway_modules.web.limits import first_of, happens
from gateway_modules.web.security import hash_of
from settings.workers import worker_place

# A page may open a new socket right after closing the old one under the same id.
TAKEOVER_GRACE_S: Final = 1.0
BATCH_S: Final = 0.1  # minimum interval between updates of positions
REPORT_S: Final = 1.0  # interval between reports of workers and estimates
SEND_LIMIT_S: Final = 20.0  # for sending a message; then the door is lost
OUTBOX_MAX: Final = 10_000  # unsent messages; with one more the door is lost

LOG: Final = structlog.get_logger("doors")


class LiveSessions:
    def __init__(self, grace_s: float = TAKEOVER_GRACE_S) -> None:
        self._grace_s = grace_s
        self._relays: dict[str, Relay] = {}
        self._left = asyncio.Event()  # set when a session ends, then replaced

    @asynccontextmanager
    async def entered(self, relay: Relay) -> AsyncIterator[None]:
        """Own the session id for the block; SessionInUseError while another live socket has it."""
        session_id = relay.request.session_id
        try:
            async with asyncio.timeout(self._grace_s):
                while session_id in self._relays:
                    await self._left.wait()
        except TimeoutError:
            raise SessionInUseError() from None
        self._relays[session_id] = relay
        try:
            yield
        finally:
            del self._relays[session_id]
            left, self._left = self._left, asyncio.Event()
            left.set()

    def get(self, session_id: str) -> Relay | None:
        return self._relays.get(session_id)

    def all(self) -> list[Relay]:
        return list(self._relays.values())

    async def wait_until_empty(self, limit_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._relays:
                    await self._left.wait()


class DoorLostError(Exception):
    """A door violated the protocol of its connection."""


class Door:
    def __init__(self, doors: Doors, websocket: WebSocket) -> None:
        self.pool = doors.pool
        self._doors = doors
        self._websocket = websocket
        self.held: dict[str, Ticket] = {}
        self._waiting: dict[str, Ticket] = {}
        self._outbox: list[wire.FromDesk] = []
        self._wake = asyncio.Event()
        self._sent_queue = (0, 0.0)
        self._sent_tickets: dict[str, wire.WaitingTicket] = {}
        self._sent_workers: list[wire.WorkerState] | None = None  # None: they have to be sent
        self._must_name_workers = False
        self._is_over = False

    def send(self, message: wire.FromDesk) -> None:
        self._outbox.append(message)
        self._wake.set()

    async def serve(self) -> None:
        """Serve until the connection ends with DoorLostError, OSError or WebSocketDisconnect."""
        welcome = wire.Welcome(ticket_key=self.pool.tickets.key.hex())
        await self._websocket.send_text(wire.FROM_DESK.dump_json([welcome]).decode())
        try:
            await first_of(self._read(), self._write())
        finally:
            self.release()

    def end(self) -> None:
        self._is_over = True
        self.release()
        self._wake.set()

    def _check(self) -> None:
        if self._is_over:
            raise DoorLostError("The door has reconnected.")

    def release(self) -> None:
        """Leave the queue; slots stay occupied until their workers report otherwise."""
        held, self.held = self.held, {}
        for ticket in held.values():
            self.pool.leave(ticket, is_lost=True)
        self._doors.on_left()

    async def _read(self) -> None:
        while True:
            text = await self._websocket.receive_text()
            self._check()
            try:
                messages = wire.FROM_DOOR.validate_json(text)
            except ValidationError as error:
                raise DoorLostError(f"Invalid message: {error}") from error
            for message in messages:
                self._handle(message)
            if len(self._outbox) > OUTBOX_MAX:
                raise DoorLostError("The door does not read.")

    def _handle(self, message: wire.FromDoor) -> None:
        match message:
            case wire.Enter(place=""):
                self._enter(message)
            case wire.Enter(place=place, ticket_id=ticket_id):
                worker = self.pool.directory.at(place)
                if worker is None:  # not found yet: it reports that its slot is occupied once it is
                    worker = WorkerConnection(place, worker_place(place))
                if ticket_id not in self.held:
                    self.held[ticket_id] = self.pool.adopt(message.ticket(), worker)
            case wire.Leave(ticket_id=ticket_id):
                if (left := self.held.pop(ticket_id, None)) is not None:
                    left.has_started |= message.has_started
                    left.kept_hash = message.kept_hash
                    self.pool.leave(left)
                    self._doors.on_left()
            case wire.StatusChanged(ticket_id=ticket_id) if ticket_id in self.held:
                self.held[ticket_id].update_status(message.status)
            case wire.Unreachable(worker=place):
                if (worker := self.pool.directory.at(place)) is not None:
                    self.pool.directory.report_unreachable(worker)
                    self._sent_workers = None  # which end the offline state that the door has set
            case wire.Load(units_ms=units_ms, refused=refused):
                self._doors.metrics.add_load(units_ms, refused)

    def _enter(self, message: wire.Enter) -> None:
        ticket, ticket_id = message.ticket(), message.ticket_id
        if ticket_id in self.held:
            raise DoorLostError("A ticket was entered twice.")
        if message.is_return and self.pool.tickets.is_spent(ticket.order):
            ticket.order = 0
        try:
            self.pool.enqueue(ticket)
        except OmniError as error:
            self.send(wire.Refused(ticket_id=ticket_id, code=error.code, message=error.message))
            return
        self.held[ticket_id] = ticket
        if ticket.is_waiting:
            self._waiting[ticket_id] = ticket
            ticket.on_end = self._answer
        else:
            self._answer(ticket)

    def _answer(self, ticket: Ticket) -> None:
        ticket_id = ticket.ticket_id
        self._waiting.pop(ticket_id, None)
        self._sent_tickets.pop(ticket_id, None)
        if self.held.get(ticket_id) is not ticket:
            return
        if (error := ticket.refusal) is not None:
            del self.held[ticket_id]
            self.send(wire.Refused(ticket_id=ticket_id, code=error.code, message=error.message))
            return
        place, named = ticket.worker.place, self._sent_workers or ()
        self._must_name_workers |= all((one.host, one.port) != place[:2] for one in named)
        self.send(
            wire.Assigned(
                ticket_id=ticket_id,
                order=ticket.order,
                worker=place.netloc,
                is_cache_hit=ticket.is_cache_hit,
            )
        )

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        reported_s = placed_s = -REPORT_S
        while True:
            self._check()
            self._wake.clear()
            now_s, answers, self._outbox = clock(), self._outbox, []
            if is_report := now_s - reported_s >= REPORT_S:
                reported_s = now_s
            if self._must_name_workers or is_report:
                self._must_name_workers = False
                states = [_state(worker) for worker in self.pool.workers.values()]
                is_known = states or self.pool.directory.is_known  # else they are yet to be found
                if is_known and states != self._sent_workers:
                    self._sent_workers = states
                    answers.insert(0, wire.Workers(workers=states))
            if now_s - placed_s >= BATCH_S:
                placed_s = now_s
                answers += self._moves(is_report=is_report)
            if answers:
                text = wire.FROM_DESK.dump_json(answers).decode()
                async with asyncio.timeout(SEND_LIMIT_S):
                    await self._websocket.send_text(text)
            await happens(self._wake, BATCH_S if self._waiting else REPORT_S)

    def _moves(self, *, is_report: bool) -> Iterator[wire.FromDesk]:
        """Yield changes of the queue not sent yet; changed estimates only with a report."""
        pool = self.pool
        pool.refresh_estimates()
        moved = []
        for ticket_id, ticket in self._waiting.items():
            now = wire.WaitingTicket(
                ticket_id, ticket.order, ticket.position, ticket.estimated_wait_s
            )
            before = self._sent_tickets.get(ticket_id)
            has_moved = before is None or before.position != now.position
            if has_moved or (is_report and before != now):
                self._sent_tickets[ticket_id] = now
                moved.append(now)
        queue = pool.queue_length, pool.longest_wait_s
        if moved or (is_report and queue != self._sent_queue):
            self._sent_queue = queue
            yield wire.Queue(length=queue[0], longest_wait_s=queue[1], tickets=moved)


@dataclass(frozen=True)
class DoorSession:
    """A session of a door: what a `Relay` tells and does for one of this process."""

    door: Door
    request: Ticket

    @property
    def worker_id(self) -> str | None:
        return self.request.assigned.worker_id if self.request.assigned else None

    @property
    def phase(self) -> QueueingPhase:
        return QueueingPhase.RELAYING if self.request.assigned else QueueingPhase.WAITING

    def is_owned_by(self, shown_secret: str | None, _address: str) -> bool:
        """Whether a caller has the secret; a desk knows no addresses."""
        return shown_secret is not None and self.request.owner == hash_of(shown_secret)

    def end(self) -> None:
        self._command("end")

    async def request_stop(self) -> ActionResult:
        worker, request = self.request.assigned, self.request
        if worker is not None and request.kind is SocketKind.HALF_DUPLEX:
            return await self.door.pool.client.stop(worker, "half_duplex", request.session_id)
        self._command("stop")
        return ActionResult(success=True, message="Stop requested.")

    def _command(self, command: Literal["end", "stop"]) -> None:
        session_id = self.request.session_id or ""
        self.door.send(wire.SessionCommand(session_id=session_id, command=command))


@dataclass(frozen=True)
class Doors:
    """The doors of a desk, and their sessions; `on_left` is called when some may have ended."""

    pool: WorkerPool
    metrics: GatewayMetrics
    on_left: Callable[[], None]
    doors: dict[str, Door] = field(default_factory=dict)

    def all(self) -> list[DoorSession]:
        """Return the sessions over sockets; a request over HTTP has no `kind`."""
        held = ((door, ticket) for door in self.doors.values() for ticket in door.held.values())
        return [DoorSession(door, ticket) for door, ticket in held if ticket.kind is not None]

    async def serve(self, websocket: WebSocket) -> None:
        """Serve a door's connection, not accepted yet; it replaces the door's earlier one."""
        door_id = websocket.headers.get(wire.DOOR_ID, "")
        await websocket.accept()
        door, earlier = Door(self, websocket), self.doors.get(door_id)
        if earlier is not None:
            earlier.end()
        self.doors[door_id] = door
        log = LOG.bind(door=door_id)
        log.info("door connected")
        try:
            await door.serve()
        except WebSocketDisconnect as gone:
            log.info("door gone", code=gone.code)
        except (DoorLostError, OSError, TimeoutError, RuntimeError) as error:
            log.warning("door lost", reason=str(error))
            await close_quietly(websocket, CloseCode.POLICY, str(error))
        finally:
            if self.doors.get(door_id) is door:
                del self.doors[door_id]


def _state(worker: WorkerConnection) -> wire.WorkerState:
    service, latest = worker.service, worker.service.latest
    slots = service.announced_slots
    health = WorkerHealth(
        status="healthy",
        worker_status=worker.status,
        model=latest.model if latest else None,
        transcribes_by=latest.transcribes_by if latest else None,
        slots=slots,
        active_sessions=slots - worker.available_slots,
        is_draining=service.is_restarting or (latest is not None and latest.is_draining),
    )
    return wire.WorkerState(
        worker_id=worker.worker_id,
        host=worker.place.host,
        port=worker.place.port,
        misses=service.missed_polls,
        is_retiring=worker.is_retiring,
        health=health,
    )
