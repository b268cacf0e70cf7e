"""The processes of a cluster: a seat runs a worker, a front runs the gateway.

Independent of the engine that starts them; no session data passes through it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx

from config import PRIVATE_UMASK, PROJECT_ROOT, Settings
from gateway_modules.web.certificates import gateway_tls
from launcher.display import Display
from launcher.machine import cpu_count, find_gpus
from launcher.plan import Backend, Options, Planner, ProgramPlan, Programs
from launcher.run_folder import Phase, RunFolder
from launcher.scaling import FRONT, PostStatus
from launcher.supervisor import Pace, Supervisor
from settings.sources import ENVIRONMENT_PREFIX
from settings.workers import WorkerPlace, worker_place

PACE: Final = Pace(watch_s=1.0)  # routing and scaling depend on the reported state
ANSWER_LIMIT_S: Final = 5.0  # for the gateway on the same machine
PROGRAMS: Final = ("config.py", "gateway.py", "session_recorder.py", "worker.py")
PACKAGES: Final = "MiniCPMO45 core gateway_modules launcher recording settings webrtc".split()
VERSION_CHARS: Final = 12

log = logging.getLogger(__name__)


def code_version() -> str:
    digest = hashlib.sha256()
    paths = [PROJECT_ROOT / name for name in PROGRAMS]
    for package in PACKAGES:
        paths += sorted((PROJECT_ROOT / package).glob("**/*.py"))
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:VERSION_CHARS]


@dataclass(frozen=True)
class Cluster:
    """Configuration sent to every machine of a cluster."""

    settings: Settings
    config: str  # text of the configuration file
    variables: Mapping[str, str]  # settings from environment variables, secrets included
    # Generated CA of the workers' certificates, with its key; empty if the operator provides
    # certificates.
    worker_ca: str
    backend: Backend | None
    version: str  # version of the code
    programs: Programs = Programs()

    def planner(self, folder: Path, host: str, port: int) -> Planner:
        """Write a post's configuration; return the planner of a worker at `host` and `port`."""
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "config.json"
        config.write_text(self.config, encoding="utf8")
        service, security = self.settings.service, self.settings.security
        service = service.model_copy(update={"worker_host": host, "worker_base_port": port})
        variables = dict(self.variables)
        if self.worker_ca:
            ca = folder / "worker_ca.pem"
            ca.write_text(self.worker_ca, encoding="ascii")
            variables[f"{ENVIRONMENT_PREFIX}SECURITY_WORKER_CA"] = str(ca)
            security = security.model_copy(update={"worker_ca": ca})
        # Ray limits programs without reserved CPUs to one thread.
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(ENVIRONMENT_PREFIX) and name != "OMP_NUM_THREADS"
        }
        settings = self.settings.model_copy(update={"service": service, "security": security})
        options = Options(config, backend=self.backend)
        environment = inherited | variables
        return Planner(settings, options, self.programs, environment, cpu_count())


class Post:
    """Runs the gateway (the front) or one worker (a seat), and restarts it when it fails.

    Created inside a running event loop. If the program fails too often, this process exits, so
    that the engine tries another machine.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        host: str,
        node: str = "",
        *,
        pace: Pace = PACE,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Start the program in a task; others reach this machine, the `node`, at `host`."""
        os.umask(PRIVATE_UMASK)
        folder = cluster.settings.service.data_dir / "run" / name
        self.name, self._cluster, self._folder, self._end = name, cluster, folder, end
        self._status = PostStatus(name, Phase.STARTING, node)
        self.planner = cluster.planner(folder, host, free_port(host))
        self.supervisor = Supervisor(RunFolder(folder), Display(), pace, self.planner.settings)
        self._http: httpx.AsyncClient | None = None  # to the gateway, in a front
        self._run = asyncio.get_running_loop().create_task(self._keep())

    async def status(self) -> PostStatus:
        if not self.supervisor.programs:
            return self._status
        program = self.supervisor.programs[-1]
        if program.restarts.are_too_many:
            log.error("%s failed too often here: %s", self.name, program.note)
            self._end(1)
        host, plan = self.planner.settings.service.worker_host, program.plan
        address = WorkerPlace(host, plan.port).netloc
        return replace(
            self._status,
            phase=program.phase,
            address=address,
            url=f"{plan.scheme}://{address}",
            runs_on=plan.runs_on,
            note=program.note,
            restarts=program.restarts.total,
            sessions=program.health.sessions,
            slots=program.health.slots if program.is_ready else None,
        )

    async def list_workers(self, addresses: Sequence[str]) -> int | None:
        """Send the gateway its workers if they changed; return its queue's length if it answers."""
        if self._http is None:
            return None
        listed = self.planner.settings.service.workers
        wanted = [*addresses, *(str(worker_place(text)) for text in listed)]  # as it lists them
        try:
            known = (await self._http.get("/api/admin/workers")).raise_for_status().json()
            if known["workers"] != wanted:
                body = {"workers": wanted}
                (await self._http.put("/api/admin/workers", json=body)).raise_for_status()
            return int((await self._http.get("/status")).raise_for_status().json()["queue_length"])
        except httpx.HTTPError as error:
            log.info("the gateway does not respond: %s", error)
            return None

    async def stop(self) -> None:
        """Stop the program; its sessions may finish first."""
        self._run.cancel()
        await asyncio.gather(self._run, return_exceptions=True)
        await self.supervisor.stop()

    async def _keep(self) -> None:
        try:
            version = await asyncio.to_thread(code_version)
            if version != self._cluster.version:
                note = f"this machine has version {version}, the cluster {self._cluster.version}"
                self._status = replace(self._status, phase=Phase.FAILED, note=note)
                return
            plan = self._gateway() if self.name == FRONT else self._worker()
            pid_file = self._folder / "program.pid"
            # Its replacement may be given the same GPU and port at once.
            bound = replace(plan, orphaned=signal.SIGKILL, pid_file=pid_file)
            self.supervisor.launch([bound])
            await self.supervisor.watch([])
        except Exception:  # process boundary: the engine tries another machine
            log.exception("%s cannot run here", self.name)
            self._end(1)

    def _worker(self) -> ProgramPlan:
        gpus = find_gpus(os.environ)
        return self.planner.seat(self.name, gpus[0] if gpus else None)

    def _gateway(self) -> ProgramPlan:
        tls = gateway_tls(self.planner.settings.service)
        plan = self.planner.gateway(0, tls)
        token = self.planner.settings.security.admin_token
        self._http = httpx.AsyncClient(
            base_url=plan.url,
            headers={"X-Admin-Token": token.get_secret_value()} if token else {},
            timeout=ANSWER_LIMIT_S,
            trust_env=False,
            verify=tls.context() if tls else False,  # plain HTTP has no certificate
        )
        return plan


def free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        return int(probe.getsockname()[1])
