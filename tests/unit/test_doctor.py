"""Reports of `minicpmo-live doctor` for many kinds of machines."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from config import Settings
from launcher.doctor import Facts, Verdict, _certificate, examine, has_errors, show
from launcher.machine import Gpu
from launcher.plan import slots_of

BIG, MIDDLE, SMALL = (Gpu(0, "0", "Card A", size_gib) for size_gib in (80.0, 16.0, 12.0))
FINE = Facts(
    gpus=(),
    cpus=2,
    memory_gib=8.0,
    free_gb=100.0,
    data_dir=Path("/data"),
    is_writable=True,
    versions={"torch": "2.13.0"},
    hard_limit=None,
    ports=(),
    has_pages=True,
)
SECTIONS: dict[str, Any] = {"service": {"https": True}}


def verdicts(facts: Facts, sections: Mapping[str, object] = SECTIONS) -> list[str]:
    """Warnings and errors, one line each: verdict, subject, state and fix."""
    settings = Settings.model_validate(sections)
    return [
        f"{found.verdict}: {found.subject}: {found.state} | {found.fix}"
        for found in examine(facts, settings)
        if found.verdict is not Verdict.FINE
    ]


def test_a_small_machine_without_a_card_is_fine() -> None:
    assert verdicts(FINE) == []
    found = {each.subject: each.state for each in examine(FINE, Settings.model_validate(SECTIONS))}
    assert found["no GPU"] == "2 CPUs, 8 GiB: nano and the cascade"


def test_capacity_of_a_gpu_equals_the_launchers_slots() -> None:
    facts = replace(FINE, gpus=[BIG])
    settings = Settings.model_validate(SECTIONS)
    found = {each.subject: each.state for each in examine(facts, settings)}
    usual = settings.duplex.usual_tokens
    assert found["GPU 0 (Card A)"] == (
        f"80 GiB, MiniCPM-o 4.5 with up to {slots_of(BIG, usual)} (bf16), "
        f"{slots_of(BIG, usual, weights='fp8')} (fp8), "
        f"{slots_of(BIG, usual, weights='int4')} (int4) sessions"
    )


@pytest.mark.parametrize(
    ("changed", "sections", "expected", "is_fatal"),
    [
        ({"versions": {"torch": None, "av": None}}, {}, r"torch, av not installed \| .+", True),
        (
            {"gpus": [BIG], "versions": {"torch": "2.13.0+cpu"}},
            {"model": {"model_path": "/weights"}},
            r"cannot use the GPU \| .*torch==2.13.0$",
            True,
        ),
        ({"gpus": [SMALL]}, {"model": {"model_path": "/w"}}, "needs 13 GiB.*VISIBLE", False),
        (
            {"gpus": [MIDDLE]},
            {"model": {"model_path": "/w"}},
            r"up to \d+ \(int4\) sessions; bf16 does not fit \| OMNI_MODEL_WEIGHTS=int4",
            True,
        ),
        ({"gpus": [BIG]}, {}, "checkpoint: none configured.*minicpmo-live download", False),
        ({"has_pages": False}, {}, r"pages: .*\| scripts/setup.sh pages", False),
        ({"missing_programs": ("flite",)}, {}, r"flite not installed.*find_gate_programs", False),
        ({"free_gb": 0.4}, {}, "0 GB free at /data; .* need 1 GB.*data_dir", False),
        ({"free_gb": 9.0}, {"model": {"model_path": "/w"}}, "need 19 GB", False),
        ({"is_writable": False}, {}, "/data is not writable", True),
        ({"ports": ("port 8006 is in use",)}, {}, "8006 is in use .*--port", True),
        ({"hard_limit": 4_096}, {}, r"4096 open files; .* \| ulimit -Hn \d+", False),
        ({}, {"service": {"https": False}}, "TLS: off: .*--https", False),
        ({"certificate_problem": "not found"}, {}, "not found .*ssl_certfile", True),
        ({"certificate_ends": datetime(2020, 1, 1, tzinfo=UTC)}, {}, "expired on 2020-01-01", True),
    ],
)
def test_a_problem_is_reported_with_its_fix(
    changed: dict[str, Any], sections: dict[str, object], expected: str, is_fatal: bool
) -> None:
    facts, settings = replace(FINE, **changed), {**SECTIONS, **sections}
    (found,) = verdicts(facts, settings)
    assert re.search(expected, found), found
    assert has_errors(examine(facts, Settings.model_validate(settings))) is is_fatal


def test_lines_are_not_wrapped() -> None:
    output = io.StringIO()
    findings = examine(replace(FINE, is_writable=False), Settings.model_validate(SECTIONS))
    show(findings, Console(file=output, width=20))
    assert "error: data folder: /data is not writable\n    service.data_dir" in (output.getvalue())


def test_a_certificate_that_is_none_is_a_problem(tmp_path: Path) -> None:
    assert _certificate(None) == (None, "")
    (tmp_path / "cert.pem").write_text("hello")
    for name in ("cert.pem", "other.pem"):
        ends, problem = _certificate(tmp_path / name)
        assert ends is None and problem
