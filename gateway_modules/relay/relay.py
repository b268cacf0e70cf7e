"""The relay of one client: waiting in the queue, then forwarding texts in both directions.

However it ends, its tasks have ended and the worker is released before the client is sent its last
message and the socket is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed

from core import errors
from core.errors import CloseCode
from core.schemas import queue
from core.schemas.common import WireModel
from core.schemas.queue import QueueingPhase, SocketKind
from core.schemas.worker import ActionResult
from core.sockets import ClientGoneError
from gateway_modules.queue.desk_client import Pool
from gateway_modules.queue.worker_client import StopPath, WorkerSocket
from gateway_modules.relay.link import Ending, Request, WorkerLink
from gateway_modules.relay.telemetry import RelayTelemetry
from gateway_modules.relay.traffic import Message, Traffic, Verdict
from gateway_modules.web.client_socket import ClientSocket
from gateway_modules.web.messages import Text, peek_type, size_chars
from gateway_modules.web.security import hash_of

# Ours: by then the worker of a client that ends a session and begins another is free again.
RECONNECT_S: Final = 1.0
STOP: Final = '{"type":"stop"}'


def new_ending() -> asyncio.Future[Ending]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, repr=False)
class Relay:
    """One client's socket at the gateway.

    Its tasks are of one group: the one that runs it waits for the end, which any task may set; a
    reader handles the client's messages; a third one has a `WorkerLink` while there is a request.
    """

    _client: ClientSocket
    _traffic: Traffic
    pool: Pool
    request: Request
    _telemetry: RelayTelemetry
    _first: Message | None = None  # OpenAI's protocols: an event sent before the client's
    _phase: QueueingPhase = QueueingPhase.OPEN
    _ending: asyncio.Future[Ending] = field(default_factory=new_ending)
    # Cleared while held messages are sent and while a turn ends; the reader waits.
    _is_settled: asyncio.Event = field(default_factory=asyncio.Event)
    _timer: asyncio.TimerHandle | None = None  # ends the session
    _tasks: asyncio.TaskGroup | None = None
    _link: WorkerLink | None = None
    _link_task: asyncio.Task[None] | None = None

    @property
    def phase(self) -> QueueingPhase:
        return QueueingPhase.CLOSED if self._ending.done() else self._phase

    @property
    def worker_id(self) -> str | None:
        has_worker = self.phase in (QueueingPhase.CONNECTING, QueueingPhase.RELAYING)
        link = self._link if has_worker else None
        return None if link is None else link.worker.worker_id

    def is_owned_by(self, shown_secret: str | None, address: str) -> bool:
        """Whether a caller has the secret or, without any, the same address."""
        if shown_secret is None:
            return address != "" and address == self.request.address
        return self.request.owner == hash_of(shown_secret)

    @property
    def may_resume(self) -> bool:
        return self._client.socket.may_resume

    @property
    def is_away(self) -> bool:
        """Whether the client lost its socket and may return on another one."""
        return self.may_resume and not self._client.socket.is_open

    # --- from the first message to the last ---

    async def run(self) -> None:
        self._telemetry.opened()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                ending = await self._converse(self._tasks)
            if ending.message is not None and not self._traffic.is_over:
                await self._say(ending.message)
            if ending.code is not None:
                self._telemetry.closing(ending.code, ending.reason)
                await self._client.close(ending.code, ending.reason)
        except* Exception as failures:
            structlog.get_logger("relay").exception("relay failed", exc_info=failures)
            error = errors.InternalError()
            self._telemetry.error(error.code)
            self._telemetry.closing(CloseCode.INTERNAL, error.code)
            text = self._traffic.encoded(queue.ErrorMessage.of(error)) or ""
            await self._client.refuse(text, CloseCode.INTERNAL, error.code)
        finally:
            self._client.socket.end()
            self._telemetry.closed()

    async def _converse(self, tasks: asyncio.TaskGroup) -> Ending:
        reader = tasks.create_task(self._read(), name="relay reader")
        try:
            await self._offer_return()
            if self.request.kind.has_turns:
                self._await_turn()
            else:
                self._begin(self._first)
            ending = await self._ending
            if ending.code is CloseCode.SHUTDOWN and self.may_resume and self._link is not None:
                await self._link.detach()  # the next gateway may resume the session
            elif ending.message is not None and self._link is not None:
                self._link.is_detached = False  # the session cannot be resumed
            return ending
        finally:
            self._ending.cancel()
            self._limit_wait(None)
            reader.cancel()
            await self._end_link()

    def finish(self, ending: Ending) -> None:
        """End the session, unless it has ended already."""
        if not self._ending.done():
            self._ending.set_result(ending)

    def fail(self, error: errors.OmniError) -> None:
        self.finish(Ending.of(error))

    def end(self) -> None:
        """End the session for an administrator."""
        self.fail(errors.EndedByAdminError())

    def _limit_wait(
        self, limit_s: float | None, error: type[errors.OmniError] = errors.QueueFullError
    ) -> None:
        """End the session by an error after `limit_s`; None: never. Replaces the limit before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if limit_s is not None and not self._ending.done():
            self._timer = asyncio.get_running_loop().call_later(limit_s, self.fail, error())

    def _await_turn(self) -> None:
        self._link, self._phase = None, QueueingPhase.OPEN
        self._limit_wait(self.request.limits.open_timeout_s, errors.SessionTimeoutError)
        self._is_settled.set()

    def _begin(self, first: Message | None) -> None:
        """Request a worker, which is sent the message first."""
        assert self._tasks is not None and self._link is None, "one worker at a time"
        history_hash, secret = ("", None) if first is None else self._traffic.begin(first)
        if secret is not None:
            self.request = replace(self.request, session_secret=secret)
        request, held = self.request, [] if first is None else [first]
        self._telemetry.queued(request.session_id, request.session_secret)
        self._link = WorkerLink(self.pool, request, history_hash, held)
        self.request = replace(request, order=None)  # later turns queue at the end
        self._wait_in_queue()
        self._link_task = self._tasks.create_task(self._run_link(self._link), name="relay worker")
        self._is_settled.set()

    # --- with a request for a worker ---

    async def _run_link(self, link: WorkerLink) -> None:
        try:
            end = await self._queue_and_relay(link)
        except errors.OmniError as error:
            self._telemetry.failed(error)
            self.fail(error)
            return
        if isinstance(end, Ending):
            self.finish(end)
            return
        self._telemetry.relayed()
        self._client.lease.release()
        await self._send(end)
        if self.request.kind is SocketKind.CHAT:
            self.finish(Ending())
        else:
            self._await_turn()

    async def _queue_and_relay(self, link: WorkerLink) -> str | Ending:
        """Queue, and relay until the worker is released; return a turn's last message or the end.

        A worker that cannot be reached is replaced by another one.
        """
        moves = 0
        while True:
            with await link.enter():
                await link.wait(self._report)
                await self._send_assigned(link)
                try:
                    return await self._connect_and_relay(link)
                except errors.WorkerUnreachableError:
                    if not link.move() or moves == link.request.limits.max_moves:
                        raise
            moves += 1
            self._wait_in_queue()

    def _wait_in_queue(self) -> None:
        self._phase = QueueingPhase.WAITING
        self._limit_wait(self.request.max_wait_s)

    async def _report(self, link: WorkerLink, is_first: bool = False) -> None:
        position, max_wait_s = link.position(), self.request.max_wait_s
        if is_first:
            secret = self.request.session_secret
            await self._say(queue.Queued(**dict(position), session_secret=secret))
            if max_wait_s is not None and position.estimated_wait_s > max_wait_s:
                self._limit_wait(min(RECONNECT_S, max_wait_s))
        else:
            await self._say(queue.QueueUpdate(**dict(position)))
        if self.request.kind.has_events:  # OpenAI's protocols have no queue messages for the ticket
            await self._offer_return(position.return_ticket)

    async def _send_assigned(self, link: WorkerLink) -> None:
        self._phase = QueueingPhase.CONNECTING
        self._limit_wait(None)
        self._telemetry.assigned(link.worker.worker_id)
        if link.last_seq is None:  # else the worker has retained the session that continues
            await self._say_queue_done()

    async def _connect_and_relay(self, link: WorkerLink) -> str | Ending:
        """Connect and relay; again whenever a client resumes that was away."""
        while True:
            async with AsyncExitStack() as stack:
                try:
                    socket = await stack.enter_async_context(link.connection())
                except asyncio.CancelledError:
                    await link.dismiss()
                    raise
                is_first, link.socket = link.socket is None, socket
                if is_first:
                    await self._begin_relaying(link)
                if link.is_detached:  # during the connect
                    await socket.close(CloseCode.SHUTDOWN)
                end = await self._listen(link, socket)
            if not (link.is_detached and await link.has_resumed()):
                return end

    async def _begin_relaying(self, link: WorkerLink) -> None:
        self._telemetry.connected()
        link.ticket.kept_hash = ""  # the worker's cache changes
        self._is_settled.clear()
        for message in link.held:
            await self._send_up(self._traffic.opening(message.text, link.ticket))
        link.held.clear()
        if not self.request.kind.has_turns:  # the text of a turn may be needed again
            self._client.lease.release()
        self._phase = QueueingPhase.RELAYING
        self._is_settled.set()

    async def _listen(self, link: WorkerLink, socket: WorkerSocket) -> str | Ending:
        pass_down_now = self._pass_down_now
        socket.shortcut.take = lambda text: not link.is_detached and pass_down_now(text)
        try:
            while True:
                text = await socket.next_text()
                # A message for a detached client is sent again after the resumption.
                if not link.is_detached and await self._pass_down(link, text):
                    return text
        except ConnectionClosed as closed:
            return link.end(closed)

    async def _pass_down(self, link: WorkerLink, text: str) -> bool:
        """Handle a message of the worker; True for the last one of a turn, which is sent later."""
        verdict = await self._traffic.downward(text, link.ticket, link.send)
        if verdict is Verdict.DROP:
            return False
        self._telemetry.passed_down(text)
        if verdict is Verdict.DONE:
            # From here on the client's messages belong to the next turn.
            self._phase = QueueingPhase.OPEN
            self._is_settled.clear()
            return True
        if verdict is Verdict.LAST:
            link.is_end_expected = self._traffic.is_over = True
            if peek_type(text) == "error":
                self._telemetry.worker_error(text)
        await self._send(text)
        warning = self._traffic.warning
        if warning is not None and peek_type(text) == "prepared":
            await self._send(queue.WarningMessage.of(warning).to_json())
            self._traffic.warning = None
        return False

    def _pass_down_now(self, text: Text) -> bool:
        if not (self._traffic.passes_down(text) and self._client.send_now(text)):
            return False
        self._telemetry.passed_down(text)
        return True

    async def _end_link(self) -> None:
        """Leave the queue, or release the worker."""
        self._link = None
        self._client.lease.release()
        self._telemetry.waited("gone")
        if self._link_task is not None:
            self._link_task.cancel()
            await asyncio.wait([self._link_task])

    # --- messages of the client ---

    async def _read(self) -> None:
        self._client.pass_on = self._pass_up_now
        while True:
            websocket = self._client.socket.websocket
            try:
                text = await self._client.receive()
                if self._phase is QueueingPhase.RELAYING:
                    await self._pass_up(text)
                else:
                    await self._take(await self._traffic.read(text))
            except ClientGoneError:
                socket = self._client.socket
                is_current = websocket is socket.websocket  # else already replaced
                if is_current and socket.may_resume and self._link is not None:
                    await self._link.detach()
                if not await socket.wait(websocket):
                    self.finish(Ending(code=None))
                    return
            except errors.OmniError as error:
                await self._reject(error)

    async def _take(self, message: Message) -> None:
        """Handle a message that was read while no worker was connected."""
        while not self._is_settled.is_set():
            await self._is_settled.wait()
        if self._ending.done():
            return
        if self._phase is QueueingPhase.RELAYING:  # by now
            await self._pass_up(message.text)
            return
        link = self._link
        match message.kind:
            case "close":
                self.finish(Ending())
            case "prefill" if link is None:
                self._begin(message)
            case "stop" if link is not None:
                await self._stop_waiting()
            case "prefill" | "generate" | "stop":
                raise errors.OutOfOrderError(f"{message.kind!r} is not expected now.")
            case _ if link is not None:
                self._hold(message, link.held)

    def _hold(self, message: Message, held: list[Message]) -> None:
        before_chars = message.size_chars + sum(each.size_chars for each in held)
        try:
            self._traffic.hold(message, held)
        finally:  # what is dropped takes no memory
            kept_chars = sum(each.size_chars for each in held)
            self._client.lease.give_back(before_chars - kept_chars)

    async def _reject(self, error: errors.OmniError) -> None:
        """Warn that a message is dropped, or end the session."""
        if self._traffic.is_warning(error):
            await self._say(queue.WarningMessage.of(error))
        else:
            self.fail(error)

    async def _stop_waiting(self) -> None:
        self._phase = QueueingPhase.OPEN
        self._is_settled.clear()
        await self._end_link()
        stopped = self._traffic.stopped(self.request.session_id)
        if self.request.kind is not SocketKind.STREAMING:
            self.finish(Ending(stopped))
        elif not self._ending.done():
            self._await_turn()
            await self._say(stopped)

    async def request_stop(self) -> ActionResult:
        """Stop the current reply, or stop waiting; for the client's stop button over HTTP."""
        if self.phase is QueueingPhase.RELAYING and self._link is not None:
            is_half = self.request.kind is SocketKind.HALF_DUPLEX
            # On half duplex's socket `stop` would end the session; a detached one has no socket.
            if not (is_half or self._link.is_detached):
                await self._pass_up(STOP)
                return ActionResult(success=True, message="Stop requested.")
            worker, session_id = self._link.worker, self.request.session_id
            is_duplex = self.request.kind in (SocketKind.DUPLEX, SocketKind.LIVE)
            path: StopPath = "duplex" if is_duplex else "half_duplex"
            return await self.pool.client.stop(worker, path, session_id)
        is_waiting = self.phase in (QueueingPhase.WAITING, QueueingPhase.CONNECTING)
        if is_waiting and not self.request.kind.has_events:  # which have no `stop`
            await self._stop_waiting()
            return ActionResult(success=True, message="It no longer waits.")
        return ActionResult(success=False, message="Nothing is running that could be stopped.")

    def stop_soon(self) -> None:
        """Do the same in a task of this relay; for a desk."""

        async def stop() -> None:
            with suppress(errors.OmniError):
                await self.request_stop()

        if self._tasks is not None and not self._ending.done():
            self._tasks.create_task(stop(), name="relay stop")

    def _pass_up_now(self, text: Text) -> bool:
        link = self._link if self._phase is QueueingPhase.RELAYING else None
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
            await self._reject(error)
            return
        if text is not None and self._link is not None:
            self._link.is_end_expected |= self._traffic.is_closing
            await self._link.send(text)

    # --- messages to the client ---

    async def resume(self, websocket: WebSocket, last_seq: int) -> None:
        """Continue the session on another socket until that one is replaced, lost or closed."""
        socket = self._client.socket
        if self._link is not None:
            await self._link.detach()  # messages in flight are sent again, in order
        await socket.replace(websocket)
        if self._phase is QueueingPhase.CONNECTING and not self.request.kind.has_events:
            await self._say_queue_done()
        if self._link is not None and self._link.ticket.position:  # it waits, and that is known
            await self._report(self._link)
        if self._link is not None and websocket is socket.websocket:  # else already replaced
            await self._link.resume(last_seq)
        await socket.wait_until_left(websocket)

    async def _offer_return(self, return_ticket: str = "") -> None:
        request, grace_s = self.request, self._client.socket.grace_s
        if grace_s:
            named = {"session_id": request.session_id, "resume_token": request.session_secret}
            offer = queue.SessionResumable(**named, grace_s=grace_s, return_ticket=return_ticket)
            await self._send(offer.to_json())

    async def _say_queue_done(self) -> None:
        secret = self.request.session_secret
        await self._say(queue.QueueDone(worker_id=self.worker_id, session_secret=secret))

    async def _say(self, message: WireModel) -> None:
        """Send one of the gateway's own messages."""
        if isinstance(message, queue.ErrorMessage):
            self._telemetry.error(message.code)
        if (text := self._traffic.encoded(message)) is not None:
            await self._send(text)

    async def _send(self, text: str) -> None:
        try:
            await self._client.send(text)
        except ClientGoneError:
            if not self._client.socket.may_resume:
                self.finish(Ending(code=None))
