"""One accepted client, from its first message to its last: the queue, then texts both ways.

Carries out what the queueing machine asks for and knows none of its rules. Whatever happens, every
task it started has ended, the worker is released and the client's socket is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from starlette.websockets import WebSocket

from core.errors import CloseCode, InternalError, NoWorkerError, OmniError
from core.protocols.effects import (
    CancelTicket,
    Close,
    ConnectWorker,
    Enqueue,
    Forward,
    QueueEffect,
    ReleaseWorker,
    ReportPosition,
    Send,
    StartRelay,
    StartTimer,
    StopTimer,
)
from core.protocols.events import (
    ClientSaid,
    Disconnected,
    Enqueued,
    Event,
    Opened,
    PositionChanged,
    QueueRefused,
    Rejected,
    ShuttingDown,
    TimerFired,
    TimerName,
    TurnEnded,
)
from core.protocols.machine import warn
from core.protocols.queueing import QueueingMachine, QueueingPhase
from core.schemas.queue import ErrorMessage, Queued, QueueDone, SessionResumable
from core.schemas.worker import ActionResult
from gateway_modules.desk.client import STOP, Pool
from gateway_modules.relay.client_wire import ClientGoneError, ClientWire
from gateway_modules.relay.notes import RelayNotes
from gateway_modules.relay.traffic import Traffic, Upward, Verdict
from gateway_modules.relay.worker_link import Request, WorkerLink
from gateway_modules.web.kinds import SocketKind
from gateway_modules.web.long_text import peek_type, size_chars

CLOSE_TEXT: Final = '{"type":"close"}'


@dataclass(eq=False)
class _Queued:
    """An event for the machine; its sender may wait until it has been handled."""

    event: Event
    final_text: str | None = None  # sent to the client when the worker has been released
    handled: asyncio.Event = field(default_factory=asyncio.Event)


class Relay:
    """One client's socket at the gateway.

    The inbox is bounded by its senders: the reader and the link wait for each event they send, and
    each timer and each caller from outside has one at most.
    """

    def __init__(
        self,
        wire: ClientWire,
        machine: QueueingMachine,
        traffic: Traffic,
        pool: Pool,
        request: Request,
        notes: RelayNotes,
    ) -> None:
        """Take over an accepted socket; `request` says what its worker is for."""
        self.request = request
        self._wire = wire
        self._machine = machine
        self._traffic = traffic
        self._pool = pool
        self._notes = notes
        self._inbox: asyncio.Queue[_Queued] = asyncio.Queue()
        self._timers: dict[TimerName, asyncio.TimerHandle] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._link: WorkerLink | None = None
        self._is_relaying = False
        self._warning: OmniError | None = None  # of a `prepare`; the client gets `prepared` first

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

    def post(self, event: Event) -> None:
        """Queue an event for the machine; returns at once."""
        self._inbox.put_nowait(_Queued(event))

    async def resume(self, websocket: WebSocket, last_seq: int) -> None:
        """Serve the client on another socket, until that is replaced, lost or closed.

        Args:
            websocket: Accepted.
            last_seq: The newest message of the worker that the client has.
        """
        returns = self._wire.returns
        if self._link is not None:
            await self._link.hold()  # what is on its way comes once more, and in order
        await returns.replace(websocket)
        if self.phase is QueueingPhase.CONNECTING and not self.request.kind.has_events:
            await self._carry_out(Send(QueueDone(worker_id=self.worker_id)))
        await self._report_place()
        if self._link is not None:
            await self._link.resume(last_seq)
        await returns.wait_until_left(websocket)

    @property
    def may_return(self) -> bool:
        """Its client may come back on another socket."""
        return self._wire.returns.may_return

    async def run(self) -> None:
        """Serve the client until its socket is closed."""
        self._notes.opened()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._converse(self._tasks)
        except* Exception as errors:
            structlog.get_logger("relay").exception("relay failed", exc_info=errors)
            await self._send_internal_error()
        finally:
            self._wire.returns.end()
            self._notes.closed()

    # --- the loop ---

    async def _converse(self, tasks: asyncio.TaskGroup) -> None:
        reader = tasks.create_task(self._read(), name="relay reader")
        try:
            await self._offer_return()
            self.post(Opened())
            while not self._machine.is_closed:
                queued = await self._inbox.get()
                await self._handle(queued.event)
                if queued.final_text is not None:
                    await self._send_final(queued.final_text)
                queued.handled.set()
        finally:
            reader.cancel()
            for timer in self._timers.values():
                timer.cancel()
            if self._link is not None:
                self._link.cancel()

    async def _handle(self, event: Event) -> None:
        if isinstance(event, ClientSaid) and self._is_relaying:
            await self._pass_up(event.text)  # it was read just before the worker was there
            return
        if isinstance(event, ShuttingDown) and self.may_return and self._link is not None:
            await self._link.hold()  # for the gateway that is started next
        self._notes.saw(event, self._machine.phase)
        for effect in self._machine.handle(event):
            await self._carry_out(effect)
        if isinstance(event, Enqueued) and self.request.kind.has_events:
            # Their protocols have no message of the queue's for it.
            await self._offer_return(event.position.return_ticket)

    async def _carry_out(self, effect: QueueEffect) -> None:
        match effect:
            case Send(message):
                if isinstance(message, ErrorMessage):
                    self._notes.error(message.code)
                if isinstance(message, Queued | QueueDone):
                    secret = {"session_secret": self.request.session_secret}
                    message = message.model_copy(update=secret)
                if (text := self._traffic.encoded(message)) is not None:
                    await self._send(text)
            case StartTimer(name, delay_s):
                self._set_timer(name, delay_s)
            case StopTimer(name):
                self._set_timer(name, None)
            case Close(code, reason):
                self._notes.closing(code, reason)
                await self._wire.close(code, reason)
            case Enqueue():
                self._start_link(effect)
            case CancelTicket():
                await self._end_link()
            case ReportPosition():
                await self._report_place()
            case ConnectWorker() if self._link is not None:
                self._link.connect()
            case Forward(text) if self._link is not None:
                ticket = self._link.ticket
                await self._send_up(self._traffic.opening(text, ticket))
            case StartRelay():
                self._is_relaying = True
            case ReleaseWorker(is_clean):
                if self._link is not None:
                    self._link.settle(is_clean=is_clean)
                await self._end_link()

    def _set_timer(self, name: TimerName, delay_s: float | None) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()
        if delay_s is not None:
            loop = asyncio.get_running_loop()
            self._timers[name] = loop.call_later(delay_s, self.post, TimerFired(name))

    # --- the worker's side ---

    def _start_link(self, effect: Enqueue) -> None:
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
        """Leave the queue or release the worker."""
        link, self._link = self._link, None
        self._is_relaying = False
        self._wire.release()
        if link is not None:
            await link.end()

    async def _report_place(self) -> None:
        link = self._link
        if link is None or not link.is_waiting:
            return
        if link.waited_s >= self.request.patience_s and not self._pool.directory.is_anybody_left():
            await self._end_link()
            self.post(QueueRefused(NoWorkerError()))
            return
        self.post(PositionChanged(link.report()))

    async def _pass_down(self, text: str) -> bool:
        """Take a message of the worker; say whether it is its last."""
        assert self._link is not None, "a message without a worker"
        verdict = await self._traffic.downward(text, self._link)
        if verdict is Verdict.DROP:
            return False
        self._notes.passed_down(text)
        if verdict is Verdict.DONE:
            # From here on what the client says is for the next turn.
            self._is_relaying = False
            await self._post_and_wait(TurnEnded(), final_text=text)
            return True
        if verdict is Verdict.LAST and peek_type(text) == "error":
            self._notes.worker_error(text)
        await self._send(text)
        if self._warning is not None and peek_type(text) == "prepared":
            await self._send(warn(self._warning).message.to_json())
            self._warning = None
        return verdict is Verdict.LAST

    def _pass_down_now(self, text: bytes) -> bool:
        """Pass a message of the worker on if nothing has to wait for it."""
        if not (self._traffic.passes_down(text) and self._wire.send_now(text)):
            return False
        self._notes.passed_down(text)
        return True

    async def _send_final(self, done: str) -> None:
        """Send the last message of a turn, once its worker has been released."""
        await self._send(done)
        if self.request.kind is SocketKind.CHAT:
            self.post(ClientSaid("close", CLOSE_TEXT))

    # --- the client's side ---

    async def _read(self) -> None:
        """Read the client until it is gone for good."""
        self._wire.offer_texts(self._pass_up_now)
        while True:
            websocket = self._wire.returns.websocket
            try:
                text = await self._wire.receive()
                if self._is_relaying:
                    await self._pass_up(text)
                else:
                    await self._post_and_wait(await self._traffic.read(text))
            except ClientGoneError as gone:
                returns = self._wire.returns
                is_away = websocket is returns.websocket  # else another socket is there already
                if is_away and returns.may_return and self._link is not None:
                    await self._link.hold()
                if not await returns.wait(websocket):
                    self.post(Disconnected(str(gone)))
                    return
            except OmniError as error:
                await self._post_and_wait(Rejected(error))

    def _pass_up_now(self, text: bytes) -> bool:
        """Pass a message of the client on if nothing has to wait for it."""
        link = self._link if self._is_relaying else None
        if link is None or not (self._traffic.passes_up(text) and link.send_now(text)):
            return False
        self._notes.passed_up(len(text))
        return True

    async def _pass_up(self, text: str) -> None:
        self._notes.passed_up(size_chars(text))
        await self._send_up(self._traffic.upward(text))
        self._wire.release()

    async def _send_up(self, work: Awaitable[Upward]) -> None:
        """Send to the worker what became of a message of the client."""
        try:
            upward = await work
        except OmniError as error:
            self.post(Rejected(error))
            return
        self._warning = upward.warning or self._warning
        if upward.text is not None and self._link is not None:
            if self._traffic.is_closing:
                self._link.expect_end()
            await self._link.send(upward.text)

    async def _send(self, text: str) -> None:
        """Send to the client; one that is gone for good ends the session."""
        try:
            await self._wire.send(text)
        except ClientGoneError as gone:
            if not self._wire.returns.may_return:
                self.post(Disconnected(str(gone)))

    async def _offer_return(self, return_ticket: str = "") -> None:
        """Say how to come back, if one may."""
        request, grace_s = self.request, self._wire.returns.grace_s
        if grace_s:
            named = {"session_id": request.session_id, "resume_token": request.session_secret}
            offer = SessionResumable(**named, grace_s=grace_s, return_ticket=return_ticket)
            await self._send(offer.to_json())

    async def _post_and_wait(self, event: Event, final_text: str | None = None) -> None:
        """Queue an event for the machine and wait until its effects have been carried out."""
        queued = _Queued(event, final_text)
        self._inbox.put_nowait(queued)
        await queued.handled.wait()

    async def _send_internal_error(self) -> None:
        """Send an internal error and close."""
        error = InternalError()
        self._notes.error(error.code)
        self._notes.closing(CloseCode.INTERNAL, error.code)
        try:
            await self._wire.send(self._traffic.encoded(ErrorMessage.of(error)) or "")
        except ClientGoneError:
            return
        await self._wire.close(CloseCode.INTERNAL, error.code)

    async def request_stop(self) -> ActionResult:
        """Stop what is running, as the client's own stop button over HTTP does.

        Raises:
            OmniError: The worker could not be reached.
        """
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
