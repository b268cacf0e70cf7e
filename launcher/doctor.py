"""Reports what this machine can run, what is missing, and how to fix it.

`collect` gathers facts about the machine, `examine` turns them into findings.
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
CHECKPOINT_GB: Final = 19  # download size of the published checkpoint
CASCADE_GB: Final = 1.0  # with space to unpack it
PACKAGES: Final = ("torch", "transformers", "onnxruntime", "av", "fastapi", "cryptography")
INSTALL: Final = (
    "pip install 'minicpmo-live[worker]'" if IS_INSTALLED else "scripts/setup.sh gateway,worker"
)
CUDA_TORCH: Final = "env -u PIP_EXTRA_INDEX_URL pip install --force-reinstall torch=={}"
GATE_PROGRAMS: Final = (
    "espeak-ng",
    "flite",
)  # speech synthesizers, for tests of the embedded model
CPU_BUILD: Final = "+cpu"  # version suffix of PyTorch builds without CUDA


class Verdict(StrEnum):
    FINE = "ok"
    ADVICE = "warning"
    MISSING = "error"


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes:
        subject: What was checked.
        state: Its state.
        fix: Command to run or setting to change; empty if none is needed.
    """

    subject: str
    verdict: Verdict
    state: str
    fix: str = ""


@dataclass(frozen=True)
class Facts:
    """Facts about a machine.

    Attributes:
        free_gb: Free space on the disk of the data folder.
        data_dir: The data folder, or its closest existing parent.
        versions: Versions of packages by name; None if not installed.
        hard_limit: Hard limit of open files; None if unlimited.
        ports: Descriptions of ports that cannot be used.
        has_pages: The bundles of the pages are up to date.
        missing_programs: Missing programs that the tests need.
        certificate_ends: Expiry of the configured certificate; None without one.
        certificate_problem: Reason why it cannot be read.
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


# --- facts ---


def collect(planner: Planner, gpus: Sequence[Gpu]) -> Facts:
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


# --- findings ---


def examine(facts: Facts, settings: Settings) -> list[Finding]:
    """Check a machine against the requirements of these settings."""
    return [
        *_packages(facts),
        *_models(facts, settings),
        *_disk(facts, settings),
        *_network(facts, settings),
    ]


def has_errors(findings: Sequence[Finding]) -> bool:
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
        fix = CUDA_TORCH.format(torch.removesuffix(CPU_BUILD))
        yield Finding("packages", Verdict.MISSING, f"torch {torch} cannot use the GPU", fix)
    else:
        yield Finding("packages", Verdict.FINE, f"Python {python}, torch {torch}")
    if not facts.has_pages:
        state = "unbundled, without charts and waveforms"
        yield Finding("pages", Verdict.ADVICE, state, "scripts/setup.sh pages")
    if facts.missing_programs:
        state = f"{', '.join(facts.missing_programs)} not installed; ./run_tests.sh --all"
        yield Finding(
            "tests", Verdict.ADVICE, f"{state} skips the gates", "scripts/find_gate_programs.sh"
        )


def _models(facts: Facts, settings: Settings) -> Iterator[Finding]:
    for gpu in facts.gpus:
        name, usual = f"GPU {gpu.index} ({gpu.name})", settings.duplex.usual_tokens
        fits = [kind for kind, saved in SAVED_GIB.items() if gpu.memory_gib >= MODEL_GIB - saved]
        cache = settings.model.cache
        counts = (f"{slots_of(gpu, usual, 1, kind, cache)} ({kind})" for kind in fits)
        state = f"{gpu.memory_gib:.0f} GiB"
        if not fits:
            least_gib = MODEL_GIB - max(SAVED_GIB.values())
            state += f"; MiniCPM-o 4.5 needs {least_gib:.0f} GiB"
            yield Finding(name, Verdict.ADVICE, state, "CUDA_VISIBLE_DEVICES= runs on the CPU")
            continue
        state += f", MiniCPM-o 4.5 with up to {', '.join(counts)} sessions"
        if settings.model.weights in fits:
            yield Finding(name, Verdict.FINE, state)
        else:
            state += f"; {settings.model.weights} does not fit"
            yield Finding(name, Verdict.MISSING, state, f"OMNI_MODEL_WEIGHTS={fits[0]}")
    if not facts.gpus:
        models = "nano" if settings.model.embedded in ("nano", "toy") else "nano and the cascade"
        state = f"{facts.cpus} CPUs, {facts.memory_gib:.0f} GiB: {models}"
        yield Finding("no GPU", Verdict.FINE, state)
    if facts.gpus and settings.model.model_path is None:
        state = "none configured, so the embedded model is used"
        yield Finding("checkpoint", Verdict.ADVICE, state, "minicpmo-live download")


def _disk(facts: Facts, settings: Settings) -> Iterator[Finding]:
    if not facts.is_writable:
        state, fix = f"{facts.data_dir} is not writable", "service.data_dir, or MINICPMO_HOME"
        yield Finding("data folder", Verdict.MISSING, state, fix)
    is_published = settings.model.model_path is not None or bool(facts.gpus)
    needed_gb = CHECKPOINT_GB if is_published else CASCADE_GB
    state = f"{facts.free_gb:.0f} GB free at {facts.data_dir}"
    if facts.free_gb < needed_gb:
        state += f"; downloads need {needed_gb:g} GB"
        yield Finding("disk", Verdict.ADVICE, state, "service.data_dir on another disk")
    else:
        yield Finding("disk", Verdict.FINE, state)


def _network(facts: Facts, settings: Settings) -> Iterator[Finding]:
    service = settings.service
    for problem in facts.ports:
        fix = "minicpmo-live serve --port PORT; workers: service.worker_base_port"
        yield Finding("ports", Verdict.MISSING, problem, fix)
    if not facts.ports:
        yield Finding(
            "ports", Verdict.FINE, f"{service.gateway_port} and the workers' ports are free"
        )
    wanted = DESCRIPTORS_RESERVED + 2 * settings.limits.max_connections * DESCRIPTORS_EACH
    if facts.hard_limit is not None and facts.hard_limit < wanted:
        state = f"{facts.hard_limit} open files; limits.max_connections needs {wanted}"
        yield Finding("file limit", Verdict.ADVICE, state, f"ulimit -Hn {wanted}")
    if not service.https:
        state = "off: browsers allow the microphone only on http://localhost"
        yield Finding("TLS", Verdict.ADVICE, state, "minicpmo-live serve --https")
    elif facts.certificate_problem:
        state = f"{service.ssl_certfile}: {facts.certificate_problem}"
        yield Finding("TLS", Verdict.MISSING, state, "service.ssl_certfile")
    elif facts.certificate_ends is None:
        yield Finding("TLS", Verdict.FINE, "self-signed certificate, generated at the first start")
    elif facts.certificate_ends < datetime.now(UTC):
        state = f"the certificate expired on {facts.certificate_ends:%Y-%m-%d}"
        yield Finding("TLS", Verdict.MISSING, state, "service.ssl_certfile")
    else:
        state = f"certificate valid until {facts.certificate_ends:%Y-%m-%d}"
        yield Finding("TLS", Verdict.FINE, state)


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print the findings, each problem followed by its fix."""
    console = console or Console()
    colors = {Verdict.FINE: "green", Verdict.ADVICE: "yellow", Verdict.MISSING: "red"}
    console.print(f"user files: {escape(str(HOME))}", soft_wrap=True)
    for finding in findings:
        mark = f"[{colors[finding.verdict]}]{finding.verdict}[/]"
        console.print(f"{mark}: {escape(f'{finding.subject}: {finding.state}')}", soft_wrap=True)
        if finding.fix:
            console.print(f"    {escape(finding.fix)}", soft_wrap=True)
