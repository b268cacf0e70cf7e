"""Pools of workers that exist only in the gateway's mind."""

from __future__ import annotations

from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.models import EtaConfig, GatewayWorkerStatus
from gateway_modules.queue.worker_pool import WorkerConnection, WorkerPool
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
        eta_config=ETA,
        clock=clock or FakeClock(),
        max_waiting_per_client=max_waiting_per_client,
    )
    for worker in pool.workers.values():
        if slots > 1:
            hear(worker, WorkerStatus.IDLE, slots=slots)
        worker.status = GatewayWorkerStatus.IDLE
        if are_busy:
            worker.mark_busy(GatewayWorkerStatus.DUPLEX_ACTIVE, "duplex")
    return pool


def workers_of(pool: WorkerPool) -> list[WorkerConnection]:
    """Return its workers in order."""
    return list(pool.workers.values())


def answer(
    status: WorkerStatus = WorkerStatus.IDLE,
    *,
    slots: int = 1,
    capacity: int | None = None,
    active_sessions: int | None = None,
    kv_cache_length: int = 1,
    uptime_s: float | None = None,
) -> WorkerHealth:
    """Build what a worker answers about its health."""
    fields: dict[str, object] = {"uptime_s": uptime_s} if uptime_s is not None else {}
    return WorkerHealth.model_validate(
        {
            "status": "healthy",
            "worker_status": status,
            "slots": slots,
            "capacity": capacity,
            "active_sessions": active_sessions,
            "kv_cache_length": kv_cache_length,
            **fields,
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
    uptime_s: float | None = None,
    is_draining: bool = False,
) -> None:
    """Have a worker answer a poll that was sent just now."""
    sample = answer(
        status,
        slots=slots,
        capacity=capacity,
        active_sessions=active_sessions,
        kv_cache_length=kv_cache_length,
        uptime_s=uptime_s,
    )
    sample = sample.model_copy(update={"is_draining": is_draining})
    worker.observe(sample, worker.service.epoch)
