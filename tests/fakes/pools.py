"""Pools of workers that exist only in the gateway's mind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, NamedTuple

from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.estimates import EtaConfig, EtaTracker
from gateway_modules.queue.worker_connection import LONG_AGO, OnWait, Ticket, WorkerConnection
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.routes.queue import ServiceStatus, service_status
from tests.fakes.virtual_time import FakeClock

ETA = EtaConfig(eta_chat_s=10.0, eta_streaming_s=15.0, eta_duplex_s=90.0)


def make_pool(
    workers: int = 1,
    *,
    max_queue_size: int = 1000,
    are_busy: bool = False,
    slots: int = 1,
    clock: FakeClock | None = None,
    max_waiting_per_client: int = 0,
) -> WorkerPool:
    """Build a pool that polls nobody.

    Args:
        workers: How many.
        max_queue_size: How many requests may wait.
        are_busy: Every worker serves a duplex session; otherwise all are idle.
        slots: What each worker announces.
        clock: The pool's clock; without one it stands still.
        max_waiting_per_client: See `WorkerPool`.
    """
    pool = WorkerPool(
        worker_addresses=[f"localhost:{22400 + number}" for number in range(workers)],
        max_queue_size=max_queue_size,
        eta_tracker=EtaTracker(ETA),
        clock=clock or FakeClock(),
        max_waiting_per_client=max_waiting_per_client,
    )
    for worker in pool.workers.values():
        if slots > 1:
            hear(worker, WorkerStatus.IDLE, slots=slots)
        set_status(worker, WorkerStatus.IDLE)
        if are_busy:
            occupy(worker, "duplex", leave=pool.leave)
    return pool


def occupy(
    worker: WorkerConnection,
    request_type: str,
    session_id: str | None = None,
    ticket_id: str = "",
    *,
    leave: Callable[[Ticket], None] = lambda ticket: None,
) -> Ticket:
    """Have a worker serve a request that nobody drew a ticket for."""
    kind = RequestType(request_type)
    ticket = Ticket(kind, session_id, ticket_id=ticket_id, assigned=worker)
    ticket.leave = leave
    worker.serve(ticket)
    return ticket


def release(
    pool: WorkerPool,
    worker: WorkerConnection,
    *,
    cached_hash: str | None = None,
    ticket: Ticket | None = None,
) -> None:
    """End a ticket that a worker serves, the oldest if none is named; do nothing without one."""
    ticket = ticket or worker.oldest_task
    if ticket is not None:
        ticket.has_started = True
        ticket.kept_hash = cached_hash or ""
        pool.leave(ticket)


class Cache(NamedTuple):
    """What the cache of a slot holds, and when it was used."""

    cached_hash: str | None
    last_cache_used_at: datetime | None


def freshest(worker: WorkerConnection) -> Cache:
    """Return the cache that was used last."""
    return max((Cache(*one) for one in worker.slot_caches), key=lambda one: one[1] or LONG_AGO)


def set_cache(worker: WorkerConnection, cached_hash: str, used_at: datetime | None = None) -> None:
    """Say that a slot's cache holds a history."""
    worker.remember(cached_hash)
    if used_at is not None:
        worker.caches[cached_hash] = used_at.astimezone()


def set_status(worker: WorkerConnection, status: WorkerStatus) -> None:
    if status is WorkerStatus.OFFLINE:
        worker.mark_offline()
    else:
        hear(worker, status, slots=worker.service.announced_slots)


class Outcome:
    """What a ticket came to, for tests that draw one without a block to hold it."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket

    def done(self) -> bool:
        return not self.ticket.is_waiting

    def cancelled(self) -> bool:
        return self.ticket.refusal is not None

    def result(self) -> WorkerConnection:
        return self.ticket.worker


def new_ticket(kind: str, *fields: Any, **named: Any) -> Ticket:
    return Ticket(RequestType(kind), *fields, **named)


def ask(pool: WorkerPool, *args: Any, **options: Any) -> tuple[Ticket, Outcome]:
    ticket = pool.enqueue(new_ticket(*args, **options))
    return ticket, Outcome(ticket)


@asynccontextmanager
async def assigned(
    pool: WorkerPool, *args: Any, on_wait: OnWait | None = None, **options: Any
) -> AsyncIterator[Ticket]:
    """Have a ticket and its worker for the block."""
    with pool.enqueue(new_ticket(*args, **options)) as ticket:

        async def on_wait_estimated(waiting: Ticket) -> None:
            pool.refresh_estimates()
            if on_wait is not None:
                await on_wait(waiting)

        await ticket.wait(on_wait_estimated)
        yield ticket


def count(pool: WorkerPool, status: WorkerStatus) -> int:
    return sum(worker.status is status for worker in pool.workers.values())


def idle_count(pool: WorkerPool) -> int:
    return sum(worker.status == "idle" for worker in pool.workers.values())


def busy_count(pool: WorkerPool) -> int:
    return sum(worker.status.is_busy for worker in pool.workers.values())


def status_of(pool: WorkerPool) -> ServiceStatus:
    return service_status(pool)


def end_sessions(worker: WorkerConnection) -> None:
    """Take everything off a worker, unnoticed by the pool."""
    for ticket in list(worker.tasks):
        worker.release(ticket)


def workers_of(pool: WorkerPool) -> list[WorkerConnection]:
    return list(pool.workers.values())


def answer(
    status: WorkerStatus = WorkerStatus.IDLE,
    *,
    slots: int = 1,
    capacity: int | None = None,
    active_sessions: int | None = None,
    kv_cache_length: int = 1,
    boot_id: str | None = None,
) -> WorkerHealth:
    return WorkerHealth.model_validate(
        {
            "status": "healthy",
            "worker_status": status,
            "slots": slots,
            "capacity": capacity,
            "active_sessions": active_sessions,
            "kv_cache_length": kv_cache_length,
            "boot_id": boot_id,
        }
    )


def hear(
    worker: WorkerConnection,
    status: WorkerStatus = WorkerStatus.IDLE,
    *,
    slots: int = 1,
    capacity: int | None = None,
    active_sessions: int | None = None,
    kv_cache_length: int = 1,
    boot_id: str | None = None,
    worker_id: str | None = None,
    is_draining: bool = False,
) -> None:
    sample = answer(
        status,
        slots=slots,
        capacity=capacity,
        active_sessions=active_sessions,
        kv_cache_length=kv_cache_length,
        boot_id=boot_id,
    )
    sample = sample.model_copy(update={"is_draining": is_draining, "worker_id": worker_id})
    worker.observe(sample, worker.service.epoch)
