"""The test command's own parts: stages beside each other, their reports, their budgets."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import run_stages
from scripts.run_stages import Outcome, Stage


def outcome(name: str, cpu_s: float, share: float | None) -> Outcome:
    return Outcome(Stage(name, (), share), code=0, wall_s=cpu_s, cpu_s=cpu_s)


def test_a_stage_beyond_twice_its_share_is_named() -> None:
    slow_machine = [outcome("quick", 300, 0.3), outcome("long", 700, 0.7)]
    assert run_stages.outgrown(slow_machine) == []
    other = outcome("other", 900, None)
    quick = [outcome("quick", 61, 0.3), outcome("long", 70, 0.7), other]
    [sentence] = run_stages.outgrown(quick)
    assert sentence.startswith("quick took 47% of the CPU time; its budget is 30%")
    [sentence] = run_stages.outgrown([outcome("quick", 30, 0.3), outcome("long", 141, 0.7)])
    assert sentence.startswith("long took 82%")


def test_the_budgets_are_shares_of_one_whole() -> None:
    stages = [
        stage for group in run_stages.groups(is_everything=False, left_out=[]) for stage in group
    ]
    assert sum(stage.share or 0 for stage in stages) == pytest.approx(1, abs=0.1)
    assert all(stage.share for stage in stages)


def test_what_the_machine_lacks_is_left_out() -> None:
    def names(*left_out: str) -> set[str]:
        groups = run_stages.groups(is_everything=True, left_out=left_out)
        return {stage.name for group in groups for stage in group}

    assert names() - names("browser") == {"browser tests", "real-time pages"}
    assert names() - names("gates") == {"gates"}


def test_stages_beside_each_other_each_leave_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_stages, "REPORTS", tmp_path)
    good = Stage("good one", (sys.executable, "-c", "print('all is well')"), share=0.5)
    bad = Stage("bad one", (sys.executable, "-c", "print('\\x1b[1mit broke'); exit(3)"), share=0.5)
    outcomes = {each.stage.name: each for each in run_stages.run_group([good, bad])}
    assert outcomes["good one"].has_passed and not outcomes["bad one"].has_passed
    assert outcomes["bad one"].cpu_s > 0
    [failure] = ElementTree.parse(tmp_path / "bad_one.xml").iter("failure")
    assert failure.text is not None and "it broke" in failure.text
    assert "good one::good one" in (tmp_path / "good_one.slowest.txt").read_text()
    assert "it broke" in capsys.readouterr().out


def test_the_slowest_tests_are_kept_slowest_first(tmp_path: Path) -> None:
    cases = "".join(
        f'<testcase classname="tests.unit" name="test_{n}" time="{n}.5"/>' for n in range(40)
    )
    junit = tmp_path / "tests.xml"
    junit.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    run_stages.write_slowest(junit)
    lines = (tmp_path / "tests.slowest.txt").read_text().splitlines()
    assert len(lines) == run_stages.SLOWEST
    assert lines[0].split() == ["39.50", "s", "tests.unit::test_39"]
