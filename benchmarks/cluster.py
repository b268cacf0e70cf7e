"""Times of a Ray cluster on one computer under failures: `python -m benchmarks.cluster`.

Workers have the fake backend, so the loading of a model is not included.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from array import array
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import typer

from benchmarks.cluster_machines import Machine, Machines, machines, wait_for
from minicpmo_live.client import AsyncClient
from minicpmo_live.errors import LiveError
from minicpmo_live.events import QueueDone, Result
from minicpmo_live.sessions import AsyncDuplex
from minicpmo_live.sound import INPUT_RATE_HZ

PORT = 28_106
PLACES = 8  # of each seat
UNIT_S = 1.0
LIMIT_S = 120.0
ASK_S = 5.0


@dataclass
class Talk:
    """One conversation with a unit per second.

    Attributes:
        seat: worker that serves it.
        units_s: response time of each unit.
        is_over: it ended early.
    """

    seat: str = ""
    units_s: list[float] = field(default_factory=list)
    is_over: bool = False
    _sent_s: float = 0.0

    @property
    def late(self) -> int:
        """Number of units answered after the next one had begun."""
        return sum(unit_s > UNIT_S for unit_s in self.units_s)

    async def hold(self, url: str) -> None:
        """Run until cancelled or until the server ends the session."""
        with suppress(LiveError):
            async with AsyncClient(url).duplex() as session:
                speaking = asyncio.create_task(self._speak(session))
                try:
                    await self._hear(session)
                finally:
                    speaking.cancel()
                    await asyncio.gather(speaking, return_exceptions=True)
        self.is_over = True

    async def _speak(self, session: AsyncDuplex) -> None:
        silence = array("f", bytes(4 * INPUT_RATE_HZ))
        while True:
            await session.send_audio(silence)  # waits until there is a place
            self._sent_s = time.monotonic()
            await asyncio.sleep(UNIT_S)

    async def _hear(self, session: AsyncDuplex) -> None:
        async for event in session:
            if isinstance(event, QueueDone):
                self.seat = event.worker_id or ""
            elif isinstance(event, Result):
                self.units_s.append(time.monotonic() - self._sent_s)


class Cluster:
    """A running system over several machines."""

    def __init__(self, made: Machines) -> None:
        self.machines = made
        self.url = ""
        self._config = made.folder / "cluster.json"
        sections = {
            "service": {
                "data_dir": str(made.folder / "data"),
                "gateway_port": PORT,
                "https": False,
                "worker_slots": PLACES,
                "drain_timeout_s": 5,
            },
            "security": {"allowed_hosts": ["*"]},
            "recording": {"enabled": False},
        }
        self._config.write_text(json.dumps(sections), encoding="utf8")

    def launch(self, *flags: str) -> str:
        """Run the launcher; return its output."""
        self.url = f"http://{self.machines.all[0].address}:{PORT}"
        return self.machines.launch("--config", str(self._config), "--backend", "fake", *flags)

    def workers(self) -> dict[str, Any]:  # Any: JSON
        """Return the workers in service by name, as reported by the gateway."""
        with suppress(httpx.HTTPError):
            answer = httpx.get(f"{self.url}/workers", trust_env=False, timeout=ASK_S)
            return {
                worker["worker_id"]: worker
                for worker in answer.raise_for_status().json()["workers"]
                if worker["status"] not in ("offline", "error", "loading")
            }
        return {}

    def wait_for_seats(self, count: int) -> float:
        """Wait until so many seats are in service; return the time in s."""

        def are_there() -> bool:
            seats = [name for name in self.workers() if name.startswith("seat_")]
            return len(seats) == count

        return wait_for(f"{count} seats", are_there, LIMIT_S)

    def seat_process(self) -> tuple[Machine, int]:
        """Return a machine with a seat, and its process."""
        for machine in self.machines.all:
            for pid in machine.pids("ray::RaySeat"):
                return machine, pid
        raise RuntimeError("no machine has a seat")

    def kill_seat(self) -> float:
        """Kill a seat; return the time until the gateway has a new process of it, in s."""
        _, pid = self.seat_process()
        before = {name: one["port"] for name, one in self.workers().items()}
        os.kill(pid, signal.SIGKILL)
        return wait_for("the seat is back", lambda: self._is_renewed(before), LIMIT_S)

    def kill_machine(self, machine: Machine) -> float:
        """Kill a machine; return the time until its seat serves elsewhere, in s."""
        before = {name: one["port"] for name, one in self.workers().items()}
        machine.kill()
        return wait_for("the seat serves elsewhere", lambda: self._is_renewed(before), LIMIT_S)

    def cut(self, machine: Machine) -> float:
        """Disconnect a machine; return the time until its seat serves elsewhere, in s."""
        before = {name: one["port"] for name, one in self.workers().items()}
        machine.cut()
        return wait_for("the seat serves elsewhere", lambda: self._is_renewed(before), LIMIT_S)

    def _is_renewed(self, before: dict[str, int]) -> bool:
        now = {name: one["port"] for name, one in self.workers().items() if one["free_slots"]}
        return now.keys() >= before.keys() and any(now[name] != before[name] for name in before)


async def talks(url: str, count: int, seconds: float) -> list[Talk]:
    """Run concurrent conversations for some seconds."""
    held = [Talk() for _ in range(count)]
    tasks = [asyncio.create_task(talk.hold(url)) for talk in held]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return held


def main() -> None:
    """Measure and print all times."""
    with (
        tempfile.TemporaryDirectory(prefix="mc", dir="/tmp") as folder,
        machines(Path(folder)) as made,
    ):
        made.add(gpus=0)
        cluster = Cluster(made)
        begin_s = time.monotonic()
        first = made.add(gpus=1)
        cluster.launch("--workers", "1", "--detach")
        print(
            f"the first seat serves after {time.monotonic() - begin_s:.1f} s, its machine included"
        )
        begin_s = time.monotonic()
        made.add(gpus=1)
        cluster.launch("--workers", "2", "--detach")
        cluster.wait_for_seats(2)
        print(f"the second seat serves after {time.monotonic() - begin_s:.1f} s, likewise")
        held = asyncio.run(talks(cluster.url, 2 * PLACES, 20.0))
        units_s = sorted(unit_s for talk in held for unit_s in talk.units_s)
        late = sum(talk.late for talk in held)
        at_once = sum(bool(talk.units_s) for talk in held)
        middle_ms = 1000 * units_s[len(units_s) // 2]
        print(f"{at_once} talks at once over 2 seats, p50 {middle_ms:.0f} ms, {late} units late")
        print(f"a killed seat serves again after {cluster.kill_seat():.1f} s")
        made.add(gpus=1)
        print(f"a killed machine's seat serves again after {cluster.kill_machine(first):.1f} s")
        if made.bridge:
            made.add(gpus=1)
            machine, _ = cluster.seat_process()
            print(f"with its cable cut it serves again after {cluster.cut(machine):.1f} s")
        cluster.launch("--stop", "--now")


if __name__ == "__main__":
    typer.run(main)
