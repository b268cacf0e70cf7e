"""Starting a worker again: it finishes what it serves, ends, and its launcher starts it."""

from __future__ import annotations

from core.errors import WorkerBusyError
from gateway_modules.worker_connection import WorkerConnection
from gateway_modules.worker_pool import WorkerPool


async def restart_worker(pool: WorkerPool, worker: WorkerConnection) -> None:
    """Give a worker nothing new, and have it end and come back.

    Args:
        pool: The worker's.
        worker: Which one; sessions it serves may finish.

    Raises:
        OmniError: It cannot or does not; then it is as it was.
    """
    if worker.service.is_restarting:
        raise WorkerBusyError("It was asked to start again already.")
    worker.service.is_restarting = True
    is_asked = False
    try:
        await pool.client.restart(worker)
        is_asked = True
    finally:
        worker.service.is_restarting = is_asked
        pool.recheck(worker)
