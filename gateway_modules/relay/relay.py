"""One accepted client, from its first message to its last: the queue, then texts both ways.

Carries out what the queueing machine asks for and knows none of its rules. Whatever happens, every
task it started has ended, the worker is released and the client's socket is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Final

import structlog
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed

from core import errors
from core.protocols import effects, events
from core.protocols.machine import warn
from core.protocols.queueing import QueueingMachine, QueueingPhase
from core.schemas import queue
from core.schemas.worker import ActionResult, KeptSession
from gateway_modules.queue.desk_client import STOP, Pool
from gateway_modules.queue.worker_client import CONNECT_TRIES, WorkerSocket
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection
from gateway_modules.queue.worker_pool import hash_of, is_same_secret
from gateway_modules.relay.notes import RelayNotes
from gateway_modules.relay.traffic import Traffic, Upward, Verdict
from gateway_modules.web.client_socket import (
    ClientGoneError,
    ClientSocket,
    SocketKind,
    worker_query,
)
from gateway_modules.web.messages import PART_CHARS, Take, Text, parts_of, peek_type, size_chars

# The machine reports by its own timer; the pool reports changes only.
LOOK_S: Final = 2.0  # ours: how often a worker is asked for a session whose client is away
MISSES_MAX: Final = 3  # ours: a worker that does not answer once may still have it
NEVER_S: Final = 86_400.0
PATIENCE_S: Final = 30.0  # a worker that is started again is back by then

Post = Callable[[events.Event], Awaitable[None]]
"""Sends the machine an event and returns when its effects have been carried out."""

OnText = Callable[[str], Awaitable[bool]]
"""Takes a message of the worker; says whether it was the worker's last one."""


@dataclass(frozen=True)
class Request:
    """What a worker is requested for.

    Attributes:
        client: Whom the wait counts against.
        address: Where its client calls from; "" if that is not known.
        session_secret: What its client shows to prove that the session is its own.
        history_hash: Streaming: what the worker's cache should hold.
        max_bytes: Largest message of the worker.
        tries: How often to try to reach it.
        patience_s: How long to queue while there is no worker at all.
        order: The position in the queue that it has already.
        query: What the worker's address says besides.
        last_seq: The newest message its client has of a session that a worker may have kept.
    """

    kind: SocketKind
    request_type: queue.RequestType
    session_id: str
    client: str
    address: str
    session_secret: str
    max_bytes: int
    history_hash: str = ""
    tries: int = CONNECT_TRIES
    patience_s: float = PATIENCE_S
    order: int | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    last_seq: int | None = None

    @property
    def kept(self) -> KeptSession:
        return KeptSession(
            kind=self.kind, session_id=self.session_id, session_secret=self.session_secret
        )

    def is_owned_by(self, shown_secret: str | None, address: str) -> bool:
        """Whether a client has its secret or, showing none, calls from the same address."""
        if shown_secret is None:
            return address != "" and address == self.address
        return self.has(shown_secret)

    def has(self, shown_secret: str) -> bool:
        return is_same_secret(shown_secret, self.session_secret)


@dataclass
class _Absence:
    """What is known of a client that went away.

    Attributes:
        last_seq: the newest message it had when it came back; None if it never did.
        is_held: it is away, or came back to a socket that is being replaced.
        ended: set when it came back.
    """

    last_seq: int | None
    is_held: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class WorkerLink:
    """Runs in one task of the relay's group; cancelling the task ends the link."""

    def __init__(
        self, pool: Pool, request: Request, post: Post, on_text: OnText, take: Take
    ) -> None:
        """`take` gets the worker's messages first, `on_text` those that it leaves."""
        self._pool = pool
        self._request = request
        self._post = post
        self._on_text = on_text
        self._take = take
        self._task: asyncio.Task[None] | None = None
        self._ticket: Ticket | None = None
        self._socket: WorkerSocket | None = None
        self._is_end_expected = False
        self._absence = _Absence(request.last_seq)
        self._began_s = asyncio.get_running_loop().time()

    @property
    def ticket(self) -> Ticket:
        assert self._ticket is not None, "no ticket was drawn"
        return self._ticket

    @property
    def is_waiting(self) -> bool:
        return self._ticket is not None and self._ticket.is_waiting

    @property
    def waited_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    async def hold(self) -> None:
        """The client is away: close the socket such that the worker keeps the session."""
        self._absence.is_held = True
        self._absence.ended.clear()
        if self._socket is not None:
            await self._socket.close(errors.CloseCode.SHUTDOWN)

    async def resume(self, last_seq: int) -> None:
        """The client is back, and has the worker's messages up to this one."""
        if self._socket is None:
            self._absence.is_held = False
            return
        await self.hold()
        self._absence.last_seq = last_seq
        self._absence.ended.set()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._task = tasks.create_task(self.run(), name="relay worker")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])

    def report(self, ticket: Ticket | None = None) -> events.QueuePosition:
        ticket, request, pool = ticket or self.ticket, self._request, self._pool
        pool.refresh_estimates()
        return events.QueuePosition(
            ticket_id=ticket.ticket_id,
            position=ticket.position,
            estimated_wait_s=ticket.estimated_wait_s,
            queue_length=pool.queue_length,
            return_ticket=pool.tickets.issue(ticket.order, request.session_id, request.kind),
        )

    def settle(self, *, is_clean: bool) -> None:
        if self._ticket is None:
            return
        if not is_clean:
            self._ticket.retain("")
        elif self._socket is None and self._ticket.is_cache_hit:
            self._ticket.retain(self._request.history_hash)  # it was given nothing

    def expect_end(self) -> None:
        self._is_end_expected = True

    async def send(self, text: str) -> None:
        """Send a message to the worker, a long one in parts; the reader finds out if it is gone."""
        if self._socket is None:
            return
        try:
            is_long = size_chars(text) > PART_CHARS
            await self._socket.send(parts(text) if is_long else text)
        except ConnectionClosed:
            return

    def send_now(self, text: Text) -> bool:
        return self._socket is not None and self._socket.send_now(text)

    async def run(self) -> None:
        reports = chain([events.Enqueued], repeat(events.PositionChanged))

        async def on_wait(ticket: Ticket) -> None:
            await self._post(next(reports)(self.report(ticket)))

        try:
            with await self._enter() as ticket:
                self._ticket = ticket
                worker = await ticket.wait(on_wait, NEVER_S)
                is_resumed = self._absence.last_seq is not None
                await self._post(events.Assigned(worker.worker_id, is_resumed=is_resumed))
                end = await self._serve(ticket)
                while self._absence.is_held and not await self._is_over(ticket.worker):
                    self._absence.is_held = False
                    end = await self._serve(ticket)
                await self._post(end)
                await asyncio.Event().wait()  # the machine ends this when it has decided
        except errors.OmniError as error:
            await self._post(events.QueueRefused(error))

    async def _enter(self) -> Ticket:
        """Return a ticket of the queue, or one of a session which a worker has kept."""
        request, pool = self._request, self._pool
        owner = hash_of(request.session_secret)
        if self._absence.last_seq is not None:
            if (worker := await find_worker(pool, request.kept)) is not None:
                return pool.adopt(worker, request.request_type, request.session_id, owner)
            if self._absence.last_seq > 0:
                raise errors.SessionExpiredError()
            self._absence.last_seq = None  # it waited in the queue, or had only just a worker
        return pool.enqueue(
            request.request_type,
            request.session_id,
            request.history_hash,
            client=request.client,
            owner=owner,
            order=request.order,
        )

    async def _is_over(self, worker: WorkerConnection) -> bool:
        misses = 0
        while misses < MISSES_MAX:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._absence.ended.wait()
                    return False
            keeps = await self._pool.client.keeps(worker, self._request.kept)
            misses = 0 if keeps else misses + 1
        return True

    async def _serve(self, ticket: Ticket) -> events.Event:
        request, worker = self._request, ticket.worker
        query = {**worker_query(request.session_id, request.request_type), **request.query}
        if self._absence.last_seq is not None:
            query[queue.LAST_SEQ] = str(self._absence.last_seq)
        tries = 1 if self._pool.directory.has_room_beside(worker) else request.tries
        try:
            async with self._pool.client.connected(
                worker,
                request.kind.path,
                query,
                session_secret=request.session_secret,
                max_bytes=request.max_bytes,
                tries=tries,
            ) as socket:
                is_first, self._socket = self._socket is None, socket
                if is_first:
                    await self._post(events.WorkerConnected())
                if self._absence.is_held:  # the client left meanwhile, or came back once more
                    await socket.close(errors.CloseCode.SHUTDOWN)
                return await self._listen(socket, worker)
        except errors.WorkerUnreachableError as error:
            self._pool.directory.report_unreachable(worker)
            is_another_there = self._pool.directory.is_served_beside(worker)
            return (
                events.WorkerUnreachable(error, ticket.order)
                if is_another_there
                else events.WorkerFailed(error)
            )

    async def _listen(self, socket: WorkerSocket, worker: WorkerConnection) -> events.Event:
        socket.shortcut.take = lambda text: not self._absence.is_held and self._take(text)
        try:
            while True:
                text = await socket.next_text()
                if not self._absence.is_held:  # else it is sent again to who comes back
                    self._is_end_expected |= await self._on_text(text)
        except ConnectionClosed as closed:
            code = closed.rcvd.code if closed.rcvd is not None else None
            reason = closed.rcvd.reason if closed.rcvd is not None else ""
        if self._is_end_expected or self._absence.is_held:
            return events.WorkerClosed(code or errors.CloseCode.NORMAL, reason)
        structlog.get_logger("relay").warning(
            "worker lost", worker_id=worker.worker_id, code=code, reason=reason
        )
        if code == errors.CloseCode.TRY_LATER:
            return events.WorkerFailed(
                errors.NoWorkerError("The worker is busy. Please try again later.")
            )
        if (
            code != errors.CloseCode.NORMAL
        ):  # which a client may bring about, and every worker can say
            self._pool.directory.report_unreachable(worker)
        return events.WorkerFailed(errors.WorkerLostError())


CLOSE_TEXT: Final = '{"type":"close"}'


@dataclass(eq=False)
class _Queued:
    event: events.Event
    final_text: str | None = None  # sent to the client when the worker has been released
    handled: asyncio.Event = field(default_factory=asyncio.Event)


class Relay:
    """One client's socket at the gateway.

    The inbox is bounded by its senders: the reader and the link wait for each event they send, and
    each timer and each caller from outside has one at most.
    """

    def __init__(
        self,
        client: ClientSocket,
        machine: QueueingMachine,
        traffic: Traffic,
        pool: Pool,
        request: Request,
        notes: RelayNotes,
    ) -> None:
        self.request = request
        self._client = client
        self._machine = machine
        self._traffic = traffic
        self._pool = pool
        self._notes = notes
        self._inbox: asyncio.Queue[_Queued] = asyncio.Queue()
        self._timers: dict[events.TimerName, asyncio.TimerHandle] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._link: WorkerLink | None = None
        self._is_relaying = False
        self._warning: errors.OmniError | None = (
            None  # of a `prepare`; the client gets `prepared` first
        )

    # --- from outside ---

    @property
    def phase(self) -> QueueingPhase:
        return self._machine.phase

    @property
    def session_id(self) -> str:
        return self.request.session_id

    @property
    def worker_id(self) -> str | None:
        if self._link is None or self.phase not in (
            QueueingPhase.CONNECTING,
            QueueingPhase.RELAYING,
        ):
            return None
        return self._link.ticket.worker.worker_id

    def post(self, event: events.Event) -> None:
        self._inbox.put_nowait(_Queued(event))

    async def resume(self, websocket: WebSocket, last_seq: int) -> None:
        """Serve the client on another socket, until that is replaced, lost or closed.

        `last_seq` is the newest message of the worker that the client has.
        """
        returns = self._client.returns
        if self._link is not None:
            await self._link.hold()  # what is on its way comes once more, and in order
        await returns.replace(websocket)
        if self.phase is QueueingPhase.CONNECTING and not self.request.kind.has_events:
            await self._carry_out(effects.Send(queue.QueueDone(worker_id=self.worker_id)))
        await self._report_place()
        if self._link is not None:
            await self._link.resume(last_seq)
        await returns.wait_until_left(websocket)

    @property
    def may_return(self) -> bool:
        return self._client.returns.may_return

    async def run(self) -> None:
        self._notes.opened()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._converse(self._tasks)
        except* Exception as failures:
            structlog.get_logger("relay").exception("relay failed", exc_info=failures)
            await self._send_internal_error()
        finally:
            self._client.returns.end()
            self._notes.closed()

    # --- the loop ---

    async def _converse(self, tasks: asyncio.TaskGroup) -> None:
        reader = tasks.create_task(self._read(), name="relay reader")
        try:
            await self._offer_return()
            self.post(events.Opened())
            while not self._machine.is_closed:
                queued = await self._inbox.get()
                await self._handle(queued.event)
                if queued.final_text is not None:
                    await self._send(queued.final_text)
                    if self.request.kind is SocketKind.CHAT:
                        self.post(events.RawMessage("close", CLOSE_TEXT))
                queued.handled.set()
        finally:
            reader.cancel()
            for timer in self._timers.values():
                timer.cancel()
            if self._link is not None:
                self._link.cancel()

    async def _handle(self, event: events.Event) -> None:
        if isinstance(event, events.RawMessage) and self._is_relaying:
            await self._pass_up(event.text)  # it was read just before the worker was there
            return
        if isinstance(event, events.ShuttingDown) and self.may_return and self._link is not None:
            await self._link.hold()  # for the gateway that is started next
        self._notes.saw(event, self._machine.phase)
        for effect in self._machine.handle(event):
            await self._carry_out(effect)
        if isinstance(event, events.Enqueued) and self.request.kind.has_events:
            # Their protocols have no message of the queue's for it.
            await self._offer_return(event.position.return_ticket)

    async def _carry_out(self, effect: effects.QueueEffect) -> None:
        match effect:
            case effects.Send(message):
                if isinstance(message, queue.ErrorMessage):
                    self._notes.error(message.code)
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
                self._notes.closing(code, reason)
                await self._client.close(code, reason)
            case effects.Enqueue():
                self._start_link(effect)
            case effects.CancelTicket():
                await self._end_link()
            case effects.ReportPosition():
                await self._report_place()
            case effects.ConnectWorker():
                pass  # the link does so once it has reported that a worker was assigned
            case effects.Forward(text) if self._link is not None:
                ticket = self._link.ticket
                await self._send_up(self._traffic.opening(text, ticket))
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

    # --- the worker's side ---

    def _start_link(self, effect: effects.Enqueue) -> None:
        assert self._tasks is not None and self._link is None, "one worker at a time"
        self._traffic.begin(effect.first_text)
        secret = self._traffic.session_secret or self.request.session_secret
        self.request = replace(self.request, session_secret=secret)
        self._notes.queued(self.request.session_id, secret)
        history_hash = self._traffic.history_hash
        request = replace(self.request, history_hash=history_hash, order=effect.order)
        post, on_text, take = self._post_and_wait, self._pass_down, self._pass_down_now
        link = WorkerLink(self._pool, request, post, on_text, take)
        link.start(self._tasks)
        self._link = link

    async def _end_link(self) -> None:
        link, self._link = self._link, None
        self._is_relaying = False
        self._client.release()
        if link is not None:
            await link.end()

    async def _report_place(self) -> None:
        link = self._link
        if link is None or not link.is_waiting:
            return
        if link.waited_s >= self.request.patience_s and not self._pool.directory.is_anybody_left():
            await self._end_link()
            self.post(events.QueueRefused(errors.NoWorkerError()))
            return
        self.post(events.PositionChanged(link.report()))

    async def _pass_down(self, text: str) -> bool:
        assert self._link is not None, "a message without a worker"
        verdict = await self._traffic.downward(text, self._link)
        if verdict is Verdict.DROP:
            return False
        self._notes.passed_down(text)
        if verdict is Verdict.DONE:
            # From here on what the client says is for the next turn.
            self._is_relaying = False
            await self._post_and_wait(events.TurnEnded(), final_text=text)
            return True
        if verdict is Verdict.LAST and peek_type(text) == "error":
            self._notes.worker_error(text)
        await self._send(text)
        if self._warning is not None and peek_type(text) == "prepared":
            await self._send(warn(self._warning).message.to_json())
            self._warning = None
        return verdict is Verdict.LAST

    def _pass_down_now(self, text: Text) -> bool:
        if not (self._traffic.passes_down(text) and self._client.send_now(text)):
            return False
        self._notes.passed_down(text)
        return True

    # --- the client's side ---

    async def _read(self) -> None:
        self._client.offer_texts(self._pass_up_now)
        while True:
            websocket = self._client.returns.websocket
            try:
                text = await self._client.receive()
                if self._is_relaying:
                    await self._pass_up(text)
                else:
                    await self._post_and_wait(await self._traffic.read(text))
            except ClientGoneError as gone:
                returns = self._client.returns
                is_away = websocket is returns.websocket  # else another socket is there already
                if is_away and returns.may_return and self._link is not None:
                    await self._link.hold()
                if not await returns.wait(websocket):
                    self.post(events.Disconnected(str(gone)))
                    return
            except errors.OmniError as error:
                await self._post_and_wait(events.Rejected(error))

    def _pass_up_now(self, text: Text) -> bool:
        link = self._link if self._is_relaying else None
        if link is None or not (self._traffic.passes_up(text) and link.send_now(text)):
            return False
        self._notes.passed_up(len(text))
        return True

    async def _pass_up(self, text: str) -> None:
        self._notes.passed_up(size_chars(text))
        await self._send_up(self._traffic.upward(text))
        self._client.release()

    async def _send_up(self, work: Awaitable[Upward]) -> None:
        try:
            upward = await work
        except errors.OmniError as error:
            self.post(events.Rejected(error))
            return
        self._warning = upward.warning or self._warning
        if upward.text is not None and self._link is not None:
            if self._traffic.is_closing:
                self._link.expect_end()
            await self._link.send(upward.text)

    async def _send(self, text: str) -> None:
        try:
            await self._client.send(text)
        except ClientGoneError as gone:
            if not self._client.returns.may_return:
                self.post(events.Disconnected(str(gone)))

    async def _offer_return(self, return_ticket: str = "") -> None:
        request, grace_s = self.request, self._client.returns.grace_s
        if grace_s:
            named = {"session_id": request.session_id, "resume_token": request.session_secret}
            offer = queue.SessionResumable(**named, grace_s=grace_s, return_ticket=return_ticket)
            await self._send(offer.to_json())

    async def _post_and_wait(self, event: events.Event, final_text: str | None = None) -> None:
        queued = _Queued(event, final_text)
        self._inbox.put_nowait(queued)
        await queued.handled.wait()

    async def _send_internal_error(self) -> None:
        error = errors.InternalError()
        self._notes.error(error.code)
        self._notes.closing(errors.CloseCode.INTERNAL, error.code)
        try:
            await self._client.send(self._traffic.encoded(queue.ErrorMessage.of(error)) or "")
        except ClientGoneError:
            return
        await self._client.close(errors.CloseCode.INTERNAL, error.code)

    async def request_stop(self) -> ActionResult:
        """Stop what is running, as the client's own stop button over HTTP does."""
        if self.phase is QueueingPhase.RELAYING and self._link is not None:
            if self.request.kind is not SocketKind.HALF_DUPLEX:
                await self._pass_up(STOP.text)
                return ActionResult(success=True, message="It was asked to stop.")
            # On that socket `stop` would end the session; only the reply is to end.
            worker = self._link.ticket.worker
            return await self._pool.client.stop(worker, "half_duplex", self.request.session_id)
        if self.phase in (QueueingPhase.WAITING, QueueingPhase.CONNECTING):
            self.post(STOP)
            return ActionResult(success=True, message="It no longer waits.")
        return ActionResult(success=False, message="Nothing is running that could be stopped.")


async def parts(text: str) -> AsyncIterator[str]:
    """Yield a message in frames that each take the event loop a few milliseconds at most."""
    for part in parts_of(text):
        yield part
        await asyncio.sleep(0)  # the system may take each part at once, without any wait


async def find_worker(pool: Pool, session: KeptSession) -> WorkerConnection | None:
    workers = list(pool.directory.workers.values())
    answers = await asyncio.gather(*(pool.client.keeps(worker, session) for worker in workers))
    return next((worker for worker, keeps in zip(workers, answers, strict=True) if keeps), None)
