"""What people are shown of a worker. Never changes one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime

from core.schemas.worker import ModelFacts, WorkerStatus
from gateway_modules.queue import models
from gateway_modules.queue.scheduling import EtaTracker
from gateway_modules.queue.worker_connection import WorkerConnection

HASH_SHOWN_CHARS = 12  # of a history hash, to people; docs/specification/service.md#1.1
STARTING = "starting"


def worker_info(worker: WorkerConnection, now: datetime) -> models.WorkerInfo:
    service, oldest = worker.service, worker.oldest_task
    freshest = max(worker.slots, key=lambda slot: slot.worth)
    latest, (error, error_at) = service.latest, service.last_error or (None, None)
    is_known = latest is not None and worker.status is not WorkerStatus.OFFLINE
    started_at = service.started_at if is_known else None
    return models.WorkerInfo(
        worker_id=worker.worker_id,
        host=worker.place.host,
        port=worker.place.port,
        gpu_id=latest.gpu_id if latest else None,
        status=worker.status,
        current_session_id=oldest.session_id if oldest else None,
        total_requests=latest.total_requests if latest else 0,
        avg_inference_time_ms=latest.avg_inference_time_ms if latest else 0.0,
        last_heartbeat=service.last_heartbeat,
        current_request_type=oldest.request_type if oldest else None,
        task_started_at=oldest.started_at if oldest else None,
        cached_hash=freshest.cached_hash,
        last_cache_used_at=freshest.last_cache_used_at,
        slots=service.announced_slots,
        free_slots=worker.room,
        is_draining=worker.is_retiring,
        error=latest.error if latest else None,
        last_error=error,
        last_error_at=error_at,
        vram_used_mb=latest.vram_used_mb if latest and is_known else None,
        vram_total_mb=latest.vram_total_mb if latest and is_known else None,
        kv_cache_tokens=latest.kv_cache_length if latest and is_known else 0,
        uptime_s=max(0.0, (now - started_at).total_seconds()) if started_at else None,
        sessions=worker_sessions(worker),
        model=latest.model if latest and is_known else None,
        loading=load_state(worker),
        can_restart=bool(latest and latest.is_supervised and is_known),
        is_restarting=service.is_restarting,
    )


def worker_sessions(worker: WorkerConnection) -> list[models.WorkerSession]:
    return [
        models.WorkerSession(
            session_id=task.session_id, request_type=task.request_type, started_at=task.started_at
        )
        for task in sorted(worker.tasks, key=lambda task: task.started_at)
    ]


def caches(workers: Iterable[WorkerConnection]) -> models.CacheList:
    found = [
        models.WorkerCache(
            worker_id=worker.worker_id,
            status=worker.status,
            cached_hash=f"{slot.cached_hash[:HASH_SHOWN_CHARS]}…" if slot.cached_hash else None,
            last_cache_used_at=slot.last_cache_used_at,
        )
        for worker in workers
        for slot in worker.slots
    ]
    return models.CacheList(workers=found)


def running_tasks(
    workers: Iterable[WorkerConnection], eta_tracker: EtaTracker, now: datetime
) -> list[models.RunningTaskInfo]:
    tasks = []
    for worker in workers:
        for task in worker.tasks:
            elapsed_s = max(0.0, (now - task.started_at).total_seconds())
            left_s = eta_tracker.get_eta(task.request_type) - elapsed_s
            tasks.append(
                models.RunningTaskInfo(
                    worker_id=worker.worker_id,
                    request_type=task.request_type,
                    session_id=task.session_id,
                    started_at=task.started_at,
                    elapsed_s=round(elapsed_s, 1),
                    estimated_remaining_s=round(max(0.0, left_s), 1),
                )
            )
    return tasks


def service_status(
    workers: Collection[WorkerConnection], queue: models.QueueStatus, *, is_intake_paused: bool
) -> models.ServiceStatus:
    statuses = Counter(worker.status for worker in workers)
    return models.ServiceStatus(
        total_workers=len(workers),
        idle_workers=statuses[WorkerStatus.IDLE],
        busy_workers=sum(worker.is_busy for worker in workers),
        free_slots=sum(worker.room for worker in workers),
        duplex_workers=sum(statuses[status] for status in models.DUPLEX_STATUSES),
        loading_workers=statuses[WorkerStatus.LOADING],
        error_workers=statuses[WorkerStatus.ERROR],
        offline_workers=statuses[WorkerStatus.OFFLINE],
        queue_length=queue.queue_length,
        max_queue_size=queue.max_queue_size,
        running_tasks=queue.running_tasks,
        is_intake_paused=is_intake_paused,
        model=loaded_model(workers),
        loading=first_loading(workers),
    )


def load_state(worker: WorkerConnection) -> models.LoadState | None:
    latest = worker.service.latest
    if worker.status is not WorkerStatus.LOADING or latest is None:
        return None
    stage, progress = latest.load_stage or STARTING, latest.load_progress
    return models.LoadState(worker_id=worker.worker_id, stage=stage, progress=progress)


def loaded_model(workers: Iterable[WorkerConnection]) -> ModelFacts | None:
    """Return what the first worker in reach has loaded, None if none has."""
    for worker in workers:
        latest = worker.service.latest
        is_there = worker.status not in (WorkerStatus.OFFLINE, WorkerStatus.ERROR)
        if is_there and latest is not None and latest.model is not None:
            return latest.model
    return None


def first_loading(workers: Iterable[WorkerConnection]) -> models.LoadState | None:
    return next((state for worker in workers if (state := load_state(worker))), None)
