"""Which GPUs workers may use, as the driver's tool tells it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.machine import VISIBLE, cpu_count, find_gpus

LISTING = (
    "0, GPU-aaaa1111, Card A, 81559\n1, GPU-bbbb2222, Card B, [N/A]\n2, GPU-cccc3333, Card C, 16384"
)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose driver prints what is in the file; its exit code is in `code`."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/listing\nexit $(cat {tmp_path}/code)\n")
    tool.chmod(0o755)
    (tmp_path / "listing").write_text(LISTING)
    (tmp_path / "code").write_text("0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-bbbb", [1]),
        (" 1 , GPU-aaaa1111", [1, 0]),
        ("1,7,0", [1]),  # what follows an unknown one is invisible
        ("-1", []),
        ("", []),
    ],
)
def test_the_variable_chooses_and_orders(visible: str | None, indices: list[int]) -> None:
    gpus = find_gpus({} if visible is None else {VISIBLE: visible})
    assert [gpu.index for gpu in gpus] == indices
    if visible:
        parts = [part.strip() for part in visible.split(",")]
        assert [gpu.visible_as for gpu in gpus] == parts[: len(indices)]


@pytest.mark.usefixtures("driver")
def test_name_and_memory_are_for_people() -> None:
    first, second, _ = find_gpus({})
    assert (first.name, round(first.memory_gib, 1)) == ("Card A", 79.6)
    assert second.memory_gib == 0  # the driver would not say


def test_a_driver_that_fails_or_talks_nonsense_means_no_gpu(driver: Path) -> None:
    (driver / "code").write_text("9")
    assert find_gpus({}) == []
    (driver / "code").write_text("0")
    (driver / "listing").write_text("NVIDIA-SMI has failed\n\n")
    assert find_gpus({}) == []


def test_no_driver_means_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_gpus({VISIBLE: "0"}) == []


@pytest.mark.skipif(sys.platform != "linux", reason="others have no such limit")
def test_only_the_cpus_count_that_may_be_used() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cpu_count() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cpu_count() == len(allowed)
