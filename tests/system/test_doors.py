"""Sessions through doors that the launcher started in front of its desk."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.cluster import talk
from benchmarks.launched import HOST, Plan, free_ports, wait_until
from benchmarks.paced_client import Session
from tests.system.running import LIMIT_S, RunningSystem

pytestmark = pytest.mark.matrix

DOORS = WORKERS = 2


def launched(folder: Path, *, worker_tls: bool) -> RunningSystem:
    """Two workers of two slots each behind two doors."""
    plan = Plan(
        workers=WORKERS,
        command=(sys.executable, "-m", "tests.system.hasty_launcher"),
        config={
            # The ports after the gateway's are those of a door and of the desk.
            "service": {
                "doors": DOORS,
                "worker_slots": 2,
                "worker_base_port": free_ports(WORKERS),
                "gathering_s": 1,
            },
            "security": {"worker_tls": worker_tls},
            "recording": {"enabled": False},
        },
    )
    return RunningSystem(folder / "system", plan)


@pytest.mark.parametrize("worker_tls", [False, True])
def test_sessions_through_every_door_outlive_the_desk(tmp_path: Path, worker_tls: bool) -> None:
    with launched(tmp_path, worker_tls=worker_tls) as system:
        asyncio.run(scenario(system))
        assert system.stop() == 0
        wait_until("every process ended", lambda: not system.processes(), LIMIT_S)
        for name in ("desk", "door_0", "door_1", "worker_0", "launcher"):
            assert "Traceback" not in system.log(name), name


async def scenario(system: RunningSystem) -> None:
    async def until(what: str, is_true: Callable[[], object]) -> None:
        await asyncio.to_thread(wait_until, what, is_true, LIMIT_S)

    def is_up_again(name: str) -> bool:
        row = system.program(name)
        return row["restarts"] == 1 and row["phase"] == "ready"

    doors = [f"http://{HOST}:{system.port + index}" for index in range(DOORS)]
    sessions = [Session() for _ in doors]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(talk(session, url))
            for session, url in zip(sessions, doors, strict=True)
        ]
        await until("both are served", lambda: all(session.latencies_s for session in sessions))

        os.kill(system.pid("desk"), signal.SIGKILL)
        await until("the desk is up again", lambda: is_up_again("desk"))
        counts = [len(session.latencies_s) for session in sessions]
        await until(
            "both are served still",
            lambda: all(
                len(session.latencies_s) > count
                for session, count in zip(sessions, counts, strict=True)
            ),
        )
        assert not any(session.problem for session in sessions)

        os.kill(system.pid("door_0"), signal.SIGKILL)
        await until("the door is up again", lambda: is_up_again("door_0"))
        newcomer = Session()
        tasks.append(group.create_task(talk(newcomer, doors[0])))
        await until("a new session is served there", lambda: newcomer.latencies_s)
        assert not sessions[1].problem
        for task in tasks:
            task.cancel()
