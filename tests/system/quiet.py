"""When a system with one bystander is quiet, and how to disturb its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import httpx

from benchmarks.launched import ASK_S, wait_until
from tests.system.running import LIMIT_S, RunningSystem

WORKERS = 6  # one for the bystander, one for each phase of a protocol


def is_quiet(system: RunningSystem) -> bool:
    """Only the bystander is there and is served, and every other worker is idle."""
    status = system.get("/status")
    if status["queue_length"] or status["idle_workers"] != WORKERS - 1:
        return False
    connected = [one for one in system.get("/sessions")["sessions"] if one["session_id"]]
    if len(status["running_tasks"]) != 1 or len(connected) != 1:
        return False
    busy = {task["worker_id"] for task in status["running_tasks"]}
    others = [index for index in range(WORKERS) if f"worker_{index}" not in busy]
    healths = [system.worker_health(index) for index in others]
    return all(
        health["worker_status"] == "idle" and not health["active_sessions"] for health in healths
    )


def wait_until_quiet(system: RunningSystem, limit_s: float = LIMIT_S) -> None:
    """Wait until only the bystander is served."""

    def looks_quiet() -> bool:
        try:
            return is_quiet(system)
        except httpx.HTTPError:
            return False  # somebody is starting again

    wait_until("only the bystander is there", looks_quiet, limit_s, ASK_S)
    assert system.get("/api/queue")["items"] == []


def is_empty(system: RunningSystem) -> bool:
    return not system.get("/api/queue")["items"]


@asynccontextmanager
async def nobody_free(system: RunningSystem) -> AsyncIterator[None]:
    """Have every worker take nothing new for the block."""

    async def drain(is_draining: bool) -> None:
        for index in range(WORKERS):
            path = f"/api/admin/workers/worker_{index}"
            answer = await system.call("PUT", path, json={"draining": is_draining})
            assert answer.status_code == httpx.codes.OK

    await drain(True)
    try:
        yield
    finally:
        await drain(False)


@contextmanager
def stalled(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
