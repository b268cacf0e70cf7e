"""The desk is killed under sessions over two doors: real processes, TLS between all of them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.cluster import talk
from benchmarks.launched import free_ports, wait_until
from benchmarks.paced_client import Session
from launcher.processes import bound_command
from tests.source_tree import ROOT

pytestmark = pytest.mark.realtime
SESSIONS = int(os.environ.get("DESK_SESSIONS", "16"))
WAITING = 4
SLOTS = 50  # of a worker: what a process serves in time beside all the others
WORKERS = -(-SESSIONS // SLOTS)
HOST = "127.0.0.1"
LIMIT_S = 120.0  # ends a test that hangs
DESK, FIRST_DOOR, SECOND_DOOR, FIRST_WORKER = range(4)


class Parts:
    """The processes; each has its port by its number."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._base = free_ports(FIRST_WORKER + WORKERS)
        self._stack = stack
        self._folder = folder
        self._config = folder / "config.json"
        sections = {
            "service": {
                "data_dir": str(folder / "data"),
                "https": False,
                "gateway_host": HOST,
                "workers": [f"{HOST}:{self._base + FIRST_WORKER + n}" for n in range(WORKERS)],
                "desk": f"{HOST}:{self._base + DESK}",
                "drain_timeout_s": 0,
                "gathering_s": 2,
            },
            "security": {"worker_secret": "one for all the parts", "worker_tls": True},
            "recording": {"enabled": False},
            # All sessions come from one address.
            "limits": {
                "connections_per_client": SESSIONS + WAITING,
                "waiting_per_client": SESSIONS + WAITING,
            },
        }
        self._config.write_text(json.dumps(sections))

    def url(self, part: int) -> str:
        """Return where a door is."""
        return f"http://{HOST}:{self._base + part}"

    def start(self, part: int) -> subprocess.Popen[bytes]:
        """Start one; it is killed in the end."""
        if part >= FIRST_WORKER:
            slots = min(SLOTS, SESSIONS - (part - FIRST_WORKER) * SLOTS)  # the last has the rest
            flags = ["worker.py", "--backend", "fake", "--slots", str(slots)]
        else:
            flags = ["gateway.py", "--role", "desk" if part == DESK else "door"]
        command = [*flags, "--config", str(self._config), "--port", str(self._base + part)]
        log = self._stack.enter_context((self._folder / f"{part}.log").open("ab"))
        bound = bound_command((sys.executable, *command), signal.SIGKILL)
        process = subprocess.Popen(bound, cwd=ROOT, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def ready(self, door: int) -> bool:
        """Whether a door has a desk that has all workers."""
        try:
            answer = httpx.get(f"{self.url(door)}/health", trust_env=False, verify=False, timeout=5)
        except httpx.HTTPError:
            return False
        return bool(answer.json()["workers_ready"] == WORKERS)

    def queue(self, door: int) -> int:
        """Return how many wait, as the desk says through a door; -1 if it does not."""
        answer = httpx.get(
            f"{self.url(door)}/api/queue", trust_env=False, verify=False, timeout=LIMIT_S
        )
        return int(answer.json()["queue_length"]) if answer.status_code == httpx.codes.OK else -1


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    """A worker, a desk and two doors."""
    with ExitStack() as stack:
        yield Parts(tmp_path, stack)


@contextmanager
def held(parts: Parts, loop: asyncio.AbstractEventLoop, count: int) -> Iterator[list[Session]]:
    """Hold sessions by both doors in turn."""
    sessions = [Session() for _ in range(count)]
    doors = [parts.url(FIRST_DOOR), parts.url(SECOND_DOOR)]
    tasks = [loop.create_task(talk(session, doors[n % 2])) for n, session in enumerate(sessions)]
    try:
        yield sessions
    finally:
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


def test_no_unit_is_late_when_the_desk_is_killed(parts: Parts) -> None:
    for worker in range(WORKERS):
        parts.start(FIRST_WORKER + worker)
    desk = parts.start(DESK)
    doors = (FIRST_DOOR, SECOND_DOOR)
    for door in doors:
        parts.start(door)
    wait_until("the doors are ready", lambda: all(map(parts.ready, doors)), LIMIT_S)
    loop = asyncio.new_event_loop()

    def run_until(what: str, is_true: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.to_thread(wait_until, what, is_true, LIMIT_S)

        loop.run_until_complete(wait())

    with held(parts, loop, SESSIONS) as sessions:
        run_until(
            "all are served", lambda: all(len(session.latencies_s) > 1 for session in sessions)
        )
        with held(parts, loop, WAITING) as waiting:
            run_until("they wait", lambda: parts.queue(FIRST_DOOR) == WAITING)
            desk.send_signal(signal.SIGKILL)
            desk.wait()
            counts = [len(session.latencies_s) for session in sessions]
            began_s = time.monotonic()
            run_until("units come", lambda: time.monotonic() - began_s > 5)
            assert not any(session.problem for session in (*sessions, *waiting))
            parts.start(DESK)
            run_until("the queue is back", lambda: parts.queue(SECOND_DOOR) == WAITING)
            run_until(
                "units come",
                lambda: all(
                    len(session.latencies_s) > before + 8
                    for session, before in zip(sessions, counts, strict=True)
                ),
            )
            assert not any(session.worker_id for session in waiting), "no slot was free"
        assert not any(session.problem for session in sessions)
        assert [session.late for session in sessions] == [0] * SESSIONS
        worst_s = max(latency_s for session in sessions for latency_s in session.latencies_s)
        units = sum(len(session.latencies_s) for session in sessions)
        print(f"{SESSIONS} sessions, {units} units, slowest {worst_s:.3f} s")
    loop.close()
