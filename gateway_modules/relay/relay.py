"""The relay of one client: waiting in the queue, then forwarding texts in both directions.

Carries out the effects of the queueing machine and contains none of its rules. However it ends,
its tasks have ended, the worker is released and the client's socket is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain, repeat
from typing import Final, NamedTuple

import structlog
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed

from core import errors
from core.protocols import effects, events
from core.protocols.machine import warn
from core.protocols.queueing import QueueingMachine, QueueingPhase
from core.schemas import limits, queue
from core.schemas.worker import ActionResult, KeptSession
from gateway_modules.queue.desk_client import STOP, Pool
from gateway_modules.queue.worker_client import CONNECT_TRIES, WORKER_BUSY, WorkerSocket
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection
from gateway_modules.relay.telemetry import RelayTelemetry
from gateway_modules.relay.traffic import Traffic, Verdict
from gateway_modules.web.client_socket import ClientGoneError, ClientSocket, SocketKind
from gateway_modules.web.limits import happens
from gateway_modules.web.messages import PART_CHARS, Text, parts_of, peek_type, size_chars
from gateway_modules.web.security import hash_of

RETAINED_CHECK_S: Final = 2.0  # between two checks of a detached session at its worker
CHECK_FAILURES_MAX: Final = 3  # in a row, after which the session counts as lost
NEVER_S: Final = 86_400.0  # the pool reports changes only; the machine's timer does the rest
PATIENCE_S: Final = 30.0  # time for a worker to restart


@dataclass(frozen=True)
class Request:
    """A request for a worker."""

    kind: SocketKind
    request_type: queue.RequestType
    session_id: str
    client: str  # whose queue quota the ticket uses
    address: str  # the client's; "" if unknown
    session_secret: str
    tries: int = CONNECT_TRIES  # to connect
    patience_s: float = PATIENCE_S  # how long to queue while no worker is alive
    order: int | None = None  # position in the queue to return to
    query: Mapping[str, str] = field(default_factory=dict)  # added to the worker's address
    last_seq: int | None = None  # to resume a session: the last message the client received
    enqueued_at: datetime = field(default_factory=partial(datetime.now, UTC))

    @property
    def kept(self) -> KeptSession:
        return KeptSession.model_validate(self, from_attributes=True)

    @cached_property
    def owner(self) -> str:
        return hash_of(self.session_secret)


class WorkerLink:
    """A relay's ticket and worker socket, and the task that serves them until it is cancelled."""

    def __init__(self, relay: Relay, ticket: Ticket, tasks: asyncio.TaskGroup) -> None:
        """`ticket` is new."""
        self.ticket = ticket
        self.last_seq = relay.request.last_seq  # at the latest resumption; None if there was none
        self.is_detached = False  # the client is away, or the worker's socket is being replaced
        self.is_end_expected = False  # the worker may close its socket: that is not a failure
        self._relay = relay
        self._pool = relay.pool
        self._request = relay.request
        self._socket: WorkerSocket | None = None
        self._resumed = asyncio.Event()  # the client has reconnected
        self.began_s = asyncio.get_running_loop().time()
        self.task = tasks.create_task(self._run(), name="relay worker")

    async def detach(self) -> None:
        """Close the worker's socket with the code that makes the worker retain the session."""
        self.is_detached = True
        self._resumed.clear()
        if self._socket is not None:
            await self._socket.close(errors.CloseCode.SHUTDOWN)

    async def resume(self, last_seq: int) -> None:
        """The client has reconnected and has the worker's messages up to `last_seq`."""
        if self._socket is None:
            self.is_detached = False
            return
        await self.detach()
        self.last_seq = last_seq
        self._resumed.set()

    def report(self) -> queue.QueuePosition:
        ticket, request, pool = self.ticket, self._request, self._pool
        pool.refresh_estimates()
        return queue.QueuePosition(
            ticket_id=ticket.ticket_id,
            position=ticket.position,
            estimated_wait_s=ticket.estimated_wait_s,
            queue_length=pool.queue_length,
            return_ticket=pool.tickets.issue(ticket.order, request.session_id, request.kind),
        )

    def settle(self, *, is_clean: bool) -> None:
        if not is_clean:
            self.ticket.kept_hash = ""
        elif self._socket is None and self.ticket.is_cache_hit:
            self.ticket.kept_hash = self.ticket.history_hash  # the cache was not touched

    async def send(self, text: str) -> None:
        """Send a message to the worker, a long one in parts; the reader detects a closed socket."""
        if self._socket is not None:
            is_long = size_chars(text) > PART_CHARS
            with suppress(ConnectionClosed):
                await self._socket.send(in_parts(text) if is_long else text)

    def send_now(self, text: Text) -> bool:
        return self._socket is not None and self._socket.send_now(text)

    async def _run(self) -> None:
        reports = chain([events.Enqueued], repeat(events.PositionChanged))

        async def on_wait(_: Ticket) -> None:
            await self._relay.post_and_wait(next(reports)(self.report()))

        try:
            with await self._enter() as ticket:
                worker = await ticket.wait(on_wait, NEVER_S)
                is_resumed = self.last_seq is not None
                await self._relay.post_and_wait(events.Assigned(worker.worker_id, is_resumed))
                end = await self._serve(worker)
                while self.is_detached and await self._has_resumed(worker):
                    self.is_detached = False
                    end = await self._serve(worker)
                await self._relay.post_and_wait(end)
                await asyncio.Event().wait()  # until the machine's decision cancels this task
        except errors.OmniError as error:
            await self._relay.post_and_wait(events.QueueRefused(error))

    async def _enter(self) -> Ticket:
        """Enter the ticket in the queue, or for the session that a worker retained."""
        pool = self._pool
        if self.last_seq is not None:
            workers, kept = list(pool.directory.workers.values()), self._request.kept
            answers = await asyncio.gather(*(pool.client.keeps(one, kept) for one in workers))
            if any(answers):
                return pool.adopt(self.ticket, workers[answers.index(True)])
            if self.last_seq > 0:
                raise errors.SessionExpiredError()
            self.last_seq = None  # the session had not begun
        return pool.enqueue(self.ticket)

    async def _has_resumed(self, worker: WorkerConnection) -> bool:
        """Wait for the client to resume; False once the worker no longer retains the session."""
        failures = 0
        while failures < CHECK_FAILURES_MAX:
            if await happens(self._resumed, RETAINED_CHECK_S):
                return True
            is_retained = await self._pool.client.keeps(worker, self._request.kept)
            failures = 0 if is_retained else failures + 1
        return False

    async def _serve(self, worker: WorkerConnection) -> events.Event:
        request = self._request
        query = {**self.ticket.query, **request.query}
        if self.last_seq is not None:
            query[queue.LAST_SEQ] = str(self.last_seq)
        tries = 1 if self._pool.directory.is_other_free(worker) else request.tries
        try:
            async with self._pool.client.connected(
                worker,
                request.kind.path,
                query,
                session_secret=request.session_secret,
                max_bytes=limits.CHAT_SOCKET_LIMIT_BYTES
                if request.kind.has_turns
                else limits.PREPARE_LIMIT_BYTES,
                tries=tries,
            ) as socket:
                is_first, self._socket = self._socket is None, socket
                if is_first:
                    await self._relay.post_and_wait(events.WorkerConnected())
                if self.is_detached:  # during the connect
                    await socket.close(errors.CloseCode.SHUTDOWN)
                return await self._listen(socket, worker)
        except errors.WorkerUnreachableError as error:
            self._pool.directory.report_unreachable(worker)
            if self._pool.directory.is_other_in_service(worker):
                return events.WorkerUnreachable(error, self.ticket.order)
            return events.WorkerFailed(error)

    async def _listen(self, socket: WorkerSocket, worker: WorkerConnection) -> events.Event:
        pass_down_now = self._relay.pass_down_now
        socket.shortcut.take = lambda text: not self.is_detached and pass_down_now(text)
        try:
            while True:
                text = await socket.next_text()
                if not self.is_detached:  # else it is sent again after the resumption
                    is_last = await self._relay.pass_down(text)
                    self.is_end_expected = self.is_end_expected or is_last
        except ConnectionClosed as closed:
            code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")
        if self.is_end_expected or self.is_detached:
            return events.WorkerClosed(code or errors.CloseCode.NORMAL, reason)
        structlog.get_logger("relay").warning(
            "worker lost", worker_id=worker.worker_id, code=code, reason=reason
        )
        if code == errors.CloseCode.TRY_LATER:
            return events.WorkerFailed(errors.NoWorkerError(WORKER_BUSY))
        if code != errors.CloseCode.NORMAL:  # which a client can provoke
            self._pool.directory.report_unreachable(worker)
        return events.WorkerFailed(errors.WorkerLostError())


CLOSE_TEXT: Final = '{"type":"close"}'


class _InboxItem(NamedTuple):
    event: events.Event
    final_text: str | None  # sent to the client after the worker has been released
    handled: asyncio.Event


@dataclass(eq=False, repr=False)
class Relay:
    """One client's socket at the gateway.

    The inbox is bounded by its senders: reader and link wait until each of their events is
    handled, and each timer and external caller has at most one event in it.
    """

    _client: ClientSocket
    _machine: QueueingMachine
    _traffic: Traffic
    pool: Pool
    request: Request
    _telemetry: RelayTelemetry
    _inbox: asyncio.Queue[_InboxItem] = field(default_factory=asyncio.Queue)
    _timers: dict[events.TimerName, asyncio.TimerHandle] = field(default_factory=dict)
    _tasks: asyncio.TaskGroup | None = None
    _link: WorkerLink | None = None
    _is_relaying: bool = False

    @property
    def phase(self) -> QueueingPhase:
        return self._machine.phase

    def is_of(self, kind: SocketKind) -> bool:
        return self.request.kind is kind

    def is_owned_by(self, shown_secret: str | None, address: str) -> bool:
        """Whether a caller has the secret or, without any, the same address."""
        if shown_secret is None:
            return address != "" and address == self.request.address
        return self.request.owner == hash_of(shown_secret)

    @property
    def worker_id(self) -> str | None:
        has_worker = self.phase in (QueueingPhase.CONNECTING, QueueingPhase.RELAYING)
        link = self._link if has_worker else None
        return None if link is None else link.ticket.worker.worker_id

    def post(self, event: events.Event, final_text: str | None = None) -> asyncio.Event:
        """Pass an event to the machine; its effects are carried out when the result is set."""
        item = _InboxItem(event, final_text, asyncio.Event())
        self._inbox.put_nowait(item)
        return item.handled

    async def resume(self, websocket: WebSocket, last_seq: int) -> None:
        """Continue the session on another socket until that one is replaced, lost or closed."""
        socket = self._client.socket
        if self._link is not None:
            await self._link.detach()  # messages in flight are sent again, in order
        await socket.replace(websocket)
        if self.phase is QueueingPhase.CONNECTING and not self.request.kind.has_events:
            await self._carry_out(effects.Send(queue.QueueDone(worker_id=self.worker_id)))
        await self._report_position()
        if self._link is not None and websocket is socket.websocket:  # else already replaced
            await self._link.resume(last_seq)
        await socket.wait_until_left(websocket)

    @property
    def may_resume(self) -> bool:
        return self._client.socket.may_resume

    @property
    def is_away(self) -> bool:
        """Whether the client lost its socket and may return on another one."""
        return self.may_resume and not self._client.socket.is_open

    async def run(self) -> None:
        self._telemetry.opened()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._converse(self._tasks)
        except* Exception as failures:
            structlog.get_logger("relay").exception("relay failed", exc_info=failures)
            error = errors.InternalError()
            self._telemetry.error(error.code)
            self._telemetry.closing(errors.CloseCode.INTERNAL, error.code)
            text = self._traffic.encoded(queue.ErrorMessage.of(error)) or ""
            await self._client.refuse(text, errors.CloseCode.INTERNAL, error.code)
        finally:
            self._client.socket.end()
            self._telemetry.closed()

    async def _converse(self, tasks: asyncio.TaskGroup) -> None:
        reader = tasks.create_task(self._read(), name="relay reader")
        try:
            await self._offer_return()
            self.post(events.Opened())
            while not self._machine.is_closed:
                item = await self._inbox.get()
                await self._handle(item.event)
                if item.final_text is not None:
                    await self._send(item.final_text)
                    if self.request.kind is SocketKind.CHAT:
                        self.post(events.RawMessage("close", CLOSE_TEXT))
                item.handled.set()
        finally:
            reader.cancel()
            for timer in self._timers.values():
                timer.cancel()
            if self._link is not None:
                self._link.task.cancel()

    async def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.RawMessage) and self._is_relaying:
            await self._pass_up(event.text)  # read just before the worker was connected
            return
        if isinstance(event, events.ShuttingDown) and self.may_resume and self._link is not None:
            await self._link.detach()  # the next gateway may resume the session
        self._telemetry.saw(event, self._machine.phase)
        for effect in self._machine.handle(event):
            await self._carry_out(effect)
        if isinstance(event, events.Enqueued) and self.request.kind.has_events:
            # OpenAI's protocols have no queue messages to carry the ticket.
            await self._offer_return(event.position.return_ticket)

    async def _carry_out(self, effect: effects.QueueEffect) -> None:
        match effect:
            case effects.Send(message):
                if isinstance(message, queue.ErrorMessage):
                    self._telemetry.error(message.code)
                if isinstance(message, queue.Queued | queue.QueueDone):
                    secret = {"session_secret": self.request.session_secret}
                    message = message.model_copy(update=secret)
                if (text := self._traffic.encoded(message)) is not None:
                    await self._send(text)
            case effects.StartTimer(name, delay_s):
                self._set_timer(name, delay_s)
            case effects.StopTimer(name):
                self._set_timer(name, None)
            case effects.Close(code, reason):
                self._telemetry.closing(code, reason)
                await self._client.close(code, reason)
            case effects.Enqueue():
                self._start_link(effect)
            case effects.CancelTicket():
                await self._end_link()
            case effects.ReportPosition():
                await self._report_position()
            case effects.ConnectWorker():
                pass  # the link connects once its `Assigned` event has been handled
            case effects.Forward(text) if self._link is not None:
                await self._send_up(self._traffic.opening(text, self._link.ticket))
            case effects.StartRelay():
                self._is_relaying = True
            case effects.ReleaseWorker(is_clean):
                if self._link is not None:
                    self._link.settle(is_clean=is_clean)
                await self._end_link()

    def _set_timer(self, name: events.TimerName, delay_s: float | None) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()
        if delay_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(delay_s, self.post, events.TimerFired(name))

    def _start_link(self, effect: effects.Enqueue) -> None:
        assert self._tasks is not None and self._link is None, "one worker at a time"
        history_hash, secret = self._traffic.begin(effect.first_text)
        if secret is not None:
            self.request = replace(self.request, session_secret=secret)
        request = self.request
        self._telemetry.queued(request.session_id, request.session_secret)
        ticket = Ticket(request.request_type, request.session_id, history_hash)
        ticket.client, ticket.owner, ticket.order = request.client, request.owner, effect.order or 0
        self._link = WorkerLink(self, ticket, self._tasks)

    async def _end_link(self) -> None:
        link, self._link = self._link, None
        self._is_relaying = False
        self._client.lease.release()
        if link is not None:
            link.task.cancel()
            await asyncio.wait([link.task])

    async def _report_position(self) -> None:
        link = self._link
        if link is None or not link.ticket.position:  # not known, or not waiting any more
            return
        waited_s = asyncio.get_running_loop().time() - link.began_s
        if waited_s >= self.request.patience_s and not self.pool.directory.has_live_worker():
            await self._end_link()
            self.post(events.QueueRefused(errors.NoWorkerError()))
            return
        self.post(events.PositionChanged(link.report()))

    async def pass_down(self, text: str) -> bool:
        """Handle a message of the worker; return whether it was the last one."""
        assert self._link is not None, "a message without a worker"
        verdict = await self._traffic.downward(text, self._link.ticket, self._link.send)
        if verdict is Verdict.DROP:
            return False
        self._telemetry.passed_down(text)
        if verdict is Verdict.DONE:
            # From here on the client's messages belong to the next turn.
            self._is_relaying = False
            await self.post_and_wait(events.TurnEnded(), final_text=text)
            return True
        if verdict is Verdict.LAST and peek_type(text) == "error":
            self._telemetry.worker_error(text)
        await self._send(text)
        warning = self._traffic.warning
        if warning is not None and peek_type(text) == "prepared":
            await self._send(warn(warning).message.to_json())
            self._traffic.warning = None
        return verdict is Verdict.LAST

    def pass_down_now(self, text: Text) -> bool:
        if not (self._traffic.passes_down(text) and self._client.send_now(text)):
            return False
        self._telemetry.passed_down(text)
        return True

    async def _read(self) -> None:
        self._client.pass_on = self._pass_up_now
        while True:
            websocket = self._client.socket.websocket
            try:
                text = await self._client.receive()
                if self._is_relaying:
                    await self._pass_up(text)
                else:
                    await self.post_and_wait(await self._traffic.read(text))
            except ClientGoneError as gone:
                socket = self._client.socket
                is_current = websocket is socket.websocket  # else already replaced
                if is_current and socket.may_resume and self._link is not None:
                    await self._link.detach()
                if not await socket.wait(websocket):
                    self.post(events.Disconnected(str(gone)))
                    return
            except errors.OmniError as error:
                await self.post_and_wait(events.Rejected(error))

    def _pass_up_now(self, text: Text) -> bool:
        link = self._link if self._is_relaying else None
        if link is None or not (self._traffic.passes_up(text) and link.send_now(text)):
            return False
        self._telemetry.passed_up(len(text))
        return True

    async def _pass_up(self, text: str) -> None:
        self._telemetry.passed_up(size_chars(text))
        await self._send_up(self._traffic.upward(text))
        self._client.lease.release()

    async def _send_up(self, work: Awaitable[str | None]) -> None:
        try:
            text = await work
        except errors.OmniError as error:
            self.post(events.Rejected(error))
            return
        if text is not None and self._link is not None:
            self._link.is_end_expected |= self._traffic.is_closing
            await self._link.send(text)

    async def _send(self, text: str) -> None:
        try:
            await self._client.send(text)
        except ClientGoneError as gone:
            if not self._client.socket.may_resume:
                self.post(events.Disconnected(str(gone)))

    async def _offer_return(self, return_ticket: str = "") -> None:
        request, grace_s = self.request, self._client.socket.grace_s
        if grace_s:
            named = {"session_id": request.session_id, "resume_token": request.session_secret}
            offer = queue.SessionResumable(**named, grace_s=grace_s, return_ticket=return_ticket)
            await self._send(offer.to_json())

    async def post_and_wait(self, event: events.Event, final_text: str | None = None) -> None:
        await self.post(event, final_text).wait()

    def end(self) -> None:
        """End the session for an administrator."""
        self.post(events.Rejected(errors.EndedByAdminError()))

    async def request_stop(self) -> ActionResult:
        """Stop the current reply, or stop waiting; for the client's stop button over HTTP."""
        if self.phase is QueueingPhase.RELAYING and self._link is not None:
            if self.request.kind is not SocketKind.HALF_DUPLEX:
                await self._pass_up(STOP.text)
                return ActionResult(success=True, message="It was asked to stop.")
            # On that socket `stop` would end the session, not only the reply.
            worker = self._link.ticket.worker
            return await self.pool.client.stop(worker, "half_duplex", self.request.session_id)
        if self.phase in (QueueingPhase.WAITING, QueueingPhase.CONNECTING):
            self.post(STOP)
            return ActionResult(success=True, message="It no longer waits.")
        return ActionResult(success=False, message="Nothing is running that could be stopped.")


async def in_parts(text: str) -> AsyncIterator[str]:
    """Yield a message in frames that each occupy the event loop for at most a few milliseconds."""
    for part in parts_of(text):
        yield part
        await asyncio.sleep(0)  # sending may never block
