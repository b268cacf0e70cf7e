"""Scales and breaks a Ray cluster on one computer: `python -m benchmarks.cluster [SCENARIO]`."""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import typer

from benchmarks.cluster_machines import Machine, Machines, machines
from benchmarks.launched import ASK_S, wait_until
from benchmarks.paced_client import INPUT_RATE_HZ, Script, Session, audio_chunk
from benchmarks.summary import Spread

PORT = 28_106
SLOTS = 8  # of each worker
LIMIT_S = 120.0
REQUEST_LIMIT_S = 5.0
LOAD_S = 20.0
MACHINE_COUNTS = (1, 2, 8)
HEAD_DOWN_S = 10.0
ID_BYTES = 8  # of a session's name
SILENCE = Script([audio_chunk(np.zeros(INPUT_RATE_HZ))], patience_s=math.inf, is_endless=True)


async def talk(session: Session, url: str) -> None:
    """Send a unit of silence per second to a gateway until cancelled, or the session ends."""
    socket_url = f"{url.replace('http', 'ws', 1)}/ws/duplex/adx_{secrets.token_hex(ID_BYTES)}"
    await session.run(socket_url, SILENCE)


class Cluster:
    """The system on simulated machines, seen through its command line and its gateway."""

    def __init__(self, made: Machines) -> None:
        self.machines = made
        self.url = ""
        self._config = made.folder / "cluster.json"
        sections = {
            "service": {
                "data_dir": str(made.folder / "data"),
                "gateway_port": PORT,
                "https": False,
                "worker_slots": SLOTS,
                "drain_timeout_s": 5,
            },
            "security": {"allowed_hosts": ["*"]},
            "recording": {"enabled": False},
            "limits": {"connections_per_client": 1_000, "waiting_per_client": 1_000},
        }
        self._config.write_text(json.dumps(sections), encoding="utf8")

    def launch(self, *flags: str) -> str:
        self.url = f"http://{self.machines.front.address}:{PORT}"
        return self.machines.launch("--config", str(self._config), "--backend", "fake", *flags)

    def scale(self, count: int) -> None:
        self.launch("--workers", str(count), "--detach")
        self.wait_for_seats(count)

    def workers(self) -> dict[str, Any]:  # Any: JSON
        """Return the workers in service by name, as the gateway lists them."""
        with suppress(httpx.HTTPError):
            response = httpx.get(f"{self.url}/workers", trust_env=False, timeout=REQUEST_LIMIT_S)
            return {
                worker["worker_id"]: worker
                for worker in response.raise_for_status().json()["workers"]
                if worker["status"] not in ("offline", "error", "loading")
            }
        return {}

    def wait_for_seats(self, count: int) -> float:
        """Wait until exactly `count` seats serve; return the time it took in seconds."""

        def are_there() -> bool:
            return sum(name.startswith("seat_") for name in self.workers()) == count

        return wait_until(f"{count} seats", are_there, LIMIT_S, ASK_S)

    def seat_processes(self) -> dict[int, Machine]:
        return {
            pid: machine for machine in self.machines.all for pid in machine.pids("ray::RaySeat")
        }

    def machine_with_seat(self) -> Machine:
        return next(iter(self.seat_processes().values()))

    def kill_seat(self) -> None:
        os.kill(next(iter(self.seat_processes())), signal.SIGKILL)

    def ports(self) -> dict[str, int]:
        """Return the port of each worker in service; each process has another one."""
        return {name: one["port"] for name, one in self.workers().items()}

    def recovery_s(self, fail: Callable[[], None]) -> float:
        """Make a part fail; return the seconds until all seats serve, one from another process."""
        before = self.ports()

        def is_renewed() -> bool:
            now = self.ports()
            return now.keys() >= before.keys() and any(now[name] != before[name] for name in before)

        fail()
        return wait_until("the seat serves again", is_renewed, LIMIT_S, ASK_S)


async def run_load(url: str, count: int, seconds: float) -> list[Session]:
    sessions = [Session() for _ in range(count)]
    tasks = [asyncio.create_task(talk(session, url)) for session in sessions]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return sessions


def summary(sessions: list[Session]) -> str:
    latencies_ms = [1000 * s for session in sessions for s in session.latencies_s]
    served = sum(bool(session.latencies_s) for session in sessions)
    if not latencies_ms:
        return f"{served} concurrent sessions"
    spread = Spread.of(latencies_ms)
    late = sum(one.late for one in sessions)
    units = sum(one.settled + one.overdue for one in sessions)
    return (
        f"{served} concurrent sessions, p50 {spread.p50:.0f} ms, p99 {spread.p99:.0f} ms, "
        f"{late} of {units} units late"
    )


def measure_scaling(made: Machines) -> None:
    """Measure joining machines, and sessions that fill all slots, at each of `MACHINE_COUNTS`."""
    made.add()
    cluster, started = Cluster(made), 0
    for count in MACHINE_COUNTS:
        begin_s = time.monotonic()
        for _ in range(count - started):  # not concurrently: they share Ray's session folder
            made.add(gpus=1)
        joined_s = time.monotonic() - begin_s
        cluster.scale(count)
        ready_s = time.monotonic() - begin_s - joined_s
        print(
            f"{count - started} more joined in {joined_s:.1f} s, seats ready {ready_s:.1f} s later"
        )
        started = count
        sessions = asyncio.run(run_load(cluster.url, count * SLOTS + 1, LOAD_S + 2 * count))
        print(f"{count} machines: {summary(sessions)}")
    cluster.launch("--stop", "--now")


def measure_failures(made: Machines) -> None:
    """Measure the recovery from a killed seat, a killed machine and a lost connection."""
    made.add()
    cluster = Cluster(made)
    first = made.add(gpus=1)
    made.add(gpus=1)
    cluster.scale(2)
    report_failure(cluster, "killed seat", cluster.kill_seat)
    made.add(gpus=1)
    report_failure(cluster, "killed machine's seat", first.kill)
    if made.bridge:
        made.add(gpus=1)
        report_failure(
            cluster, "disconnected machine's seat", cluster.machine_with_seat().disconnect
        )
    cluster.launch("--stop", "--now")


def report_failure(cluster: Cluster, what: str, fail: Callable[[], None]) -> None:
    """Make a part fail under sessions in all slots but one; print what each of them noticed."""
    before = cluster.ports()
    with running(cluster.url, 2 * SLOTS - 1) as sessions:
        begin_s = time.monotonic()
        recovery_s = cluster.recovery_s(fail)
        after = cluster.ports()
        is_lost = {name: after.get(name) != port for name, port in before.items()}
        lost = [session for session in sessions if is_lost[session.worker_id]]
        wait_until("its sessions have ended", lambda: all(one.ended_s for one in lost), LIMIT_S)
    others = [session for session in sessions if not is_lost[session.worker_id]]
    ended = sum(bool(session.problem) for session in others)
    ended_s = max(one.ended_s - begin_s for one in lost if one.ended_s is not None)
    print(f"{what} serves again after {recovery_s:.1f} s")
    print(f"its {len(lost)} sessions had ended after {ended_s:.1f} s")
    print(f"on the other machine: {summary(others)}, {ended} sessions ended")


def measure_head_failure(made: Machines) -> None:
    """Measure sessions while the head is down, and scaling after its return."""
    head = made.add(is_front=False)
    made.add(is_front=True)
    made.add(gpus=1)
    cluster = Cluster(made)
    cluster.scale(1)
    before = cluster.seat_processes().keys()
    with running(cluster.url, SLOTS) as sessions:
        head.kill()
        time.sleep(HEAD_DOWN_S)
        made.restart(head)
        made.add(gpus=1)
        cluster.scale(2)
        after = cluster.seat_processes().keys()
    ended = sum(bool(session.problem) for session in sessions)
    print(f"head down for {HEAD_DOWN_S:.0f} s: {summary(sessions)}, {ended} sessions ended")
    print(f"{len(before & after)} of {len(before)} seats kept their process, and a new one serves")
    cluster.launch("--stop", "--now")


@contextmanager
def running(url: str, count: int) -> Iterator[list[Session]]:
    """Run sessions on another thread until the block ends; they are served when it begins."""
    sessions = [Session() for _ in range(count)]
    with ThreadPoolExecutor(1) as thread, asyncio.Runner() as runner:
        loop = runner.get_loop()
        serving = thread.submit(loop.run_forever)
        tasks = [asyncio.run_coroutine_threadsafe(talk(one, url), loop) for one in sessions]
        try:
            wait_until(
                "all sessions are served",
                lambda: all(len(session.latencies_s) > 1 for session in sessions),
                LIMIT_S,
            )
            yield sessions
        finally:
            for task in tasks:
                task.cancel()
            wait_until(
                "all sessions have ended", lambda: not asyncio.all_tasks(loop), LIMIT_S, ASK_S
            )
            loop.call_soon_threadsafe(loop.stop)
            serving.result()


class Scenario(StrEnum):
    SCALING = "scaling"
    FAILURES = "failures"
    HEAD = "head"


SCENARIOS = {
    Scenario.SCALING: measure_scaling,
    Scenario.FAILURES: measure_failures,
    Scenario.HEAD: measure_head_failure,
}


def main(
    scenarios: Annotated[list[Scenario] | None, typer.Argument(show_default="all")] = None,
) -> None:
    """Measure, each scenario on a cluster of its own."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no machine outlives this program
    for scenario in scenarios or Scenario:
        with (
            tempfile.TemporaryDirectory(prefix="mc", ignore_cleanup_errors=True) as folder,
            machines(Path(folder)) as made,
        ):
            print(f"== {scenario}", flush=True)
            SCENARIOS[scenario](made)


if __name__ == "__main__":
    typer.run(main)
