"""What people are shown of a worker. Never changes one."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from core.schemas.worker import ModelFacts, WorkerStatus
from gateway_modules.queue.models import LoadState, WorkerCache, WorkerInfo, WorkerSession
from gateway_modules.queue.worker_connection import WorkerConnection

HASH_SHOWN_CHARS = 12  # of a history hash, to people; docs/specification/service.md#1.1
STARTING = "starting"


def worker_info(worker: WorkerConnection, now: datetime) -> WorkerInfo:
    """Describe a worker.

    Args:
        worker: Which one.
        now: The time, with its zone.
    """
    service = worker.service
    latest, (error, error_at) = service.latest, service.last_error or (None, None)
    is_known = latest is not None and worker.status is not WorkerStatus.OFFLINE
    started_at = service.started_at if is_known else None
    return WorkerInfo(
        worker_id=worker.worker_id,
        host=worker.host,
        port=worker.port,
        gpu_id=worker.gpu_id,
        status=worker.status,
        current_session_id=worker.current_session_id,
        total_requests=latest.total_requests if latest else 0,
        avg_inference_time_ms=latest.avg_inference_time_ms if latest else 0.0,
        last_heartbeat=service.last_heartbeat,
        current_request_type=worker.current_request_type,
        task_started_at=worker.task_started_at,
        cached_hash=worker.cached_hash,
        last_cache_used_at=worker.last_cache_used_at,
        slots=service.announced_slots,
        free_slots=len(worker.free_slots()),
        is_draining=worker.is_draining,
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


def worker_sessions(worker: WorkerConnection) -> list[WorkerSession]:
    """Describe what a worker serves, oldest first."""
    return [
        WorkerSession(
            session_id=task.session_id, request_type=task.request_type, started_at=task.started_at
        )
        for task in sorted(worker.tasks, key=lambda task: task.started_at)
    ]


def worker_caches(worker: WorkerConnection) -> list[WorkerCache]:
    """Describe what the caches of a worker's slots hold."""
    return [
        WorkerCache(
            worker_id=worker.worker_id,
            status=worker.status,
            cached_hash=f"{slot.cached_hash[:HASH_SHOWN_CHARS]}…" if slot.cached_hash else None,
            last_cache_used_at=slot.last_cache_used_at,
        )
        for slot in worker.slots
    ]


def load_state(worker: WorkerConnection) -> LoadState | None:
    """Say how far a worker's loading has come, None if it does not load."""
    latest = worker.service.latest
    if worker.status is not WorkerStatus.LOADING or latest is None:
        return None
    stage, progress = latest.load_stage or STARTING, latest.load_progress
    return LoadState(worker_id=worker.worker_id, stage=stage, progress=progress)


def loaded_model(workers: Iterable[WorkerConnection]) -> ModelFacts | None:
    """Return what the first worker in reach has loaded, None if none has."""
    for worker in workers:
        latest = worker.service.latest
        is_there = worker.status not in (WorkerStatus.OFFLINE, WorkerStatus.ERROR)
        if is_there and latest is not None and latest.model is not None:
            return latest.model
    return None


def first_loading(workers: Iterable[WorkerConnection]) -> LoadState | None:
    """Say how far the first worker that loads has come, None if none does."""
    return next((state for worker in workers if (state := load_state(worker))), None)
