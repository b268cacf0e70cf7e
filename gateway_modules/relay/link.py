"""A request for a worker: its ticket in the queue, and the socket to the worker.

Contains no rules of the protocol: `relay.py` decides what is sent when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Final

import structlog
from websockets.exceptions import ConnectionClosed

from core import errors
from core.errors import CloseCode
from core.schemas import queue
from core.schemas.common import WireModel
from core.schemas.queue import SocketKind
from core.schemas.worker import KeptSession
from gateway_modules.queue.desk_client import Pool
from gateway_modules.queue.worker_client import (
    CONNECT_TRIES,
    OPEN_TIMEOUT_S,
    WORKER_BUSY,
    WorkerSocket,
)
from gateway_modules.queue.worker_connection import UPDATE_PERIOD_S, Ticket, WorkerConnection
from gateway_modules.relay.traffic import Message
from gateway_modules.web.limits import happens
from gateway_modules.web.messages import PART_CHARS, Text, parts_of, size_chars
from gateway_modules.web.security import hash_of

RETAINED_CHECK_S: Final = 2.0  # between two checks of a detached session at its worker
CHECK_FAILURES_MAX: Final = 3  # in a row, after which the session counts as lost
NEVER_S: Final = 86_400.0  # OpenAI's clients are sent changes of their position only
PATIENCE_S: Final = 30.0  # time for a worker to restart
# Close codes of a worker that refuses what the client sent; it has sent the reason.
REFUSALS: Final = frozenset(
    {CloseCode.BINARY, CloseCode.BAD_PAYLOAD, CloseCode.POLICY, CloseCode.TOO_BIG}
)
# Close codes of a socket whose worker is gone; a client can provoke the others.
FAILURES: Final = frozenset({CloseCode.INTERNAL, errors.RESTARTED})


@dataclass(frozen=True)
class QueueingLimits:
    """Periods and counts of a client's socket, which `core/schemas/export/queueing.md.j2` lists.

    Source of the first: docs/specification/service.md#2.2; the others are ours.
    """

    update_period_s: float = UPDATE_PERIOD_S  # between two reports of the position
    open_timeout_s: float = 300.0  # longest time between turns; no worker is held meanwhile
    # How often a request moves to another worker because one cannot be reached.
    max_moves: int = 3


@dataclass(frozen=True)
class Request:
    kind: SocketKind
    request_type: queue.RequestType
    session_id: str
    client: str  # whose queue quota the ticket uses
    address: str  # the client's; "" if unknown
    session_secret: str
    limits: QueueingLimits = QueueingLimits()
    tries: int = CONNECT_TRIES  # to connect
    patience_s: float = PATIENCE_S  # how long to queue while no worker is alive
    # OpenAI's clients: longest wait; one that is estimated to be longer ends after a second.
    max_wait_s: float | None = None
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


@dataclass(frozen=True)
class Ending:
    """The end of a client's socket: a last message, if any, and the close."""

    message: WireModel | None = None
    code: CloseCode | None = CloseCode.NORMAL  # None: the client has left
    reason: str = ""

    @classmethod
    def of(cls, error: errors.OmniError) -> Ending:
        return cls(queue.ErrorMessage.of(error), error.close_code, error.code)


class NoWorkerTimeout:
    def __init__(self, pool: Pool, limit_s: float) -> None:
        self._pool, self._limit_s = pool, limit_s
        self._alive_s = self._now_s()  # when a worker was alive, or when the wait began

    def check(self) -> None:
        """Raise NoWorkerError if no worker has been alive for `limit_s`."""
        if self._pool.directory.has_live_worker():
            self._alive_s = self._now_s()
        elif self._now_s() - self._alive_s >= self._limit_s:
            raise errors.NoWorkerError()

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


@dataclass(eq=False, repr=False)
class WorkerLink:
    """What the relay holds for a request: one for each turn, or for the whole session."""

    pool: Pool
    request: Request
    history_hash: str  # of the turn
    held: list[Message]  # what the worker is sent first, in order
    is_detached: bool = False  # the client is away, or the worker's socket is being replaced
    is_end_expected: bool = False  # the worker may close its socket: that is not a failure
    socket: WorkerSocket | None = None  # the latest
    _resumed: asyncio.Event = field(default_factory=asyncio.Event)  # the client has reconnected

    def __post_init__(self) -> None:
        self.last_seq = self.request.last_seq  # at the latest resumption; None if there was none
        self.ticket = self._new_ticket(self.request.order)

    def _new_ticket(self, order: int | None) -> Ticket:
        request = self.request
        return Ticket(
            request.request_type,
            request.session_id,
            self.history_hash,
            request.client,
            request.owner,
            order or 0,
            request.kind,
        )

    # --- the queue ---

    async def enter(self) -> Ticket:
        """Enter the ticket in the queue, or for the session that a worker retained."""
        pool = self.pool
        if self.last_seq is not None:
            workers, kept = list(pool.directory.workers.values()), self.request.kept
            answers = await asyncio.gather(*(pool.client.keeps(one, kept) for one in workers))
            if any(answers):
                return pool.adopt(self.ticket, workers[answers.index(True)])
            if self.last_seq > 0:
                raise errors.SessionExpiredError()
            self.last_seq = None  # the session had not begun
        return pool.enqueue(self.ticket)

    async def wait(self, report: Callable[[WorkerLink, bool], Awaitable[None]]) -> None:
        """Wait for a worker; NoWorkerError once none has been alive for too long.

        While waiting, the position is reported, with whether that is the first time.
        """
        request, is_first = self.request, True
        timeout = NoWorkerTimeout(self.pool, request.patience_s)

        async def on_wait(_: Ticket) -> None:
            nonlocal is_first
            timeout.check()
            await report(self, is_first)
            is_first = False

        period_s = NEVER_S if request.kind.has_events else request.limits.update_period_s
        await self.ticket.wait(on_wait, period_s)
        if self.ticket.is_cache_hit:
            self.ticket.kept_hash = self.history_hash  # until the worker is connected

    def position(self) -> queue.QueuePosition:
        ticket, request, pool = self.ticket, self.request, self.pool
        pool.refresh_estimates()
        return_ticket = ""
        if request.kind is not SocketKind.CHAT:  # each of whose sockets has a new session id
            return_ticket = pool.tickets.issue(ticket.order, request.session_id, request.kind)
        return queue.QueuePosition(
            ticket_id=ticket.ticket_id,
            position=ticket.position,
            estimated_wait_s=ticket.estimated_wait_s,
            queue_length=pool.queue_length,
            return_ticket=return_ticket,
        )

    def move(self) -> bool:
        """Take another ticket for the same position, since the worker could not be reached.

        Return False if it was reached before, or no other is in service.
        """
        worker, directory = self.worker, self.pool.directory
        directory.report_unreachable(worker)
        if self.socket is not None or not directory.is_other_in_service(worker):
            return False
        self.ticket = self._new_ticket(self.ticket.order)
        return True

    # --- the worker ---

    @property
    def worker(self) -> WorkerConnection:
        return self.ticket.worker

    def connection(self) -> AbstractAsyncContextManager[WorkerSocket]:
        request, worker = self.request, self.worker
        query = {**self.ticket.query, **request.query}
        if self.last_seq is not None:
            query[queue.LAST_SEQ] = str(self.last_seq)
        return self.pool.client.connected(
            worker,
            request.kind.path,
            query,
            session_secret=request.session_secret,
            tries=1 if self.pool.directory.is_other_free(worker) else request.tries,
        )

    async def send(self, text: str) -> None:
        """Send a message to the worker, a long one in parts; the reader detects a closed socket."""
        if self.socket is not None:
            is_long = size_chars(text) > PART_CHARS
            with suppress(ConnectionClosed):
                await self.socket.send(in_parts(text) if is_long else text)

    def send_now(self, text: Text) -> bool:
        return self.socket is not None and self.socket.send_now(text)

    def end(self, closed: ConnectionClosed) -> Ending:
        """Return how the worker has ended the session, or raise the error if it failed."""
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (None, "")
        if self.is_end_expected or self.is_detached or code in REFUSALS:
            known = (one for one in CloseCode if one == code)
            return Ending(None, next(known, CloseCode.NORMAL), reason)
        structlog.get_logger("relay").warning(
            "worker lost", worker_id=self.worker.worker_id, code=code, reason=reason
        )
        if code == CloseCode.TRY_LATER:
            raise errors.NoWorkerError(WORKER_BUSY)
        # Without the worker's code, the gateway's own: of a missing pong, or of too long a message.
        last = closed.rcvd or closed.sent
        if last is None or last.code in FAILURES:
            self.pool.directory.report_unreachable(self.worker)
        raise errors.WorkerLostError()

    # --- a client that comes back ---

    async def detach(self) -> None:
        """Close the worker's socket with the code that makes the worker retain the session."""
        self.is_detached = True
        self._resumed.clear()
        if self.socket is not None:
            await self.socket.close(CloseCode.SHUTDOWN)

    async def resume(self, last_seq: int) -> None:
        """The client has reconnected and has the worker's messages up to `last_seq`."""
        if self.socket is None:
            self.is_detached = False
            return
        await self.detach()
        self.last_seq = last_seq
        self._resumed.set()

    async def dismiss(self) -> None:
        """End a session that its worker retains for no client any longer."""
        if self.last_seq is not None and not self.is_detached:
            with suppress(errors.OmniError, TimeoutError):
                async with asyncio.timeout(OPEN_TIMEOUT_S), self.connection():
                    pass  # the worker ends the session when this socket is closed

    async def has_resumed(self) -> bool:
        """Wait for a detached client; False once the worker no longer retains the session."""
        failures = 0
        self.last_seq = self.last_seq or 0  # the worker retains a session now
        try:
            while failures < CHECK_FAILURES_MAX:
                if await happens(self._resumed, RETAINED_CHECK_S):
                    self.is_detached = False
                    return True
                is_retained = await self.pool.client.keeps(self.worker, self.request.kept)
                failures = 0 if is_retained else failures + 1
        except asyncio.CancelledError:
            await self.dismiss()
            raise
        return False


async def in_parts(text: str) -> AsyncIterator[str]:
    """Yield a message in frames that each occupy the event loop for at most a few milliseconds."""
    for part in parts_of(text):
        yield part
        await asyncio.sleep(0)  # sending may never block
