"""Reports of `minicpmo-live doctor` for many kinds of machines."""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from config import Settings
from gateway_modules.web.certificates import ensure_certificate
from launcher import doctor
from launcher.doctor import Finding, Verdict, examine, has_errors, show
from launcher.machine import Gpu, PortError
from launcher.plan import Options, Planner, Programs, slots_of
from launcher.run_folder import RunFolder

BIG, MIDDLE, SMALL = (Gpu(0, "0", "Card A", size_gib) for size_gib in (80.0, 16.0, 12.0))
SECTIONS: dict[str, Any] = {"service": {"https": True, "data_dir": "/data"}}
GIB = 2**30


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a machine without a card on which nothing is missing."""
    change(monkeypatch, versions={"torch": "2.13.0"}, free_gb=100.0, missing_programs=())
    change(monkeypatch, is_writable=True, hard_limit=resource.RLIM_INFINITY, has_pages=True)
    change(monkeypatch, ports_in_use=())
    pages = {"SC_PAGE_SIZE": 4_096, "SC_PHYS_PAGES": 8 * GIB // 4_096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)


def change(patch: pytest.MonkeyPatch, **facts: Any) -> None:
    """Change what is found on the machine. Any: each fact has its own type."""
    for name, value in facts.items():
        match name:
            case "versions":
                patch.setattr(doctor, "_version", lambda name, value=value: value.get(name, "1"))
            case "free_gb":
                usage = SimpleNamespace(free=value * 10**9)
                patch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
            case "missing_programs":
                patch.setattr(shutil, "which", lambda n, value=value: None if n in value else n)
            case "is_writable":
                patch.setattr(os, "access", lambda path, mode, value=value: value)
            case "hard_limit":
                patch.setattr(resource, "getrlimit", lambda _, value=value: (value, value))
            case "has_pages":
                patch.setattr(doctor, "find_build", lambda _, value=value: value or None)
            case "ports_in_use":

                def check_port(host: str, port: int, value: Any = value) -> None:
                    if port in value:
                        raise PortError(f"port {port} is in use")

                patch.setattr(doctor, "check_port", check_port)


def found_on(gpus: Sequence[Gpu], sections: Mapping[str, object] = SECTIONS) -> list[Finding]:
    settings = Settings.model_validate(sections)
    return examine(Planner(settings, Options(), Programs(), {}, 2), gpus)


def verdicts(gpus: Sequence[Gpu] = (), sections: Mapping[str, object] = SECTIONS) -> list[str]:
    """Warnings and errors, one line each: verdict, subject, state and fix."""
    return [
        f"{found.verdict}: {found.subject}: {found.state} | {found.fix}"
        for found in found_on(gpus, sections)
        if found.verdict is not Verdict.FINE
    ]


def test_a_small_machine_without_a_card_is_fine() -> None:
    assert verdicts() == []
    found = {each.subject: each.state for each in found_on([])}
    assert found["no GPU"] == "2 CPUs, 8 GiB: nano and the cascade"


def test_folders_that_may_not_be_searched_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("stat", "open"):  # root may search anything
        monkeypatch.setattr(Path, name, refuse)
    change(monkeypatch, is_writable=False)
    found = "\n".join(verdicts(sections=SECTIONS | {"model": {"model_path": "/secret/model"}}))
    assert "/secret/model holds no config.json that can be read" in found
    assert "/data is not writable" in found


def test_capacity_of_a_gpu_equals_the_launchers_slots() -> None:
    found = {each.subject: each.state for each in found_on([BIG])}
    usual = Settings.model_validate(SECTIONS).duplex.usual_tokens
    assert found["GPU 0 (Card A)"] == (
        f"80 GiB, MiniCPM-o 4.5 with up to {slots_of(BIG, usual)} (bf16), "
        f"{slots_of(BIG, usual, weights='fp8')} (fp8), "
        f"{slots_of(BIG, usual, weights='int4')} (int4) sessions"
    )


def test_a_gpu_of_unknown_memory_is_not_said_to_be_too_small() -> None:
    found = {each.subject: each for each in found_on([Gpu(0, "MIG-1", "MIG slice", 0.0)])}
    slice_of_a_gpu = found["GPU 0 (MIG slice)"]
    assert (slice_of_a_gpu.verdict, slice_of_a_gpu.state) == (Verdict.FINE, "of unknown memory")


MODEL = {"model": {"model_path": "openbmb/MiniCPM-o-4_5"}}


@pytest.mark.parametrize(
    ("changed", "gpus", "sections", "expected", "is_fatal"),
    [
        (
            {"versions": {"torch": None, "av": None}},
            [],
            {},
            r"torch, av not installed \| .+",
            True,
        ),
        (
            {"versions": {"torch": "2.13.0+cpu"}},
            [BIG],
            MODEL,
            r"cannot use the GPU \| .*torch==2.13.0$",
            True,
        ),
        ({}, [SMALL], MODEL, "needs 13 GiB.*VISIBLE", False),
        (
            {},
            [MIDDLE],
            MODEL,
            r"up to \d+ \(int4\) sessions; bf16 does not fit \| OMNI_MODEL_WEIGHTS=int4",
            True,
        ),
        ({}, [BIG], {}, "checkpoint: none configured.*minicpmo-live download", False),
        ({}, [], {"model": {"pt_path": "/no/pt"}}, r"/no/pt cannot be read \| model.pt_path", True),
        (
            {},
            [],
            {"audio": {"ref_audio_path": "/no/wav"}},
            r"/no/wav cannot be read \| audio.ref_audio_path",
            True,
        ),
        (
            {},
            [],
            {"security": {"worker_tls": True, "worker_ca": "/no/ca.pem"}},
            r"/no/ca.pem cannot be read \| security.worker_ca",
            True,
        ),
        ({"has_pages": False}, [], {}, r"pages: .*\| scripts/setup.sh pages", False),
        (
            {"missing_programs": ("flite",)},
            [],
            {},
            r"tests: flite not installed.*find_gate_programs",
            False,
        ),
        ({"free_gb": 0.4}, [], {}, "0 GB free at /data; .* need 1 GB.*data_dir", False),
        ({"free_gb": 9.0}, [], MODEL, "need 19 GB", False),
        ({"is_writable": False}, [], {}, "/data is not writable", True),
        ({}, [], {"model": {"model_path": "/no/such"}}, "checkpoint: /no/such holds no", True),
        (
            {"versions": {"torch": "2.13.0", "aiortc": None}},
            [],
            {"webrtc": {"enabled": True}},
            r"aiortc not installed, which webrtc.enabled needs \| scripts/setup.sh webrtc",
            True,
        ),
        (
            {"ports_in_use": (22_390,)},
            [],
            {"webrtc": {"enabled": True}},
            "22390 is in use",
            True,
        ),
        (
            {},
            [],
            {"service": {**SECTIONS["service"], "worker_base_port": 65_535, "num_workers": 2}},
            "worker 1 would need port 65536",
            True,
        ),
        ({"ports_in_use": (8_006,)}, [], {}, "8006 is in use .*--port", True),
        ({"hard_limit": 4_096}, [], {}, r"4096 open files; .* \| ulimit -Hn \d+", False),
        ({}, [], {"service": {"https": False}}, "TLS: off: .*--https", False),
    ],
)
def test_a_problem_is_reported_with_its_fix(
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    gpus: Sequence[Gpu],
    sections: dict[str, object],
    expected: str,
    is_fatal: bool,
) -> None:
    change(monkeypatch, **changed)
    sections = {**SECTIONS, **sections}
    (found,) = verdicts(gpus, sections)
    assert re.search(expected, found), found
    assert has_errors(found_on(gpus, sections)) is is_fatal


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ({"embedded": "nano"}, "nano"),
        ({"embedded": "toy"}, "toy"),
        (MODEL["model"], "openbmb/MiniCPM-o-4_5"),
    ],
)
def test_a_machine_without_a_card_is_told_which_model_it_serves(
    model: dict[str, str], served: str
) -> None:
    found = {each.subject: each.state for each in found_on([], {**SECTIONS, "model": model})}
    assert found["no GPU"] == f"2 CPUs, 8 GiB: {served}"


def test_ports_of_the_running_server_are_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    change(monkeypatch, ports_in_use=(8_006,))
    sections = {"service": {"data_dir": str(tmp_path)}}
    with RunFolder(tmp_path / "run").held():
        assert verdicts(sections=sections) == []
    assert len(verdicts(sections=sections)) == 1


def test_lines_are_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, is_writable=False)
    output = io.StringIO()
    show(found_on([]), Console(file=output, width=20))
    assert "error: data folder: /data is not writable\n    service.data_dir" in (output.getvalue())


def test_a_certificate_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    def found(path: Path) -> list[str]:
        files = {"ssl_certfile": str(path), "ssl_keyfile": str(path.with_name("key.pem"))}
        return verdicts(sections={"service": {**SECTIONS["service"], **files}})

    (tmp_path / "cert.pem").write_text("hello")
    for name in ("cert.pem", "other.pem"):
        [problem] = found(tmp_path / name)
        assert re.search(rf"error: TLS: .*{name} and .+ \| service.ssl_certfile", problem)
    now = datetime.now(UTC)
    fresh = ensure_certificate(tmp_path / "fresh", ["localhost"], now)
    assert found(fresh.certfile) == []
    other = ensure_certificate(tmp_path / "other", ["localhost"], now)
    other.keyfile.replace(fresh.keyfile)
    assert "KEY_VALUES_MISMATCH" in found(fresh.certfile)[0]
    long_ago = now - timedelta(days=3_000)
    [problem] = found(ensure_certificate(tmp_path / "old", ["localhost"], long_ago).certfile)
    assert re.search(r"expired on \d{4}-\d\d-\d\d \| service.ssl_certfile", problem)
