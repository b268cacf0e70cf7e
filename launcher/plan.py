"""Plans the programs to start: command, environment, address and files. No I/O."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType

from config import HOME, HOME_VARIABLE, IS_INSTALLED, PROJECT_ROOT, Settings
from core.files import LOGS_FOLDER
from core.schemas.limits import SLOTS_MAX
from core.schemas.worker import SUPERVISED_VARIABLE
from gateway_modules.web.certificates import GatewayTls
from launcher.machine import ORDER, VISIBLE, Gpu
from launcher.processes import BYTES_PER_MB, LogFile
from launcher.scaling import Bounds
from settings.sections import WeightsName
from settings.workers import local_address, worker_name, worker_place

COMMAND = "minicpmo-live serve" if IS_INSTALLED else "./start_all.sh"  # as shown to users
# Estimates for the full-size model.
MODEL_GIB = 24.0  # weights, graphs and activations; 21.35 GB were measured without graphs
SAVED_GIB: dict[WeightsName, float] = {"bf16": 0, "fp8": 7.0, "int4": 10.7}  # less than MODEL_GIB
LEFT_FREE = 0.1  # share of the GPU's memory, for fragmentation
SESSION_GIB = 0.35  # per session, without its KV cache: audio encoder, vocoder and speech decoder
KV_TOKEN_BYTES = {  # 2 (key, value) x 36 layers x 8 heads x 128 values
    "bf16": 576 * 128 * 2,
    "int8": 576 * (128 + 4),  # 128 codes and a scale
}
SECRET_BYTES = 16
SECRET_VARIABLE = "OMNI_SECURITY_WORKER_SECRET"


class Backend(StrEnum):
    REAL = "real"
    FAKE = "fake"


class Kind(StrEnum):
    WORKER = "worker"
    DESK = "desk"
    GATEWAY = "gateway"  # complete, or a door
    WEBRTC = "webrtc"

    @property
    def port_setting(self) -> str:
        return {
            Kind.WORKER: "service.worker_base_port",
            Kind.DESK: "service.desk",
            Kind.GATEWAY: "--port or service.gateway_port",
            Kind.WEBRTC: "webrtc.port",
        }[self]

    @property
    def has_internal_tls(self) -> bool:
        """Whether it serves TLS if `security.worker_tls` is set."""
        return self in (Kind.WORKER, Kind.DESK)


@dataclass(frozen=True)
class Programs:
    """Commands of the programs; flags, or the folder of a checkpoint, are appended."""

    worker: tuple[str, ...] = (sys.executable, str(PROJECT_ROOT / "worker.py"))
    gateway: tuple[str, ...] = (sys.executable, str(PROJECT_ROOT / "gateway.py"))
    tiny_checkpoint: tuple[str, ...] = (sys.executable, "-m", "MiniCPMO45.tiny")
    embedded_checkpoint: tuple[str, ...] = (sys.executable, "-m", "core.nano_assets")
    cascade: tuple[str, ...] = (sys.executable, "-m", "core.cascade.assets")
    webrtc: tuple[str, ...] = (sys.executable, "-m", "webrtc")


@dataclass(frozen=True)
class Options:
    """Command-line options that are not settings; None: as configured."""

    config: Path | None = None
    workers: Bounds | None = None
    backend: Backend | None = None


@dataclass(frozen=True)
class ProgramPlan:
    """One program, which listens on `host` and `port`."""

    kind: Kind
    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]  # complete environment of the process
    host: str
    port: int
    scheme: str
    log: LogFile
    pid_file: Path
    tls: GatewayTls | None = None  # of a gateway that serves HTTPS
    runs_on: str = ""  # GPU or "CPU", for display
    orphaned: signal.Signals = signal.SIGTERM  # signal sent to it when its launcher has ended

    @property
    def url(self) -> str:
        return f"{self.scheme}://{local_address(self.host, self.port)}"

    @property
    def health_url(self) -> str:
        return f"{self.url}/health"


def slots_of(
    gpu: Gpu,
    usual_tokens: int,
    sharing: int = 1,
    weights: WeightsName = "bf16",
    cache: str = "bf16",
) -> int:
    """Estimate how many sessions fit in a GPU's memory along with the full-size model.

    Sessions share one pool of KV cache pages. The worker itself measures how many sessions it
    serves in time, and admits by free pages. `usual_tokens` is the average context length of a
    session, `sharing` the number of workers on the GPU.
    """
    session_gib = SESSION_GIB + usual_tokens * KV_TOKEN_BYTES[cache] / 2**30
    usable_gib = gpu.memory_gib * (1 - LEFT_FREE) / sharing
    slots = (usable_gib - MODEL_GIB + SAVED_GIB[weights]) / session_gib
    return min(max(1, int(slots)), SLOTS_MAX)


def worker_devices(count: int, gpus: Sequence[Gpu]) -> list[Gpu | None]:
    """Return the GPU of each worker, None for the CPU; surplus workers share GPUs round-robin.

    A `count` of 0 means one worker per GPU, or one without a GPU.
    """
    if not gpus:
        return [None] * max(1, count)
    return [gpus[index % len(gpus)] for index in range(count or len(gpus))]


@dataclass(frozen=True)
class Planner:
    settings: Settings
    options: Options
    programs: Programs
    environment: Mapping[str, str]
    cpu_count: int
    # Shared by gateway and workers of this start unless one is configured. Passed in the
    # environment, which other users of the machine cannot read.
    worker_secret: str = field(default_factory=partial(secrets.token_urlsafe, SECRET_BYTES))

    @property
    def run_folder(self) -> Path:
        return self.settings.service.data_dir / "run"

    @property
    def logs(self) -> Path:
        return self.settings.service.data_dir / LOGS_FOLDER

    def log_file(self, name: str) -> LogFile:
        logging = self.settings.logging
        size_bytes = int(logging.file_max_mb * BYTES_PER_MB)
        return LogFile(self.logs / f"{name}.log", size_bytes, logging.files_kept)

    def workers(self, gpus: Sequence[Gpu]) -> list[ProgramPlan]:
        wanted = self.options.workers
        devices = worker_devices(wanted.most if wanted else self.settings.service.num_workers, gpus)
        return [self._worker(index, devices) for index in range(len(devices))]

    def groups(self, gpus: Sequence[Gpu], tls: GatewayTls | None = None) -> list[list[ProgramPlan]]:
        """Return all programs, in groups: each starts when those before it are ready.

        The first group is that of the workers; without `tls` the gateway or its doors serve HTTP.
        """
        workers, service = self.workers(gpus), self.settings.service
        if service.doors == 1:
            desk, gateways = [], [self.gateway(len(workers), tls)]
        else:
            place = worker_place(
                service.desk or f"127.0.0.1:{service.gateway_port + service.doors}"
            )
            flags = ["--role", "desk", *self._worker_list(len(workers))]
            address = (place.host, place.port)
            desk = [self._program(Kind.DESK, "desk", self.programs.gateway, flags, address)]
            flags = ["--role", "door", "--desk", local_address(*address)]
            gateways = [
                self._gateway(f"door_{index}", index, flags, tls) for index in range(service.doors)
            ]
        webrtc = [self._webrtc(gateways[0])] if self.settings.webrtc.enabled else []
        return [group for group in (workers, desk, webrtc, gateways) if group]

    def gateway(self, worker_count: int, tls: GatewayTls | None) -> ProgramPlan:
        """Return the gateway of `worker_count` local workers."""
        return self._gateway("gateway", 0, self._worker_list(worker_count), tls)

    def _worker_list(self, worker_count: int) -> list[str]:
        listed = [*self.settings.worker_addresses(worker_count), *self.settings.service.workers]
        return ["--workers", ",".join(listed)]

    def _gateway(
        self, name: str, index: int, flags: Sequence[str], tls: GatewayTls | None
    ) -> ProgramPlan:
        served, service = ["--http"], self.settings.service
        if tls:
            files = ["--ssl-certfile", str(tls.certfile), "--ssl-keyfile", str(tls.keyfile)]
            served = ["--https", *files]
        address = (service.gateway_host, service.gateway_port + index)
        plan = self._program(Kind.GATEWAY, name, self.programs.gateway, [*flags, *served], address)
        return replace(plan, scheme="https" if tls else "http", tls=tls)

    def _webrtc(self, gateway: ProgramPlan) -> ProgramPlan:
        flags = ["--gateway", gateway.url.replace("http", "ws", 1)]
        if gateway.tls:
            flags += ["--gateway-certfile", str(gateway.tls.certfile)]
        address = (self.settings.webrtc.host, self.settings.webrtc.port)
        return self._program(Kind.WEBRTC, "webrtc", self.programs.webrtc, flags, address)

    def seat(self, name: str, device: Gpu | None) -> ProgramPlan:
        """Return the worker of a seat, which has its GPU to itself."""
        return self._worker(0, [device], name)

    def _worker(
        self, index: int, devices: Sequence[Gpu | None], name: str | None = None
    ) -> ProgramPlan:
        device, sharing = devices[index], devices.count(devices[index])
        service = self.settings.service
        name = worker_name(service.worker_host, index, name)
        flags = ["--worker-index", str(index), "--name", name]
        variables = {SUPERVISED_VARIABLE: "1"}
        if device:
            # A worker sees only its own GPU, as device 0; --gpu-id is for display.
            variables |= {VISIBLE: device.visible_as, ORDER: "PCI_BUS_ID"}  # as nvidia-smi counts
            flags += ["--gpu-id", str(device.index)]
            if service.worker_slots is None:
                usual, model = self.settings.duplex.usual_tokens, self.settings.model
                slots = slots_of(device, usual, sharing, model.weights, model.cache)
                flags += ["--slots", str(slots)]
        elif "OMP_NUM_THREADS" not in self.environment:
            variables["OMP_NUM_THREADS"] = str(max(1, self.cpu_count // len(devices)))
        if self.options.backend:
            flags += ["--backend", self.options.backend.value]
        address = (service.worker_host, self.settings.worker_port(index))
        plan = self._program(Kind.WORKER, name, self.programs.worker, flags, address, variables)
        on = f"GPU {device.index} ({device.name})" if device else "CPU"
        return replace(plan, runs_on=on)

    def _program(
        self,
        kind: Kind,
        name: str,
        program: tuple[str, ...],
        flags: Sequence[str],
        address: tuple[str, int],
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> ProgramPlan:
        """Return a program that sees no GPU unless `variables` name one."""
        security, (host, port) = self.settings.security, address
        secret = {} if security.worker_secret else {SECRET_VARIABLE: self.worker_secret}
        command = (*program, "--host", host, "--port", str(port), *flags)
        if self.options.config:
            command = (*command, "--config", str(self.options.config))
        return ProgramPlan(
            kind=kind,
            name=name,
            command=command,
            environment={
                "PYTHONUNBUFFERED": "1",
                **self.environment,
                HOME_VARIABLE: str(HOME),  # a relative one means another folder there
                VISIBLE: "",
                **variables,
                **secret,
            },
            host=host,
            port=port,
            scheme="https" if kind.has_internal_tls and security.worker_tls else "http",
            log=self.log_file(name),
            pid_file=self.run_folder / f"{name}.pid",
        )
