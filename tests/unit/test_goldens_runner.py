"""The comparison tool itself: it must not call something good that it did not look at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.goldens import runner
from tests.goldens.__main__ import main
from tests.goldens.folder import GoldenFolder
from tests.goldens.report import Report
from tests.goldens.runner import Comparer


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two tensors and a note, with a checkpoint of which only the name matters."""
    arrays = {"x": np.zeros(3, np.float32), "y": np.ones(3, np.float32)}
    save_file(arrays, tmp_path / "area.safetensors")
    (tmp_path / "area_meta.json").write_text(json.dumps({"n": 3}), encoding="utf8")
    (tmp_path / "tiny_checkpoint").mkdir()
    (tmp_path / "tiny_checkpoint" / "config.json").write_text("{}", encoding="utf8")
    return tmp_path


def compare_all(folder: GoldenFolder, report: Report) -> None:
    report.given("area/x")
    report.close("area/y", np.full(3, 1.0005), folder.tensors("area")["y"], atol=1e-3)
    report.exact("area_meta/n", 3, folder.meta("area_meta")["n"])


def compare_half(folder: GoldenFolder, report: Report) -> None:
    report.exact("area/y", np.ones(3, np.float32), folder.tensors("area")["y"])


def compare_wrong(folder: GoldenFolder, report: Report) -> None:
    compare_all(folder, report)
    report.close("area/y", np.zeros(3), folder.tensors("area")["y"], atol=1e-3)


def compare_badly(folder: GoldenFolder, report: Report) -> None:
    raise ZeroDivisionError("no such thing")


def use(monkeypatch: pytest.MonkeyPatch, *comparers: Comparer) -> None:
    monkeypatch.setattr(runner, "comparers", lambda: list(comparers))


def test_all_compared_and_passed(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Comparer("area", ("area", "absent"), compare_all))
    assert main([str(recorded)]) == 0
    assert capsys.readouterr().out.endswith("2 compared, 2 passed, 0 not covered\n")


def test_what_nobody_looked_at_is_named(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Comparer("area", ("area",), compare_half))
    assert main([str(recorded)]) == 1
    out = capsys.readouterr().out
    assert "not covered: area/x" in out
    assert "not covered: area_meta.json" in out
    assert out.endswith("1 compared, 1 passed, 2 not covered\n")


def test_a_difference_fails(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(monkeypatch, Comparer("area", ("area",), compare_wrong))
    assert main([str(recorded)]) == 1
    assert "FAILED: area/y" in capsys.readouterr().out


def test_one_broken_comparer_does_not_hide_the_others(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    use(
        monkeypatch,
        Comparer("bad", ("area",), compare_badly),
        Comparer("good", ("area",), compare_all),
    )
    assert main([str(recorded)]) == 1
    out = capsys.readouterr().out
    assert "ZeroDivisionError: no such thing" in out
    assert out.endswith("3 compared, 2 passed, 0 not covered\n")


def test_a_comparer_without_recordings_is_left_out(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(
        monkeypatch,
        Comparer("good", ("area",), compare_all),
        Comparer("other", ("elsewhere",), compare_badly),
    )
    assert main([str(recorded)]) == 0


@pytest.mark.parametrize("missing", ["folder", "recordings", "checkpoint"])
def test_nothing_to_compare_is_one_sentence(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recorded"
    if missing != "folder":
        folder.mkdir()
    if missing == "checkpoint":
        save_file({"x": np.zeros(1, np.float32)}, folder / "area.safetensors")
    assert main([str(folder)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
