"""Latency and CPU time that the gateway adds to a unit: `python -m benchmarks.relay`."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Self

import typer
from cryptography.x509 import DNSName
from websockets.asyncio.client import ClientConnection

from benchmarks import processes
from benchmarks.launched import HOST, free_ports, wait_until
from benchmarks.paced_client import prepared
from benchmarks.summary import (
    MS_PER_S,
    Spread,
    Verdict,
    exit_unless_met,
    format_table,
    print_verdicts,
    write_json,
)
from config import PROJECT_ROOT
from core.worker_tls import CA_FILE, WORKER_TLS_NAME, ensure_ca, issue

# Requirements, not measurements; both compare with the bare TCP relay of the same run.
MAX_RATIO = 1.2
MAX_TLS_CPU_MS = 0.3  # more per unit, with TLS to the worker
UP_BYTES = 85_400  # one second of float32 at 16 kHz as Base64, in its message
DOWN_BYTES = 128_100  # one second at 24 kHz
UP_LIMIT_S = 120.0  # ends a hang, far beyond what a busy machine needs
END_LIMIT_S = 10.0

DIRECT, TCP_RELAY, GATEWAY = "direct", "TCP relay", "gateway"
GATEWAY_TLS = "gateway, TLS to the worker"


@dataclass(frozen=True)
class Ports:
    worker: int
    relay: int
    gateway: int

    @classmethod
    def free(cls) -> Self:
        first = free_ports(3)
        return cls(first, first + 1, first + 2)


@dataclass(frozen=True)
class Measured:
    units_ms: dict[str, list[float]]  # round-trip time of each unit, by route
    cpu_ms: dict[str, float]  # CPU time per unit, by program

    @property
    def medians_ms(self) -> dict[str, float]:
        return {route: Spread.of(values).p50 for route, values in self.units_ms.items()}

    def added_ms(self, route: str) -> float:
        """Return the difference of medians to the direct route."""
        return self.medians_ms[route] - self.medians_ms[DIRECT]

    def verdicts(self) -> list[Verdict]:
        """Compare with the bare TCP relay of the same run, which is slowed by load as much."""
        figures = {
            "added median": (self.added_ms(GATEWAY), self.added_ms(TCP_RELAY)),
            "CPU": (self.cpu_ms[GATEWAY], self.cpu_ms[TCP_RELAY]),
        }
        verdicts = [
            Verdict(
                name,
                ours_ms <= MAX_RATIO * bare_ms,
                f"{ours_ms:.3f} ms a unit, {ours_ms / bare_ms:.2f} times the TCP relay's "
                f"{bare_ms:.3f} ms, at most {MAX_RATIO:g} times",
            )
            for name, (ours_ms, bare_ms) in figures.items()
        ]
        more_ms = self.cpu_ms[GATEWAY_TLS] - self.cpu_ms[TCP_RELAY]
        text = f"{more_ms:.3f} ms a unit more than the TCP relay, at most {MAX_TLS_CPU_MS:g} ms"
        return [*verdicts, Verdict("CPU with TLS to the worker", more_ms <= MAX_TLS_CPU_MS, text)]

    def record(self) -> dict[str, object]:
        return {
            "summary_ms": {route: Spread.of(ms) for route, ms in self.units_ms.items()},
            "added_ms": {route: self.added_ms(route) for route in self.units_ms},
            "cpu_ms_per_unit": self.cpu_ms,
            "verdicts": self.verdicts(),
            "units_ms": self.units_ms,
        }


@contextmanager
def running(name: str, command: Sequence[str], port: int, **variables: str) -> Iterator[int]:
    """Run a Python program for the block; yield its process id once it listens on `port`."""
    environment = os.environ | variables
    process = subprocess.Popen([sys.executable, *command], cwd=PROJECT_ROOT, env=environment)
    try:
        wait_until(
            f"{name} listens",
            lambda: port in processes.listening_ports() or process.poll() is not None,
            UP_LIMIT_S,
        )
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}")
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def gateway_command(folder: Path, ports: Ports, *, worker_tls: bool = False) -> list[str]:
    config = folder / "config.json"
    sections = {
        "service": {"data_dir": str(folder / "data")},
        "security": {"worker_tls": worker_tls},
        "logging": {"level": "WARNING"},
    }
    config.write_text(json.dumps(sections), encoding="utf8")
    flags = ["--host", HOST, "--port", str(ports.gateway), "--http"]
    flags += ["--workers", f"{HOST}:{ports.worker}", "--config", str(config)]
    return ["gateway.py", *flags]


async def one_unit_s(socket: ClientConnection, chunk: str) -> float:
    began_s = time.perf_counter()
    await socket.send(chunk)
    await socket.recv(decode=False)
    return time.perf_counter() - began_s


def chunk_of(size_bytes: int) -> str:
    empty = json.dumps({"type": "audio_chunk", "audio": ""})
    noise = base64.b64encode(Random(0).randbytes(size_bytes)).decode()
    return json.dumps({"type": "audio_chunk", "audio": noise[: size_bytes - len(empty)]})


async def measure(
    routes: dict[str, str], pids: dict[str, int], *, units: int, warm_up: int, up_bytes: int
) -> Measured:
    """Send units over every route by name and URL; measure the CPU time of the programs."""
    chunk = chunk_of(up_bytes)
    units_ms: dict[str, list[float]] = {route: [] for route in routes}
    cpu_s: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        sockets = {}
        for route, url in routes.items():
            session = prepared(url, is_queued=route in (GATEWAY, GATEWAY_TLS))
            sockets[route] = await stack.enter_async_context(session)
        order = list(routes)
        for index in range(warm_up + units):
            if index == warm_up:
                cpu_s = {name: processes.cpu_s(pid) for name, pid in pids.items()}
            order.append(order.pop(0))
            for route in order:
                took_s = await one_unit_s(sockets[route], chunk)
                if index >= warm_up:
                    units_ms[route].append(took_s * MS_PER_S)
        used = {name: processes.cpu_s(pid) - cpu_s[name] for name, pid in pids.items()}
    return Measured(units_ms, {name: used[name] * MS_PER_S / units for name in used})


def start_programs(
    stack: ExitStack, folder: Path, down_bytes: int, *, has_tls: bool
) -> tuple[Ports, int]:
    """Start a worker and its gateway; return their ports and the gateway's process."""
    ports, certificate = Ports.free(), folder / "worker.pem"
    worker = ["-m", "benchmarks.stand_in_worker", str(ports.worker), str(down_bytes)]
    if has_tls:
        ca_file = ensure_ca(folder / "data" / CA_FILE)
        certificate.write_bytes(issue(ca_file, [DNSName(WORKER_TLS_NAME)]))
        worker.append(str(certificate))
    stack.enter_context(running("the worker", worker, ports.worker))
    command = gateway_command(folder, ports, worker_tls=has_tls)
    return ports, stack.enter_context(running("the gateway", command, ports.gateway))


def main(
    units: Annotated[int, typer.Option(min=10, help="Measured units per route.")] = 2_000,
    warm_up: Annotated[int, typer.Option(min=0, help="Units before measuring.")] = 300,
    up_bytes: Annotated[
        int, typer.Option(min=1_100, help="Size of a message to the worker.")
    ] = UP_BYTES,
    down_bytes: Annotated[
        int, typer.Option(min=200, help="Size of a message to the client.")
    ] = DOWN_BYTES,
    json_path: Annotated[Path | None, typer.Option("--json", help="File for all results.")] = None,
) -> None:
    """Measure the gateway's overhead; exit with 1 if it exceeds the limit."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pids: dict[str, int] = {}
        ports, pids[GATEWAY] = start_programs(stack, folder, down_bytes, has_tls=False)
        relay = ["-m", "benchmarks.tcp_relay", str(ports.relay), str(ports.worker)]
        pids[TCP_RELAY] = stack.enter_context(running("the relay", relay, ports.relay))
        tls = start_programs(stack, folder / "tls", down_bytes, has_tls=True)
        tls_ports, pids[GATEWAY_TLS] = tls
        routes = {
            DIRECT: f"ws://{HOST}:{ports.worker}/ws/duplex?session_id=adx_direct",
            TCP_RELAY: f"ws://{HOST}:{ports.relay}/ws/duplex?session_id=adx_relayed",
            GATEWAY: f"ws://{HOST}:{ports.gateway}/ws/duplex/adx_gateway",
            GATEWAY_TLS: f"ws://{HOST}:{tls_ports.gateway}/ws/duplex/adx_gateway",
        }
        run = measure(routes, pids, units=units, warm_up=warm_up, up_bytes=up_bytes)
        measured = asyncio.run(run)
    rows = []
    for route, values in measured.units_ms.items():
        spread, cpu_ms = Spread.of(values), measured.cpu_ms.get(route)
        numbers = (spread.p50, spread.p95, spread.max, measured.added_ms(route))
        cells = [f"{number:.3f}" for number in numbers]
        rows.append([route, *cells, "" if cpu_ms is None else f"{cpu_ms:.3f}"])
    print(format_table(["ms a unit", "p50", "p95", "max", "added p50", "CPU"], rows))
    print_verdicts(measured.verdicts())
    options = {"units": units, "warm_up": warm_up, "up": up_bytes, "down": down_bytes}
    host = processes.describe_host("websockets", "uvicorn", "starlette")
    write_json(json_path, {"options": options, "machine": host, **measured.record()})
    exit_unless_met(measured.verdicts())


if __name__ == "__main__":
    typer.run(main)
