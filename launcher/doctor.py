"""Reports what this machine can run, what is missing, and the line that mends it.

`look` collects the facts, `examine` judges them.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from cryptography import x509
from rich.console import Console
from rich.markup import escape

from config import HOME, IS_INSTALLED, PROJECT_ROOT, Settings
from gateway_modules.web.limits import DESCRIPTORS_EACH, DESCRIPTORS_RESERVED
from gateway_modules.web.pages import find_build
from launcher.machine import Gpu, PortError, check_port
from launcher.plan import MODEL_GIB, SAVED_GIB, Planner, slots_of

BYTES_PER_GB: Final = 1_000_000_000
CHECKPOINT_GB: Final = 19  # the published one on the disk
CASCADE_GB: Final = 1.0  # with room to unpack it
PACKAGES: Final = ("torch", "transformers", "onnxruntime", "av", "fastapi", "cryptography")
INSTALL: Final = (
    "pip install 'minicpmo-live[worker]'" if IS_INSTALLED else "scripts/setup.sh gateway,worker"
)
CUDA_TORCH: Final = "env -u PIP_EXTRA_INDEX_URL pip install --force-reinstall torch=={}"
GATE_PROGRAMS: Final = ("espeak-ng", "flite")  # voices that speak to the embedded model in tests
CPU_BUILD: Final = "+cpu"  # how PyTorch's builds without CUDA end


class Verdict(StrEnum):
    FINE = "ok"
    ADVICE = "could be better"
    MISSING = "must be mended"


@dataclass(frozen=True)
class Finding:
    """One thing that was examined.

    Attributes:
        state: how it is, in a sentence.
        line: what mends it, to be typed or written; empty where nothing has to be.
    """

    what: str
    verdict: Verdict
    state: str
    line: str = ""


@dataclass(frozen=True)
class Facts:
    """The facts of a machine.

    Attributes:
        free_gb: on the disk of the data folder.
        data_dir: that folder, or what exists of its path.
        versions: of installed packages by name; None is missing.
        hard_limit: of open files, that a process may raise its own to; None is without limit.
        ports: problems with ports, in a sentence each.
        has_pages: the build of the pages fits their sources.
        missing_programs: what tests of the repository need.
        certificate_ends: of the configured certificate; None without one.
        certificate_problem: why it cannot be read.
    """

    gpus: Sequence[Gpu]
    cpus: int
    memory_gib: float
    free_gb: float
    data_dir: Path
    is_writable: bool
    versions: dict[str, str | None]
    hard_limit: int | None
    ports: tuple[str, ...]
    has_pages: bool
    missing_programs: tuple[str, ...] = ()
    certificate_ends: datetime | None = None
    certificate_problem: str = ""


# --- asking ---


def look(planner: Planner, gpus: Sequence[Gpu]) -> Facts:
    settings = planner.settings
    data_dir = settings.service.data_dir
    existing = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ends, problem = _certificate(settings.service.ssl_certfile)
    return Facts(
        gpus=gpus,
        cpus=os.cpu_count() or 1,
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30,
        free_gb=shutil.disk_usage(existing).free / BYTES_PER_GB,
        data_dir=data_dir,
        is_writable=os.access(existing, os.W_OK | os.X_OK),
        versions={name: _version(name) for name in PACKAGES},
        hard_limit=None if hard == resource.RLIM_INFINITY else hard,
        ports=tuple(_port_problems(planner, gpus)),
        has_pages=find_build(PROJECT_ROOT) is not None,
        missing_programs=tuple(
            name for name in GATE_PROGRAMS if not IS_INSTALLED and shutil.which(name) is None
        ),
        certificate_ends=ends,
        certificate_problem=problem,
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _port_problems(planner: Planner, gpus: Sequence[Gpu]) -> Iterator[str]:
    workers = [(plan.host, plan.port) for plan in planner.workers(gpus)]
    for host, port in [*planner.gateway_addresses, *workers]:
        try:
            check_port(host, port)
        except PortError as error:
            yield str(error)


def _certificate(path: Path | None) -> tuple[datetime | None, str]:
    if path is None:
        return None, ""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc, ""
    except (OSError, ValueError) as error:
        return None, str(error)


# --- judging ---


def examine(facts: Facts, settings: Settings) -> list[Finding]:
    """Judge a machine by what a start with these settings needs."""
    return [
        *_packages(facts),
        *_models(facts, settings),
        *_disk(facts, settings),
        *_network(facts, settings),
    ]


def must_be_mended(findings: Sequence[Finding]) -> bool:
    return any(finding.verdict is Verdict.MISSING for finding in findings)


def _packages(facts: Facts) -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    missing = [name for name, found in facts.versions.items() if found is None]
    if missing:
        absent = f"Python {python}; {', '.join(missing)} not installed"
        yield Finding("packages", Verdict.MISSING, absent, INSTALL)
        return
    torch = facts.versions.get("torch") or ""
    if facts.gpus and torch.endswith(CPU_BUILD):
        line = CUDA_TORCH.format(torch.removesuffix(CPU_BUILD))
        yield Finding("packages", Verdict.MISSING, f"torch {torch} cannot use the GPU", line)
    else:
        yield Finding("packages", Verdict.FINE, f"Python {python}, torch {torch}")
    if not facts.has_pages:
        state = "served from their sources, without charts and waveforms"
        yield Finding("pages", Verdict.ADVICE, state, "scripts/setup.sh pages")
    if facts.missing_programs:
        state = f"without {', '.join(facts.missing_programs)} the gates of ./run_tests.sh --all"
        yield Finding(
            "tests", Verdict.ADVICE, f"{state} are left out", "scripts/find_gate_programs.sh"
        )


def _models(facts: Facts, settings: Settings) -> Iterator[Finding]:
    for gpu in facts.gpus:
        name, usual = f"GPU {gpu.index} ({gpu.name})", settings.duplex.usual_tokens
        fits = [kind for kind, saved in SAVED_GIB.items() if gpu.memory_gib >= MODEL_GIB - saved]
        cache = settings.model.cache
        counts = (f"{slots_of(gpu, usual, 1, kind, cache)} in {kind}" for kind in fits)
        state = f"{gpu.memory_gib:.0f} GiB"
        if not fits:
            least_gib = MODEL_GIB - max(SAVED_GIB.values())
            state += f"; MiniCPM-o 4.5 needs {least_gib:.0f}"
            yield Finding(name, Verdict.ADVICE, state, "CUDA_VISIBLE_DEVICES= uses the processor")
            continue
        state += f" for MiniCPM-o 4.5, conversations at most: {', '.join(counts)}"
        if settings.model.weights in fits:
            yield Finding(name, Verdict.FINE, state)
        else:
            state += f"; {settings.model.weights} does not fit"
            yield Finding(name, Verdict.MISSING, state, f"OMNI_MODEL_WEIGHTS={fits[0]}")
    if not facts.gpus:
        models = "nano" if settings.model.embedded in ("nano", "toy") else "nano and the cascade"
        state = f"{facts.cpus} processors, {facts.memory_gib:.0f} GiB: {models}"
        yield Finding("no GPU", Verdict.FINE, state)
    if facts.gpus and settings.model.model_path is None:
        state = "no checkpoint is configured, so a small model answers"
        yield Finding("checkpoint", Verdict.ADVICE, state, "minicpmo-live download")


def _disk(facts: Facts, settings: Settings) -> Iterator[Finding]:
    if not facts.is_writable:
        state, line = f"{facts.data_dir} cannot be written", "service.data_dir, or MINICPMO_HOME"
        yield Finding("data folder", Verdict.MISSING, state, line)
    is_published = settings.model.model_path is not None or bool(facts.gpus)
    needed_gb = CHECKPOINT_GB if is_published else CASCADE_GB
    state = f"{facts.free_gb:.0f} GB free at {facts.data_dir}"
    if facts.free_gb < needed_gb:
        state += f"; what may be fetched takes {needed_gb:g}"
        yield Finding("disk", Verdict.ADVICE, state, "service.data_dir on another disk")
    else:
        yield Finding("disk", Verdict.FINE, state)


def _network(facts: Facts, settings: Settings) -> Iterator[Finding]:
    service = settings.service
    for problem in facts.ports:
        line = "minicpmo-live serve --port PORT; workers: service.worker_base_port"
        yield Finding("ports", Verdict.MISSING, problem, line)
    if not facts.ports:
        yield Finding("ports", Verdict.FINE, f"{service.gateway_port} and the workers' are free")
    wanted = DESCRIPTORS_RESERVED + 2 * settings.limits.max_connections * DESCRIPTORS_EACH
    if facts.hard_limit is not None and facts.hard_limit < wanted:
        state = f"at most {facts.hard_limit} open files; {wanted} for limits.max_connections"
        yield Finding("file limit", Verdict.ADVICE, state, f"ulimit -Hn {wanted}")
    if not service.https:
        state = "none: browsers give the microphone to http://localhost only"
        yield Finding("TLS", Verdict.ADVICE, state, "minicpmo-live serve --https")
    elif facts.certificate_problem:
        state = f"{service.ssl_certfile}: {facts.certificate_problem}"
        yield Finding("TLS", Verdict.MISSING, state, "service.ssl_certfile")
    elif facts.certificate_ends is None:
        yield Finding("TLS", Verdict.FINE, "a certificate of its own, made at the first start")
    elif facts.certificate_ends < datetime.now(UTC):
        state = f"the certificate has expired on {facts.certificate_ends:%Y-%m-%d}"
        yield Finding("TLS", Verdict.MISSING, state, "service.ssl_certfile")
    else:
        state = f"a certificate until {facts.certificate_ends:%Y-%m-%d}"
        yield Finding("TLS", Verdict.FINE, state)


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print the findings, and below each problem the line that mends it."""
    console = console or Console()
    colors = {Verdict.FINE: "green", Verdict.ADVICE: "yellow", Verdict.MISSING: "red"}
    console.print(f"files of your own: {escape(str(HOME))}", soft_wrap=True)
    for finding in findings:
        mark = f"[{colors[finding.verdict]}]{finding.verdict}[/]"
        console.print(f"{mark}: {escape(f'{finding.what}: {finding.state}')}", soft_wrap=True)
        if finding.line:
            console.print(f"    {escape(finding.line)}", soft_wrap=True)
