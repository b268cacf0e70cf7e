"""CPU time of assigning a free slot: `python -m benchmarks.dispatch`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import typer

from benchmarks.summary import MS_PER_S, Verdict, exit_unless_met, format_table, print_verdicts
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.queue.worker_pool import WorkerPool

SLOTS: Final = 58  # of a worker on an H200, by its memory
LIMITS_MS: Final = {64: 0.2, 800: 1.0}  # of a poll, by the number of workers; requirements
OCCUPIED: Final = (0.0, 0.9, 1.0)
WAITING: Final = 500  # requests when every slot is occupied
ROUNDS: Final = 50


def filled(workers: int, occupied: float) -> WorkerPool:
    pool = WorkerPool([f"worker{index}:1" for index in range(workers)], max_queue_size=2 * WAITING)
    health = WorkerHealth(status="healthy", worker_status=WorkerStatus.IDLE, slots=SLOTS)
    for worker in pool.workers.values():
        worker.observe(health, worker.service.epoch)
    held = round(SLOTS * occupied) * workers
    for _ in range(held + (WAITING if occupied == 1.0 else 0)):
        pool.enqueue(Ticket(RequestType.AUDIO_DUPLEX))
    return pool


def mean_ms(act: Callable[[], object]) -> float:
    began_s = time.process_time()
    for _ in range(ROUNDS):
        act()
    return (time.process_time() - began_s) / ROUNDS * MS_PER_S


def main() -> None:
    """Measure; exit with 1 if a limit is exceeded."""
    rows, verdicts = [], []
    for workers, limit_ms in LIMITS_MS.items():
        for occupied in OCCUPIED:
            pool = filled(workers, occupied)

            def one_session(pool: WorkerPool = pool) -> None:
                ticket = pool.enqueue(Ticket(RequestType.AUDIO_DUPLEX))
                pool.leave(ticket)

            poll_ms = mean_ms(pool._dispatch_next)
            both_ms, slots = mean_ms(one_session), f"{workers} × {SLOTS}"
            rows.append([slots, f"{occupied:.0%}", f"{poll_ms:.3f}", f"{both_ms:.3f}"])
            name = f"{slots}, {occupied:.0%} occupied"
            text = f"{poll_ms:.3f} ms a poll, at most {limit_ms:g} ms"
            verdicts.append(Verdict(name, poll_ms <= limit_ms, text))
    print(format_table(["workers", "occupied", "poll or end, ms", "begin and end, ms"], rows))
    print_verdicts(verdicts)
    exit_unless_met(verdicts)


if __name__ == "__main__":
    typer.run(main)
