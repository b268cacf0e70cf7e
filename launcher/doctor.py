"""Reports what this machine can run, what is missing, and how to fix it."""

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
from huggingface_hub.constants import HF_HUB_CACHE
from rich.console import Console
from rich.markup import escape

from config import HOME, IS_INSTALLED, PROJECT_ROOT, Settings, SettingsError, install_command
from gateway_modules.pages import find_build
from gateway_modules.web.certificates import tls_context
from gateway_modules.web.limits import DESCRIPTORS_EACH, DESCRIPTORS_RESERVED
from launcher.machine import Gpu, PortError, check_port
from launcher.plan import COMMAND, MODEL_GIB, SAVED_GIB, Planner, slots_of
from launcher.run_folder import RunFolder
from settings.embedded import CONFIG_FILE

BYTES_PER_GB: Final = 1_000_000_000
CHECKPOINT_GB: Final = 19  # download size of the published checkpoint
DATA_GB: Final = 1.0  # the embedded models, with space to unpack them
PACKAGES: Final = ("torch", "transformers", "onnxruntime", "av", "fastapi", "cryptography")
CUDA_TORCH: Final = "env -u PIP_EXTRA_INDEX_URL pip install --force-reinstall torch=={}"
# Speech synthesizers, for tests of the embedded model.
GATE_PROGRAMS: Final = () if IS_INSTALLED else ("espeak-ng", "flite")
CPU_BUILD: Final = "+cpu"  # version suffix of PyTorch builds without CUDA


class Verdict(StrEnum):
    FINE = "ok"
    ADVICE = "warning"
    MISSING = "error"


COLORS: Final = {Verdict.FINE: "green", Verdict.ADVICE: "yellow", Verdict.MISSING: "red"}


@dataclass(frozen=True)
class Finding:
    subject: str  # what was checked
    verdict: Verdict
    state: str  # its state
    fix: str = ""  # command to run or setting to change; empty if none is needed


def examine(planner: Planner, gpus: Sequence[Gpu]) -> list[Finding]:
    return [
        *_packages(gpus),
        *_extras(planner.settings),
        *_models(gpus, planner),
        *_files(planner.settings),
        *_disk(planner.settings),
        *_ports(gpus, planner),
        *_limits(planner.settings),
        _tls(planner.settings),
    ]


def has_errors(findings: Sequence[Finding]) -> bool:
    return any(finding.verdict is Verdict.MISSING for finding in findings)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _packages(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    python = ".".join(map(str, sys.version_info[:3]))
    versions = {name: _version(name) for name in PACKAGES}
    if missing := [name for name, found in versions.items() if found is None]:
        absent = f"Python {python}; {', '.join(missing)} not installed"
        yield Finding("packages", Verdict.MISSING, absent, install_command("worker"))
        return
    torch = versions["torch"] or ""
    if gpus and torch.endswith(CPU_BUILD):
        fix = CUDA_TORCH.format(torch.removesuffix(CPU_BUILD))
        yield Finding("packages", Verdict.MISSING, f"torch {torch} cannot use the GPU", fix)
    else:
        yield Finding("packages", Verdict.FINE, f"Python {python}, torch {torch}")
    if find_build(PROJECT_ROOT) is None:
        state = "unbundled, without charts and waveforms"
        yield Finding("pages", Verdict.ADVICE, state, install_command("pages"))
    if absent := ", ".join(name for name in GATE_PROGRAMS if shutil.which(name) is None):
        state = f"{absent} not installed; ./run_tests.sh --all skips the gates"
        yield Finding("tests", Verdict.ADVICE, state, "scripts/find_gate_programs.sh")


def _extras(settings: Settings) -> Iterator[Finding]:
    needed = (
        ("webrtc.enabled", settings.webrtc.enabled, "aiortc", "webrtc"),
        ("recording.store", settings.recording.store, "obstore", "store"),
        ("telemetry.endpoint", settings.telemetry.endpoint, "opentelemetry-sdk", "telemetry"),
    )
    for key, is_set, package, extra in needed:
        if is_set and _version(package) is None:
            state = f"{package} not installed, which {key} needs"
            yield Finding("packages", Verdict.MISSING, state, install_command(extra))


def _models(gpus: Sequence[Gpu], planner: Planner) -> Iterator[Finding]:
    settings = planner.settings
    for gpu in gpus:
        name, usual = f"GPU {gpu.index} ({gpu.name})", settings.duplex.usual_tokens
        if not gpu.memory_gib:
            yield Finding(name, Verdict.FINE, "of unknown memory")
            continue
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
    path, embedded = settings.model.model_path, settings.model.embedded
    if not gpus:
        memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        served = path or ("nano and the cascade" if embedded == "auto" else embedded)
        state = f"{planner.cpu_count} CPUs, {memory_gib:.0f} GiB: {served}"
        yield Finding("no GPU", Verdict.FINE, state)
    elif path is None:
        state = "none configured, so the embedded model is used"
        yield Finding("checkpoint", Verdict.ADVICE, state, "minicpmo-live download")
    if path is not None and not _is_hub_id(path) and not _is_readable(Path(path) / CONFIG_FILE):
        state = f"{path} holds no {CONFIG_FILE} that can be read"
        yield Finding("checkpoint", Verdict.MISSING, state, "model.model_path")


def _is_hub_id(model_path: str) -> bool:
    return not Path(model_path).is_absolute()  # the settings make paths of folders absolute


def _files(settings: Settings) -> Iterator[Finding]:
    """Report unreadable files without which a program does not start."""
    model, security = settings.model, settings.security
    needed = {
        "model.pt_path": model.pt_path,
        "audio.ref_audio_path": settings.audio.ref_audio_path,
        "security.worker_ca": security.worker_ca,
        "security.worker_certfile": security.worker_certfile,
        "security.worker_keyfile": security.worker_keyfile,
    }
    for key, path in needed.items():
        if path is not None and not _is_readable(path):
            yield Finding("files", Verdict.MISSING, f"{path} cannot be read", key)


def _is_readable(path: Path) -> bool:
    try:
        with path.open("rb"):
            return True
    except OSError:
        return False


def _disk(settings: Settings) -> Iterator[Finding]:
    data_dir, path = settings.service.data_dir, settings.model.model_path
    if not os.access(_existing(data_dir), os.W_OK | os.X_OK):
        state, fix = f"{data_dir} is not writable", "service.data_dir, or MINICPMO_HOME"
        yield Finding("data folder", Verdict.MISSING, state, fix)
    yield _room(data_dir, DATA_GB, "service.data_dir on another disk")
    if path is not None and _is_hub_id(path):
        yield _room(Path(HF_HUB_CACHE), CHECKPOINT_GB, "HF_HOME on another disk")


def _room(folder: Path, needed_gb: float, fix: str) -> Finding:
    free_gb = shutil.disk_usage(_existing(folder)).free / BYTES_PER_GB
    state = f"{free_gb:.0f} GB free at {folder}"
    if free_gb >= needed_gb:
        return Finding("disk", Verdict.FINE, state)
    return Finding("disk", Verdict.ADVICE, f"{state}; downloads need {needed_gb:g} GB", fix)


def _existing(folder: Path) -> Path:
    # `Path.exists` raises where a folder may not be searched.
    return next(path for path in (folder, *folder.parents) if os.path.exists(path))


def _ports(gpus: Sequence[Gpu], planner: Planner) -> Iterator[Finding]:
    if launcher := RunFolder(planner.run_folder).launcher():
        yield Finding("ports", Verdict.FINE, f"the server is running, process {launcher.pid}")
        return
    try:
        plans = [plan for group in reversed(planner.groups(gpus)) for plan in group]
    except SettingsError as error:
        yield Finding("ports", Verdict.MISSING, str(error), "service.worker_base_port")
        return
    are_free = True
    for plan in plans:
        try:
            check_port(plan.host, plan.port)
        except PortError as error:
            fix = f"{COMMAND} --port PORT; workers: service.worker_base_port"
            yield Finding("ports", Verdict.MISSING, str(error), fix)
            are_free = False
    if are_free:
        port = planner.settings.service.gateway_port
        yield Finding("ports", Verdict.FINE, f"{port} and the other programs' ports are free")


def _limits(settings: Settings) -> Iterator[Finding]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = DESCRIPTORS_RESERVED + 2 * settings.limits.max_connections * DESCRIPTORS_EACH
    if hard != resource.RLIM_INFINITY and hard < wanted:
        state = f"{hard} open files; limits.max_connections needs {wanted}"
        yield Finding("file limit", Verdict.ADVICE, state, f"ulimit -Hn {wanted}")


def _tls(settings: Settings) -> Finding:
    path, keyfile = settings.service.ssl_certfile, settings.service.ssl_keyfile
    if not settings.service.https:
        state = "off: browsers allow the microphone only on http://localhost"
        return Finding("TLS", Verdict.ADVICE, state, f"{COMMAND} --https")
    if path is None or keyfile is None:
        state = "self-signed certificate, generated at the first start"
        return Finding("TLS", Verdict.FINE, state)
    try:
        tls_context(path, keyfile)
        ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        fix = "service.ssl_certfile and service.ssl_keyfile"
        return Finding("TLS", Verdict.MISSING, str(error), fix)
    if ends < datetime.now(UTC):
        state = f"the certificate expired on {ends:%Y-%m-%d}"
        return Finding("TLS", Verdict.MISSING, state, "service.ssl_certfile")
    return Finding("TLS", Verdict.FINE, f"certificate valid until {ends:%Y-%m-%d}")


def show(findings: Sequence[Finding], console: Console | None = None) -> None:
    console = console or Console()
    console.print(f"user files: {escape(str(HOME))}", soft_wrap=True)
    for finding in findings:
        mark = f"[{COLORS[finding.verdict]}]{finding.verdict}[/]"
        console.print(f"{mark}: {escape(f'{finding.subject}: {finding.state}')}", soft_wrap=True)
        if finding.fix:
            console.print(f"    {escape(finding.fix)}", soft_wrap=True)
