"""The link to a worker for one turn or session: a place in the queue, then a socket.

However it ends, the socket is closed first and the place is left after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final

import structlog
from websockets.exceptions import ConnectionClosed

from core.errors import (
    CloseCode,
    NoWorkerError,
    OmniError,
    SessionExpiredError,
    WorkerLostError,
    WorkerUnreachableError,
)
from core.protocols.events import (
    Assigned,
    Enqueued,
    Event,
    PositionChanged,
    QueuePosition,
    QueueRefused,
    WorkerClosed,
    WorkerConnected,
    WorkerFailed,
    WorkerMissed,
)
from core.schemas.queue import LAST_SEQ, RequestType
from core.schemas.worker import KeptSession
from gateway_modules.desk.client import Pool
from gateway_modules.queue.ticket import Ticket, hash_of, is_same_secret
from gateway_modules.queue.worker_client import CONNECT_TRIES, WorkerSocket
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.web.kinds import SocketKind, worker_query
from gateway_modules.web.long_text import PART_CHARS, parts_of, size_chars
from gateway_modules.web.socket_server import Take

# The machine reports by its own timer; the pool reports changes only.
LOOK_S: Final = 2.0  # ours: how often a worker is asked for a session whose client is away
MISSES_MAX: Final = 3  # ours: a worker that does not answer once may still have it
NEVER_S: Final = 86_400.0
PATIENCE_S: Final = 30.0  # a worker that is started again is back by then

Post = Callable[[Event], Awaitable[None]]
"""Sends the machine an event and returns when its effects have been carried out."""

OnText = Callable[[str], Awaitable[bool]]
"""Takes a message of the worker; says whether it was the worker's last one."""


@dataclass(frozen=True)
class Request:
    """What a worker is requested for.

    Attributes:
        kind: Which path.
        request_type: What it queues as.
        session_id: Whose it is.
        client: Whom the wait counts against.
        address: Where its client calls from; "" if that is not known.
        session_secret: What its client shows to prove that the session is its own.
        history_hash: Streaming: what its cache should hold.
        max_bytes: Largest message of the worker.
        tries: How often to try to reach it.
        patience_s: How long to queue while there is no worker at all.
        order: The place in the queue that it has already.
        query: What the worker's address says besides.
        last_seq: The newest message its client has of a session that a worker may have kept.
    """

    kind: SocketKind
    request_type: RequestType
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
        """The session as its worker is asked for it."""
        return KeptSession(
            kind=self.kind, session_id=self.session_id, session_secret=self.session_secret
        )

    def is_owned_by(self, shown_secret: str | None, address: str) -> bool:
        """Whether a client has its secret or, showing none, calls from the same address."""
        if shown_secret is None:
            return address != "" and address == self.address
        return self.has(shown_secret)

    def has(self, shown_secret: str) -> bool:
        """Whether this is the session's secret, compared in constant time."""
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
        """Ask for nothing yet.

        Args:
            pool: Has the workers.
            request: What the worker is for.
            post: Sends events to the machine.
            on_text: Takes the worker's messages.
            take: Takes those that nothing has to wait for; `on_text` gets what it leaves.
        """
        self._pool = pool
        self._request = request
        self._post = post
        self._on_text = on_text
        self._take = take
        self._may_connect = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._ticket: Ticket | None = None
        self._socket: WorkerSocket | None = None
        self._is_end_expected = False
        self._absence = _Absence(request.last_seq)
        self._began_s = asyncio.get_running_loop().time()

    @property
    def ticket(self) -> Ticket:
        """The ticket; ask only after `Enqueued` or `Assigned`."""
        assert self._ticket is not None, "no ticket was drawn"
        return self._ticket

    @property
    def is_waiting(self) -> bool:
        """A ticket is held and no worker is there."""
        return self._ticket is not None and self._ticket.is_waiting

    @property
    def waited_s(self) -> float:
        """Time since it began, s."""
        return asyncio.get_running_loop().time() - self._began_s

    async def hold(self) -> None:
        """The client is away: close the socket such that the worker keeps the session."""
        self._absence.is_held = True
        self._absence.ended.clear()
        if self._socket is not None:
            await self._socket.close(CloseCode.SHUTDOWN)

    async def resume(self, last_seq: int) -> None:
        """The client is back, and has the worker's messages up to this one."""
        if self._socket is None:
            self._absence.is_held = False
            return
        await self.hold()
        self._absence.last_seq = last_seq
        self._absence.ended.set()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Enter the queue."""
        self._task = tasks.create_task(self.run(), name="relay worker")

    def cancel(self) -> None:
        """End without waiting for it: the task group does."""
        if self._task is not None:
            self._task.cancel()

    async def end(self) -> None:
        """End, and wait until the socket is closed and the place is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def connect(self) -> None:
        """Let it reach the worker."""
        self._may_connect.set()

    def report(self) -> QueuePosition:
        """Return the request's place in the queue."""
        return self._report(self.ticket)

    def settle(self, *, is_clean: bool) -> None:
        """Say before the end whether what the worker's cache holds is known."""
        if self._ticket is None:
            return
        if not is_clean:
            self._ticket.retain("")
        elif self._socket is None and self._ticket.is_cache_hit:
            self._ticket.retain(self._request.history_hash)  # it was given nothing

    def expect_end(self) -> None:
        """The client sent `close`: the worker may close without a last message."""
        self._is_end_expected = True

    async def send(self, text: str) -> None:
        """Send a message to the worker, a long one in parts.

        A worker that is gone is found out by the reader.
        """
        if self._socket is None:
            return
        try:
            is_long = size_chars(text) > PART_CHARS
            await self._socket.send(parts(text) if is_long else text)
        except ConnectionClosed:
            return

    def send_now(self, text: bytes) -> bool:
        """Send a message if nothing has to wait for it, and return whether that is so."""
        return self._socket is not None and self._socket.send_now(text)

    async def run(self) -> None:
        """Queue, wait, reach the worker, and pass on what it says until it is ended."""
        reports = chain([Enqueued], repeat(PositionChanged))

        async def on_wait(ticket: Ticket) -> None:
            await self._post(next(reports)(self._report(ticket)))

        try:
            with await self._enter() as ticket:
                self._ticket = ticket
                worker = await ticket.wait(on_wait, NEVER_S)
                is_resumed = self._absence.last_seq is not None
                await self._post(Assigned(worker.worker_id, is_resumed=is_resumed))
                await self._may_connect.wait()
                end = await self._serve(ticket)
                while self._absence.is_held and not await self._is_over(ticket.worker):
                    self._absence.is_held = False
                    end = await self._serve(ticket)
                await self._post(end)
                await asyncio.Event().wait()  # the machine ends this when it has decided
        except OmniError as error:
            await self._post(QueueRefused(error))

    async def _enter(self) -> Ticket:
        """Return a ticket of the queue, or one of a session which a worker has kept.

        Raises:
            SessionExpiredError: No worker has the session that is to continue.
        """
        request, pool = self._request, self._pool
        owner = hash_of(request.session_secret)
        if self._absence.last_seq is not None:
            if (worker := await find_worker(pool, request.kept)) is not None:
                return pool.adopt(worker, request.request_type, request.session_id, owner)
            if self._absence.last_seq > 0:
                raise SessionExpiredError()
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
        """Wait for the client; return whether the session ended before it came back."""
        misses = 0
        while misses < MISSES_MAX:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._absence.ended.wait()
                    return False
            keeps = await self._pool.client.keeps(worker, self._request.kept)
            misses = 0 if keeps else misses + 1
        return True

    async def _serve(self, ticket: Ticket) -> Event:
        """Have a socket to the worker for as long as it lives; return how it ended."""
        request, worker = self._request, ticket.worker
        query = {**worker_query(request.session_id, request.request_type), **request.query}
        if self._absence.last_seq is not None:
            query[LAST_SEQ] = str(self._absence.last_seq)
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
                    await self._post(WorkerConnected())
                if self._absence.is_held:  # the client left meanwhile, or came back once more
                    await socket.close(CloseCode.SHUTDOWN)
                return await self._listen(socket, worker)
        except WorkerUnreachableError as error:
            self._pool.directory.report_unreachable(worker)
            is_another_there = self._pool.directory.is_served_beside(worker)
            return WorkerMissed(error, ticket.order) if is_another_there else WorkerFailed(error)

    async def _listen(self, socket: WorkerSocket, worker: WorkerConnection) -> Event:
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
            return WorkerClosed(code or CloseCode.NORMAL, reason)
        structlog.get_logger("relay").warning(
            "worker lost", worker_id=worker.worker_id, code=code, reason=reason
        )
        if code == CloseCode.TRY_LATER:
            return WorkerFailed(NoWorkerError("The worker is busy. Please try again later."))
        if code != CloseCode.NORMAL:  # which a client may bring about, and every worker can say
            self._pool.directory.report_unreachable(worker)
        return WorkerFailed(WorkerLostError())

    def _report(self, ticket: Ticket) -> QueuePosition:
        request, tickets = self._request, self._pool.tickets
        self._pool.refresh_estimates()
        return QueuePosition(
            ticket_id=ticket.ticket_id,
            position=ticket.position,
            estimated_wait_s=ticket.estimated_wait_s,
            queue_length=self._pool.queue_length,
            return_ticket=tickets.issue(ticket.order, request.session_id, request.kind),
        )


async def parts(text: str) -> AsyncIterator[str]:
    """Yield a message in frames that each take the event loop a few milliseconds at most."""
    for part in parts_of(text):
        yield part
        await asyncio.sleep(0)  # the system may take each part at once, without any wait


async def find_worker(pool: Pool, session: KeptSession) -> WorkerConnection | None:
    """Return the worker that keeps a session, None if none does."""
    workers = list(pool.directory.workers.values())
    answers = await asyncio.gather(*(pool.client.keeps(worker, session) for worker in workers))
    return next((worker for worker, keeps in zip(workers, answers, strict=True) if keeps), None)
