"""Seats and fronts as real processes: stand-ins for the programs, no engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.launched import free_ports
from config import Settings
from launcher.conductor import ClusterError
from launcher.plan import Backend
from launcher.posts import Cluster, Post, code_version, free_port
from launcher.run_folder import Phase
from launcher.scaling import FRONT, PostStatus
from tests.fakes.launching import SETUP
from tests.fakes.stand_in import Deeds
from tests.service.launched import LIMIT_S, eventually
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel for a signal")

SECRET = "a secret of gateway and workers"
IGNORES_TERM = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, signal, sys, time
from launcher.processes import bound_command
child = subprocess.Popen(bound_command((sys.executable, "-c", sys.argv[1]), signal.SIGKILL))
print(child.pid, flush=True)
time.sleep(600)
"""


def cluster(folder: Path, **service: object) -> Cluster:
    """What to run in a folder: no TLS, since the stand-ins have none."""
    settings = Settings.model_validate(
        {
            "service": {"data_dir": str(folder), "https": False, "drain_timeout_s": 1, **service},
            "security": {"worker_secret": SECRET},
        }
    )
    return Cluster(settings, "{}", {}, "", Backend.FAKE, code_version(), SETUP.programs)


def play(make: Callable[[], Post], act: Callable[[Post], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        post = make()
        try:
            async with asyncio.timeout(LIMIT_S):
                await act(post)
        finally:
            await post.stop()

    asyncio.run(run())


async def until(post: Post, is_so: Callable[[PostStatus], bool]) -> PostStatus:
    """Ask until it is so."""
    while True:
        if is_so(status := await post.status()):
            return status
        await asyncio.sleep(0.02)


def test_a_seat_runs_its_worker_again_when_it_dies_and_ends_it(tmp_path: Path) -> None:
    async def act(seat: Post) -> None:
        status = await until(seat, lambda one: one.phase is Phase.READY)
        assert status.address.startswith("127.0.0.1:") and status.slots == 1
        (worker,) = seat.supervisor.programs
        assert worker.child is not None
        command = " ".join(worker.plan.command)
        assert "--name seat_7" in command and "--backend fake" in command
        os.kill(worker.child.pid, signal.SIGKILL)
        await until(seat, lambda one: one.restarts == 1 and one.phase is Phase.READY)
        await seat.stop()
        assert (await seat.status()).phase is Phase.STOPPED and worker.has_ended

    play(lambda: Post(cluster(tmp_path), "seat_7", "127.0.0.1", pace=SETUP.pace), act)


def test_a_worker_that_dies_too_often_ends_the_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_DEEDS", json.dumps({"worker_0": Deeds(breaks=True).as_json()}))
    ends: list[int] = []

    async def act(seat: Post) -> None:
        await until(seat, lambda _: bool(ends))
        assert ends[0] == 1

    told, pace = cluster(tmp_path), SETUP.pace
    play(lambda: Post(told, "seat_0", "127.0.0.1", pace=pace, end=ends.append), act)


def test_other_code_runs_nothing(tmp_path: Path) -> None:
    async def act(seat: Post) -> None:
        status = await until(seat, lambda one: one.phase is Phase.FAILED)
        assert "the cluster another" in status.note and not seat.supervisor.programs

    other = replace(cluster(tmp_path), version="another")
    play(lambda: Post(other, "seat_0", "127.0.0.1", pace=SETUP.pace), act)


def test_the_configuration_reaches_the_programs_in_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SERVICE_MAX_QUEUE_SIZE", "7")  # of this machine, not the cluster's
    told = replace(
        cluster(tmp_path),
        config='{"service": {"max_queue_size": 5}}',
        variables={"OMNI_LOGGING_LEVEL": "ERROR"},
        worker_ca="a certificate",
    )
    planner = told.planner(tmp_path / "run", "10.0.0.1", 4711)
    plan = planner.seat("seat_3", None)
    assert "OMNI_SERVICE_MAX_QUEUE_SIZE" not in plan.environment
    assert plan.environment["OMNI_LOGGING_LEVEL"] == "ERROR"
    config = Path(plan.command[plan.command.index("--config") + 1])
    assert config.read_text() == told.config
    ca = Path(plan.environment["OMNI_SECURITY_WORKER_CA"])
    assert ca.read_text() == "a certificate"
    assert (plan.host, plan.port) == ("10.0.0.1", 4711)


@pytest.mark.timeout(LIMIT_S)
def test_a_front_lists_workers_at_a_real_gateway(tmp_path: Path) -> None:
    async def act(front: Post) -> None:
        await until(front, lambda one: bool(one.address))
        while True:
            if await front.list_workers(["127.0.0.1:9", "127.0.0.1:10"]) is not None:
                break
            await asyncio.sleep(0.1)
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=LIMIT_S) as client:
            url = front.supervisor.programs[0].plan.url
            seen = (await client.get(f"{url}/workers")).json()
            assert sorted(worker["port"] for worker in seen["workers"]) == [9, 10, 11, 22_400]
            assert await front.list_workers(["127.0.0.1:9", "127.0.0.1:10"]) is not None
            headers = {"X-Admin-Token": token["OMNI_SECURITY_ADMIN_TOKEN"]}
            audit = (await client.get(f"{url}/api/admin/audit", headers=headers)).json()
        assert len(audit["entries"]) == 1, "a list that did not change is not sent again"

    told = cluster(
        tmp_path,
        gateway_host="127.0.0.1",
        gateway_port=free_ports(1),
        workers=["127.0.0.1:11", "Other.invalid"],  # listed by hand; stay
    )
    token = {"OMNI_SECURITY_ADMIN_TOKEN": "a token of the administrator"}
    security = told.settings.security.model_copy(update={"insecure_admin": False})
    fields = security.model_dump() | {"admin_token": token["OMNI_SECURITY_ADMIN_TOKEN"]}
    settings = told.settings.model_copy(update={"security": type(security).model_validate(fields)})
    real = replace(
        told,
        settings=settings,
        variables=token,
        config=json.dumps({"service": {"data_dir": str(tmp_path)}}),
        programs=type(told.programs)(),
    )
    play(lambda: Post(real, FRONT, "127.0.0.1"), act)


def test_a_cluster_is_reached_at_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")  # an extra
    from launcher.ray_engine import connect

    connected: list[str] = []
    monkeypatch.setattr(ray, "init", lambda address, **_: connected.append(address))
    with socket.create_server(("::1", free_port("::1")), family=socket.AF_INET6) as head:
        address = f"[::1]:{head.getsockname()[1]}"
        connect(address)
    assert connected == [address]
    for wrong in ("::1:6379", "[::1]", "localhost"):
        with pytest.raises(ClusterError, match="Cannot connect"):
            connect(wrong)


def test_a_post_that_has_ended_meanwhile_does_not_end_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray")  # an extra
    from launcher.ray_engine import end_all

    def look_up(name: str, namespace: str) -> None:
        raise ValueError(f"there is no actor {name}")

    monkeypatch.setattr(ray, "get_actor", look_up)
    end_all(["seat_0"], LIMIT_S)


def test_a_killed_parent_takes_a_program_along_that_ignores_sigterm() -> None:
    parent = subprocess.Popen(
        (sys.executable, "-c", PARENT, IGNORES_TERM), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    lines = {parent.stdout.readline().strip(), parent.stdout.readline().strip()}
    (child,) = (int(line) for line in lines - {"up"})
    parent.kill()
    parent.wait()
    eventually("the child is gone", lambda: not is_alive(child))
    parent.stdout.close()


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be counted does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf8")
    except OSError:
        return False
    time.sleep(0.01)
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
