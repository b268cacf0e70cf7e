"""One request of a client over HTTP at a worker: the queue, and another worker if need be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from websockets.exceptions import ConnectionClosed

from core.errors import (
    CloseCode,
    NoWorkerError,
    WorkerLostError,
    WorkerUnreachableError,
)
from core.schemas.chat import ChatChunk, ChatDone, ChatPrefillDone, ServerMessage
from core.schemas.queue import ErrorMessage, RequestType
from gateway_modules.desk.client import STOP
from gateway_modules.queue.ticket import UPDATE_PERIOD_S, Ticket, new_session_secret
from gateway_modules.queue.worker_answer import ERROR_OF_CODE
from gateway_modules.queue.worker_client import WorkerSocket
from gateway_modules.relay.worker_link import parts
from gateway_modules.service import Gateway
from gateway_modules.web.kinds import SocketKind, worker_query
from recording.names import generate_session_id

CHAT: Final = RequestType.CHAT
MESSAGE: Final[TypeAdapter[ServerMessage]] = TypeAdapter(ServerMessage)
ReplyMessage = ChatPrefillDone | ChatChunk | ChatDone
Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Assignment:
    """A request that has a worker, how long it waited and how long that was expected to be."""

    ticket: Ticket
    session_id: str
    waited_s: float
    estimated_s: float


async def replies(
    gateway: Gateway, client: str, work: Callable[[Assignment], AsyncGenerator[Reply]]
) -> AsyncGenerator[Reply]:
    """Wait for a worker and yield what `work` yields.

    As long as nothing was yielded, a worker that cannot be reached or is busy is replaced. Closing
    the generator, or cancelling the task that waits for it, leaves the queue or ends the work.

    Raises:
        OmniError: The queue is full, no worker could be reached, or the worker failed.
    """
    pool, clock = gateway.relay_pool, asyncio.get_running_loop().time
    began_s, patience_s = clock(), gateway.timing.patience_s
    session_id, estimated_s = generate_session_id("chat"), 0.0
    order: int | None = None  # of a ticket whose worker was lost

    async def check(_: Ticket) -> None:
        if clock() - began_s >= patience_s and not pool.directory.is_anybody_left():
            raise NoWorkerError()

    for moves in itertools.count():
        async with AsyncExitStack() as stack:
            drawn = pool.enqueue(CHAT, session_id, client=client, order=order)
            ticket = stack.enter_context(drawn)
            order = ticket.order
            estimated_s = estimated_s if moves else ticket.estimated_wait_s
            worker = await ticket.wait(check, min(UPDATE_PERIOD_S, patience_s))
            assignment = Assignment(ticket, session_id, clock() - began_s, estimated_s)
            if not moves:
                gateway.metrics.waited(CHAT.value, assignment.waited_s, "assigned")
            said = await stack.enter_async_context(aclosing(work(assignment)))
            may_move = moves < gateway.timing.queueing.max_moves
            try:
                async for reply in said:
                    may_move = False
                    yield reply
                break
            except (WorkerUnreachableError, NoWorkerError) as error:
                may_move = may_move and pool.directory.is_served_beside(worker)
                if may_move or isinstance(error, WorkerUnreachableError):
                    pool.directory.report_unreachable(worker)
                if not may_move:
                    raise
    gateway.cleanup.request()


async def reply(
    gateway: Gateway, body: str, client: str, is_over: Callable[[], bool]
) -> AsyncGenerator[ReplyMessage]:
    """Wait for a worker and yield its reply to a `ChatSocketRequest`, `ChatDone` last.

    `is_over` is called after each message; once it is true, the worker ends the reply early.
    See `replies`.
    """
    work = partial(_served, gateway, body, is_over)
    async with aclosing(replies(gateway, client, work)) as messages:
        async for message in messages:
            yield message


async def _served(
    gateway: Gateway, body: str, is_over: Callable[[], bool], assignment: Assignment
) -> AsyncGenerator[ReplyMessage]:
    ticket = assignment.ticket
    async with gateway.relay_pool.client.connected(
        ticket.worker,
        SocketKind.CHAT.path,
        worker_query(assignment.session_id, CHAT),
        session_secret=new_session_secret(),
        tries=gateway.timing.connect_tries,
    ) as socket:
        ticket.note_started()
        try:
            await socket.send(parts(body))
            has_stopped = False
            while True:
                message = MESSAGE.validate_json(await socket.recv(decode=False))
                if isinstance(message, ErrorMessage):
                    raise ERROR_OF_CODE[message.code](message.message)
                if isinstance(message, ReplyMessage):
                    yield message
                if isinstance(message, ChatDone):
                    return
                if is_over() and not has_stopped:
                    has_stopped = True
                    await _ask_to_stop(socket)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == CloseCode.TRY_LATER:
                raise NoWorkerError("The worker is busy. Please try again later.") from closed
            raise WorkerLostError() from closed
        except ValidationError as error:
            raise WorkerLostError("The worker answered with something else.") from error


async def _ask_to_stop(socket: WorkerSocket) -> None:
    """Ask for an early end; of a reply that is over already, the last words wait to be read."""
    with suppress(ConnectionClosed):
        await socket.send(STOP.text)
