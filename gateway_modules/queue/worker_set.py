"""The workers of a pool: addresses, counts, and what dispatch and estimates need of them.

Never changes a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from urllib.parse import urlsplit

from core.schemas.worker import WorkerStatus
from gateway_modules.queue.dispatch import FreeSlot
from gateway_modules.queue.eta import OVERRUN_FLOOR_S, EtaTracker, remaining_s
from gateway_modules.queue.models import CacheList, RunningTaskInfo, ServiceStatus, WorkerInfo
from gateway_modules.queue.worker_connection import WorkerConnection, utc_now
from gateway_modules.queue.worker_view import (
    first_loading,
    loaded_model,
    worker_caches,
    worker_info,
)

WORKER_BASE_PORT = 22400  # docs/specification/service.md#4.1
LOADING_ETA_S = 15.0  # how long a model takes to load; same, section 3.6


class WorkerSet:
    """Workers by name, in the order they were given."""

    def __init__(
        self, worker_addresses: Sequence[str], clock: Callable[[], datetime] = utc_now
    ) -> None:
        """Name the workers worker_0, worker_1, ...

        Args:
            worker_addresses: "host:port" of each; without a port, 22400 and its index.
            clock: Returns the time with its zone.

        Raises:
            ValueError: An address cannot be read or comes twice.
        """
        self.workers: dict[str, WorkerConnection] = {}
        self._clock = clock
        for index, address in enumerate(worker_addresses):
            host, port = split_address(address, WORKER_BASE_PORT + index)
            if any((host, port) == (known.host, known.port) for known in self.workers.values()):
                raise ValueError(f"the worker address {address} comes twice")
            name = f"worker_{index}"
            self.workers[name] = WorkerConnection(name, host, port, index, clock)

    def get_all_workers(self) -> list[WorkerInfo]:
        """Describe every worker."""
        now = self._clock()
        return [worker_info(worker, now) for worker in self.workers.values()]

    def describe(self, worker: WorkerConnection) -> WorkerInfo:
        """Describe one worker."""
        return worker_info(worker, self._clock())

    def get_caches(self) -> CacheList:
        """Describe what the workers' caches hold."""
        caches = [cache for worker in self.workers.values() for cache in worker_caches(worker)]
        return CacheList(workers=caches)

    def get_worker(self, worker_id: str) -> WorkerConnection | None:
        """Return a worker by its name."""
        return self.workers.get(worker_id)

    def is_served_beside(self, worker: WorkerConnection) -> bool:
        """Whether another worker is in service, however busy."""
        return any(other.is_in_service for other in self._beside(worker))

    def has_room_beside(self, worker: WorkerConnection) -> bool:
        """Whether another worker has a free slot now."""
        return any(other.free_slots() for other in self._beside(worker))

    def _beside(self, worker: WorkerConnection) -> list[WorkerConnection]:
        return [other for other in self.workers.values() if other is not worker]

    @property
    def idle_count(self) -> int:
        """Ready workers without a session."""
        return self._count(WorkerStatus.IDLE)

    @property
    def busy_count(self) -> int:
        """Workers with sessions, duplex included."""
        return sum(worker.is_busy for worker in self.workers.values())

    @property
    def duplex_count(self) -> int:
        """Workers in a duplex session."""
        return self._count(WorkerStatus.DUPLEX_ACTIVE) + self._count(WorkerStatus.DUPLEX_PAUSED)

    @property
    def loading_count(self) -> int:
        """Workers that load their model."""
        return self._count(WorkerStatus.LOADING)

    @property
    def error_count(self) -> int:
        """Workers that failed."""
        return self._count(WorkerStatus.ERROR)

    @property
    def offline_count(self) -> int:
        """Workers out of reach."""
        return self._count(WorkerStatus.OFFLINE)

    def _count(self, status: WorkerStatus) -> int:
        return sum(worker.status is status for worker in self.workers.values())

    @property
    def _has_tasks(self) -> bool:
        return any(worker.tasks for worker in self.workers.values())

    def _free_slots(self) -> list[FreeSlot]:
        """Every slot that may be given away now, as dispatch wants to see it."""
        free = []
        for worker in self.workers.values():
            running = len(worker.tasks)
            for slot in worker.free_slots():
                used_at = slot.last_cache_used_at
                free.append(
                    FreeSlot(
                        worker_id=worker.worker_id,
                        slot_index=worker.slots.index(slot),
                        running=running,
                        cached_hash=slot.cached_hash,
                        last_cache_used_s=used_at.timestamp() if used_at else None,
                    )
                )
        return free

    def _service_status(
        self,
        eta_tracker: EtaTracker,
        *,
        queue_length: int,
        max_queue_size: int,
        is_intake_paused: bool,
    ) -> ServiceStatus:
        """Return all counts at once, given those of the queue."""
        return ServiceStatus(
            total_workers=len(self.workers),
            idle_workers=self.idle_count,
            busy_workers=self.busy_count,
            free_slots=len(self._free_slots()),
            duplex_workers=self.duplex_count,
            loading_workers=self.loading_count,
            error_workers=self.error_count,
            offline_workers=self.offline_count,
            queue_length=queue_length,
            max_queue_size=max_queue_size,
            running_tasks=self._running_tasks(eta_tracker),
            is_intake_paused=is_intake_paused,
            model=loaded_model(self.workers.values()),
            loading=first_loading(self.workers.values()),
        )

    def _running_tasks(self, eta_tracker: EtaTracker) -> list[RunningTaskInfo]:
        now = self._clock()
        tasks = []
        for worker in self.workers.values():
            for task in worker.tasks:
                elapsed_s = max(0.0, (now - task.started_at).total_seconds())
                left_s = eta_tracker.get_eta(task.request_type) - elapsed_s
                tasks.append(
                    RunningTaskInfo(
                        worker_id=worker.worker_id,
                        request_type=task.request_type,
                        session_id=task.session_id,
                        started_at=task.started_at,
                        elapsed_s=round(elapsed_s, 1),
                        estimated_remaining_s=round(max(0.0, left_s), 1),
                    )
                )
        return tasks

    def _occupied_s(self, eta_tracker: EtaTracker) -> list[float]:
        """Time left of every slot that is occupied and will serve the queue afterwards, s."""
        now = self._clock()
        times = []
        for worker in self.workers.values():
            if worker.is_draining:
                continue
            if worker.service.status is WorkerStatus.LOADING:
                times += [LOADING_ETA_S] * worker.service.announced_slots
            elif worker.is_in_service:
                times += [
                    remaining_s(
                        eta_tracker.get_eta(task.request_type),
                        (now - task.started_at).total_seconds(),
                    )
                    for task in worker.tasks
                ]
                times += [OVERRUN_FLOOR_S] * worker.service.other_sessions
        return times


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Split "host:port", "host", "[v6]:port" or "[v6]".

    Raises:
        ValueError: It is none of these.
    """
    problem = f"not a worker address: {address!r}"
    try:
        parts = urlsplit(f"//{address}")
        port = parts.port
    except ValueError as error:
        raise ValueError(problem) from error
    has_more = parts.path or parts.query or parts.username or " " in address
    if not parts.hostname or has_more:
        raise ValueError(problem)
    return parts.hostname, port or default_port
