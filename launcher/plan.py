"""What is to be started: every program with its command, environment, ports and files. Pure."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

from config import PROJECT_ROOT, Settings
from core.schemas.limits import SLOTS_MAX
from core.schemas.worker import SUPERVISED_VARIABLE
from launcher.gpus import VISIBLE, Gpu
from launcher.logs import BYTES_PER_MB, LogFile
from launcher.restarts import RestartPolicy
from settings.embedded import EMBEDDED_FOLDER, TOY_FOLDER

EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
# Ours: allowances for the full-size model.
MODEL_GIB = 24.0  # weights, graphs and what a pass needs; 21.35 GB were measured without graphs
SESSION_GIB = 0.875  # of one conversation beside its text: speech, hearing and its own voice
KV_TOKEN_BYTES = 147_456  # keys and values: 2 x 36 layers x 8 heads x 128 values x 2 bytes
SECRET_BYTES = 16
SECRET_VARIABLE = "OMNI_SECURITY_WORKER_SECRET"
WORKER_PROGRAM = "worker.py"
GATEWAY_PROGRAM = "gateway.py"


class Backend(StrEnum):
    """What stands behind the workers."""

    REAL = "real"
    FAKE = "fake"


@dataclass(frozen=True)
class Programs:
    """The commands everything is started with; flags are appended.

    Attributes:
        worker, gateway: the programs.
        tiny_checkpoint: makes a toy checkpoint in the folder it is given.
        embedded_checkpoint: assembles the embedded one there.
    """

    worker: tuple[str, ...] = (sys.executable, str(PROJECT_ROOT / WORKER_PROGRAM))
    gateway: tuple[str, ...] = (sys.executable, str(PROJECT_ROOT / GATEWAY_PROGRAM))
    tiny_checkpoint: tuple[str, ...] = (sys.executable, "-m", "MiniCPMO45.tiny")
    embedded_checkpoint: tuple[str, ...] = (sys.executable, "-m", "core.nano_assets")


@dataclass(frozen=True)
class Pace:
    """How often and how long; all in seconds unless the name says otherwise.

    Attributes:
        poll_s: between looks at whether a program still runs.
        ask_s: between questions to a program that is starting.
        watch_s: between questions to one that runs.
        answer_limit_s: longest wait for an answer.
        misses_allowed: questions in a row a running program may leave unanswered.
        ready_limit_s: longest wait for the gateway to find the workers.
        end_margin_s: how long a program gets to end beyond its draining.
        restarts: how patient to be with one that dies.
    """

    poll_s: float = 0.1
    ask_s: float = 0.5
    watch_s: float = 5.0
    answer_limit_s: float = 5.0
    misses_allowed: int = 6
    ready_limit_s: float = 60.0
    end_margin_s: float = 10.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


@dataclass(frozen=True)
class Options:
    """What the command line says beyond the settings.

    Attributes:
        config: file the settings came from, if named.
        workers: how many; None: as configured.
        backend: what stands behind them; None: the workers' default.
    """

    config: Path | None = None
    workers: int | None = None
    backend: Backend | None = None


@dataclass(frozen=True)
class Places:
    """Where the launcher keeps its files, below the data folder."""

    data: Path

    @property
    def run(self) -> Path:
        """Process ids, the lock and the state."""
        return self.data / "run"

    @property
    def logs(self) -> Path:
        """What programs print."""
        return self.data / "logs"

    @property
    def certificates(self) -> Path:
        """The gateway's own certificate and key."""
        return self.data / "certs"

    @property
    def tiny_checkpoint(self) -> Path:
        """The toy checkpoint."""
        return self.data / TOY_FOLDER

    @property
    def embedded_checkpoint(self) -> Path:
        """The embedded checkpoint, assembled."""
        return self.data / EMBEDDED_FOLDER


@dataclass(frozen=True)
class ProgramPlan:
    """One program.

    Attributes:
        name: "gateway", or "worker_0" and so on.
        command: program and arguments.
        environment: all variables it gets.
        host, port: it listens on.
        scheme: "http" or "https".
        log: what it prints goes there.
        pid_file: its process id.
        runs_on: for a person to read: a GPU or "CPU".
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    host: str
    port: int
    scheme: str
    log: LogFile
    pid_file: Path
    runs_on: str = ""

    @property
    def health_url(self) -> str:
        """Where it says how it is."""
        return f"{self.scheme}://{url_host(self.host)}:{self.port}/health"


def url_host(host: str) -> str:
    """Return how to reach, from this machine and in a URL, what listens on `host`."""
    reached = EVERY_ADDRESS.get(host, host)
    return f"[{reached}]" if ":" in reached else reached


def slots_of(gpu: Gpu, max_kv_tokens: int, sharing: int = 1) -> int:
    """Return how many conversations the memory of a GPU holds beside the full-size model.

    How many of them it serves in time the worker finds out by itself.

    Args:
        gpu: the GPU.
        max_kv_tokens: longest context of a conversation.
        sharing: workers on it.
    """
    session_gib = SESSION_GIB + max_kv_tokens * KV_TOKEN_BYTES / 2**30
    room = (gpu.memory_gib / sharing - MODEL_GIB) / session_gib
    return min(max(1, int(room)), SLOTS_MAX)


def worker_devices(count: int, gpus: Sequence[Gpu]) -> list[Gpu | None]:
    """Return the GPU of each worker; None is the CPU.

    Args:
        count: of workers; 0 is one per GPU, and one on a machine without.
        gpus: that may be used; workers beyond them share, in turn.
    """
    if not gpus:
        return [None] * max(1, count)
    return [gpus[index % len(gpus)] for index in range(count or len(gpus))]


@dataclass(frozen=True)
class Planner:
    """Turns settings and options into programs.

    Attributes:
        worker_secret: shared by the workers and the gateway of this start, unless one is
            configured; in their environment, where other users of the machine cannot read it.
    """

    settings: Settings
    options: Options
    programs: Programs
    environment: Mapping[str, str]
    cpu_count: int
    worker_secret: str = field(default_factory=partial(secrets.token_urlsafe, SECRET_BYTES))

    @property
    def places(self) -> Places:
        """Where files go."""
        return Places(self.settings.service.data_dir)

    def log_file(self, name: str) -> LogFile:
        """Return the log of a program."""
        size_bytes = int(self.settings.logging.file_max_mb * BYTES_PER_MB)
        path = self.places.logs / f"{name}.log"
        return LogFile(path, size_bytes, self.settings.logging.files_kept)

    def worker_count(self) -> int:
        """Return how many workers were asked for; 0 leaves it to the machine."""
        asked = self.options.workers
        return self.settings.service.num_workers if asked is None else asked

    def workers(self, gpus: Sequence[Gpu], checkpoint: str | None) -> list[ProgramPlan]:
        """Return the workers.

        Args:
            gpus: that may be used.
            checkpoint: folder or hub id; None leaves it to the configuration.
        """
        devices = worker_devices(self.worker_count(), gpus)
        threads = max(1, self.cpu_count // len(devices))
        return [
            self._worker(index, device, checkpoint, threads, devices.count(device))
            for index, device in enumerate(devices)
        ]

    def gateway(
        self, worker_count: int, certfile: Path | None, keyfile: Path | None
    ) -> ProgramPlan:
        """Return the gateway.

        Args:
            worker_count: workers of this machine.
            certfile: for TLS; None is plain HTTP.
            keyfile: of the certificate.
        """
        service = self.settings.service
        flags = ["--host", service.gateway_host, "--port", str(service.gateway_port)]
        flags += ["--workers", ",".join(self.settings.worker_addresses(worker_count))]
        if certfile and keyfile:
            flags += ["--https", "--ssl-certfile", str(certfile), "--ssl-keyfile", str(keyfile)]
        else:
            flags += ["--http"]
        return self._program(
            "gateway",
            (*self.programs.gateway, *flags, *self._config_flag()),
            {VISIBLE: ""},  # it knows no tensors
            (service.gateway_host, service.gateway_port),
            "https" if certfile else "http",
        )

    def _worker(
        self, index: int, device: Gpu | None, checkpoint: str | None, threads: int, sharing: int
    ) -> ProgramPlan:
        service = self.settings.service
        port = self.settings.worker_port(index)
        flags = ["--host", service.worker_host, "--port", str(port), "--worker-index", str(index)]
        # A worker sees its own GPU only, as the first; the number is for people.
        visible = device.visible_as if device else ""
        variables = {VISIBLE: visible, SUPERVISED_VARIABLE: "1"}
        if device:
            flags += ["--gpu-id", str(device.index)]
            if service.worker_slots is None:
                slots = slots_of(device, self.settings.duplex.max_kv_tokens, sharing)
                flags += ["--slots", str(slots)]
        elif "OMP_NUM_THREADS" not in self.environment:
            variables["OMP_NUM_THREADS"] = str(threads)
        if checkpoint:
            flags += ["--model-path", checkpoint]
        if self.options.backend:
            flags += ["--backend", self.options.backend.value]
        return self._program(
            f"worker_{index}",
            (*self.programs.worker, *flags, *self._config_flag()),
            variables,
            (service.worker_host, port),
            "http",
            f"GPU {device.index} ({device.name})" if device else "CPU",
        )

    def _program(
        self,
        name: str,
        command: tuple[str, ...],
        variables: Mapping[str, str],
        address: tuple[str, int],
        scheme: str,
        runs_on: str = "",
    ) -> ProgramPlan:
        if self.settings.security.worker_secret is None:
            variables = {**variables, SECRET_VARIABLE: self.worker_secret}
        return ProgramPlan(
            name=name,
            command=command,
            environment={"PYTHONUNBUFFERED": "1", **self.environment, **variables},
            host=address[0],
            port=address[1],
            scheme=scheme,
            log=self.log_file(name),
            pid_file=self.places.run / f"{name}.pid",
            runs_on=runs_on,
        )

    def _config_flag(self) -> tuple[str, ...]:
        return ("--config", str(self.options.config)) if self.options.config else ()
