"""Starts, inspects and stops a complete system of real processes in a folder of its own.

The system also stops if the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Self

import httpx

from benchmarks import processes
from config import PROJECT_ROOT
from launcher.processes import bound_command

HOST = "127.0.0.1"
START_LIMIT_S = 300.0
STOP_LIMIT_S = 180.0  # limits that end hangs, far beyond what a busy machine needs
CALL_LIMIT_S = 60.0
POLL_S = 0.02  # interval of reading files
ASK_S = 0.1  # interval of requests, which cost time of every program
PORTS = range(20_000, 32_000)  # below the ephemeral ports
MARK = "LAUNCHED_IN"  # environment variable that identifies the system's processes

# Any: sections and answers are JSON.
Json = dict[str, Any]


def wait_until(
    what: str, is_true: Callable[[], object], limit_s: float, poll_s: float = POLL_S
) -> float:
    """Poll until `is_true`, and return the seconds; TimeoutError with `what` if not in time."""
    began_s = time.monotonic()
    while not is_true():
        if time.monotonic() - began_s > limit_s:
            raise TimeoutError(f"not reached in {limit_s:g} s: {what}")
        time.sleep(poll_s)
    return time.monotonic() - began_s


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    random = Random()
    while True:
        first = random.choice(PORTS)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind((HOST, port))
        except OSError:
            continue
        return first


class Device(StrEnum):
    CPU = "cpu"
    CUDA = "cuda"


@dataclass
class Plan:
    workers: int = 1
    backend: str = "fake"  # "real", by default with the toy checkpoint, or "fake"
    config: dict[str, Json] = field(default_factory=dict)  # sections over the defaults
    command: Sequence[str] = (sys.executable, "-m", "launcher")  # flags are appended
    variables: dict[str, str] = field(default_factory=dict)  # environment variables to add
    device: Device = Device.CPU  # of the workers; on the CPU they see no GPU
    start_limit_s: float = START_LIMIT_S


class LaunchedSystem:
    def __init__(self, folder: Path, plan: Plan) -> None:
        """Choose free ports and write the configuration into an existing folder."""
        self.folder = folder
        self.plan = plan
        self.data = folder / "data"
        self.port = free_ports(plan.workers + 1)
        self.start_s = 0.0  # duration of the last start
        self._mark = uuid.uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        service: Json = {
            "data_dir": str(self.data),
            "gateway_host": HOST,
            "worker_base_port": self.port + 1,
            "drain_timeout_s": 2.0,
        }
        sections = {"service": service} | plan.config
        sections["service"] = service | plan.config.get("service", {})
        sections["model"] = {"embedded": "toy"} | plan.config.get("model", {})
        self._config, self._printed = folder / "config.json", folder / "printed"
        self._config.write_text(json.dumps(sections), encoding="utf8")

    def __enter__(self) -> Self:
        """Start; SIGTERM then ends this program as Ctrl-C does, which stops the system."""
        is_main = threading.current_thread() is threading.main_thread()  # may set a handler
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *problem: object) -> None:
        try:
            self.stop()
        finally:
            self.kill()

    # --- start and stop ---

    def start(self) -> None:
        """Start, and wait until ready; TimeoutError if it is late, RuntimeError if it has ended."""
        flags = ["--http", "--workers", str(self.plan.workers), "--port", str(self.port)]
        flags += ["--config", str(self._config), "--backend", self.plan.backend]
        variables = {MARK: self._mark}
        if self.plan.device is Device.CPU:
            variables |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        with self._printed.open("ab") as output:
            process = subprocess.Popen(
                bound_command((*self.plan.command, *flags)),
                cwd=PROJECT_ROOT,
                env={**os.environ, **variables, **self.plan.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._process = process
        self.start_s = wait_until(
            f"the system is up\n{self.printed}",
            lambda: self.state.get("phase") == "ready" or process.poll() is not None,
            self.plan.start_limit_s,
        )
        if process.poll() is not None:
            raise RuntimeError(f"the launcher ended:\n{self.printed}")

    def stop(self) -> int:
        """Stop as Ctrl-C does; return the launcher's exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(STOP_LIMIT_S)

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    # --- inspection ---

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def ws(self, path: str) -> str:
        return f"ws://{HOST}:{self.port}{path}"

    def worker_url(self, index: int) -> str:
        return f"http://{HOST}:{self.port + 1 + index}"

    @property
    def printed(self) -> str:
        return self._printed.read_text(encoding="utf8")

    @property
    def state(self) -> Json:
        """The launcher's state file; empty before it exists."""
        try:
            text = (self.data / "run" / "state.json").read_text(encoding="utf8")
            state: Json = json.loads(text)
        except (OSError, ValueError):
            return {}
        return state

    @property
    def names(self) -> list[str]:
        return ["gateway", *(f"worker_{index}" for index in range(self.plan.workers))]

    def program(self, name: str) -> Json:
        found: Json = next(row for row in self.state["programs"] if row["name"] == name)
        return found

    def pid(self, name: str) -> int:
        return int(self.program(name)["pid"])

    def processes(self) -> list[int]:
        return processes.with_variable(MARK, self._mark)

    def resident_bytes(self) -> dict[str, int]:
        return {name: processes.resident_bytes(self.pid(name)) for name in self.names}

    def get(self, path: str) -> Json:
        return _get(f"{self.url}{path}")

    def worker_health(self, index: int) -> Json:
        return _get(f"{self.worker_url(index)}/health")

    @property
    def is_idle(self) -> bool:
        try:
            status = self.get("/status")
            is_free = status["idle_workers"] == self.plan.workers and not status["running_tasks"]
            if not is_free or status["queue_length"]:
                return False
            healths = [self.worker_health(index) for index in range(self.plan.workers)]
        except httpx.HTTPError:
            return False  # a program is restarting
        return all(health["worker_status"] == "idle" for health in healths)

    def wait_until_idle(self, limit_s: float) -> None:
        """Wait until the queue is empty and every worker idle; TimeoutError if not in time."""
        wait_until("all workers idle, queue empty", lambda: self.is_idle, limit_s, ASK_S)


def _get(url: str) -> Json:
    # A new connection each time, since open ones would count as sessions of the programs.
    # Without TLS there is nothing to verify, and loading certificates takes long.
    response = httpx.get(url, trust_env=False, timeout=CALL_LIMIT_S, verify=False)
    response.raise_for_status()
    answer: Json = response.json()
    return answer
