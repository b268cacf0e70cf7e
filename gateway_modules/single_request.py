"""One request of a client over HTTP at a worker: the queue, and another worker if need be."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Final, TypeVar

from core.errors import NoWorkerError, WorkerUnreachableError
from core.schemas.queue import RequestType
from gateway_modules.queue.ticket import UPDATE_PERIOD_S, Ticket
from gateway_modules.service import Gateway
from recording.names import generate_session_id

CHAT: Final = RequestType.CHAT
Reply = TypeVar("Reply")


@dataclass(frozen=True)
class Assignment:
    """A request that has a worker.

    Attributes:
        ticket: Its place; its worker is there.
        session_id: Its own.
        waited_s: How long it has waited.
        estimated_s: How long that was expected to be.
    """

    ticket: Ticket
    session_id: str
    waited_s: float
    estimated_s: float


async def replies(
    gateway: Gateway, client: str, work: Callable[[Assignment], AsyncGenerator[Reply]]
) -> AsyncGenerator[Reply]:
    """Wait for a worker and yield what `work` yields.

    A worker that cannot be reached, or takes nothing, makes room for another one as long as
    nothing was yielded. Closing the generator, or cancelling the task that waits for it, leaves
    the queue or ends the work.

    Args:
        gateway: Has the workers.
        client: Whom the wait counts against.
        work: Has the worker reply.

    Raises:
        OmniError: The queue is full, no worker could be reached, or the worker failed.
    """
    pool, clock = gateway.pool, asyncio.get_running_loop().time
    began_s, patience_s = clock(), gateway.timing.patience_s
    session_id, estimated_s = generate_session_id("chat"), 0.0
    order: int | None = None  # of a ticket whose worker was lost

    async def check(_: Ticket) -> None:
        if clock() - began_s >= patience_s and not pool.directory.is_anybody_left():
            raise NoWorkerError()

    for moves in itertools.count():
        async with AsyncExitStack() as stack:
            place = pool.ticket(CHAT, session_id, client=client, order=order)
            ticket = stack.enter_context(place)
            order = ticket.order
            estimated_s = estimated_s if moves else ticket.estimated_wait_s
            worker = await pool.wait(ticket, check, min(UPDATE_PERIOD_S, patience_s))
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
