"""A session that a worker kept: which worker that is, and a ticket for it past the queue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from core.schemas.queue import RequestType
from core.schemas.worker import KeptSession
from gateway_modules.queue.models import STATUS_OF_REQUEST
from gateway_modules.queue.ticket import Ticket
from gateway_modules.queue.worker_connection import WorkerConnection, utc_now
from gateway_modules.queue.worker_pool import TICKET_BYTES, WorkerPool


async def find_worker(pool: WorkerPool, session: KeptSession) -> WorkerConnection | None:
    """Return the worker that keeps a session, None if none does."""
    workers = list(pool.workers.values())
    answers = await asyncio.gather(*(pool.client.keeps(worker, session) for worker in workers))
    return next((worker for worker, keeps in zip(workers, answers, strict=True) if keeps), None)


@contextmanager
def adopted(
    pool: WorkerPool, worker: WorkerConnection, request_type: RequestType, session_id: str
) -> Iterator[Ticket]:
    """Have a ticket of a session that a worker kept; it occupies the worker already.

    Args:
        pool: Has the worker.
        worker: The worker.
        request_type: What the session is.
        session_id: Its id.
    """
    ticket = Ticket(f"q_{secrets.token_hex(TICKET_BYTES)}", request_type, session_id, utc_now())
    worker.adopt(STATUS_OF_REQUEST[request_type], request_type, session_id, ticket.ticket_id)
    ticket.end_wait(worker)
    try:
        yield ticket
    finally:
        pool.leave(ticket)
