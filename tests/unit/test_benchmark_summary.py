"""Percentiles, growth, tables and verdicts of benchmarks; no tensors."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.summary import (
    GROWTH_TOLERANCE_BYTES,
    Memory,
    Run,
    ScenarioResult,
    Spread,
    Unit,
    by_kind,
    format_table,
    growth,
    judge,
    memory_table,
    spread_table,
    stage_spreads,
    stage_table,
    write_json,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def unit(index: int, kind: str, allocated: int = 0, reserved: int = 0, ms: float = 1.0) -> Unit:
    memory = Memory(allocated, reserved, allocated, 0, allocated, 0)
    return Unit(index, kind, {"prefill": ms, "unit": 2 * ms}, memory, 100 * index)


def run_of(*units: Unit, seconds: float = 1.0) -> Run:
    return Run(
        {"units": len(units)},
        {"device": "none"},
        {"seconds": seconds},
        scenarios=[ScenarioResult("x", units)],
    )


def test_percentiles_interpolate() -> None:
    assert Spread.of([4.0, 1.0, 3.0, 2.0]).p50 == 2.5
    assert Spread.of([10.0, 20.0]).p95 == pytest.approx(19.5)
    assert Spread.of([7.0]).p95 == 7.0


@given(VALUES)
def test_percentiles_are_ordered_and_within(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) <= spread.p50 <= spread.p95 <= spread.p99 <= spread.max == max(values)
    assert spread.count == len(values)


def test_no_values_have_no_spread() -> None:
    with pytest.raises(ValueError, match="empty"):
        Spread.of([])


def test_growth_compares_like_with_like() -> None:
    """A unit that speaks holds more than one that listens; that is no growth."""
    steady = [unit(i, "ls"[i % 2], allocated=1000 * (1 + i % 2)) for i in range(8)]
    assert growth(steady) == {"l": 0, "s": 0}


def test_growth_is_found() -> None:
    leaking = [unit(i, "ls"[i % 2], allocated=100 + (i if i % 2 else 0)) for i in range(8)]
    assert growth(leaking) == {"l": 0, "s": 4}


def test_memory_that_shrinks_is_negative_growth() -> None:
    assert growth([unit(0, "l", 500), unit(1, "l", 300)]) == {"l": -200}


def test_one_unit_of_a_kind_says_nothing() -> None:
    assert growth([unit(0, "l", 500), unit(1, "s", 300)]) == {}


def test_kinds_keep_the_order_of_units() -> None:
    groups = by_kind([unit(0, "s"), unit(1, "l"), unit(2, "s")])
    assert list(groups) == ["l", "s"]
    assert [each.index for each in groups["s"]] == [0, 2]


def test_stage_spreads() -> None:
    spreads = stage_spreads([unit(0, "l", ms=1.0), unit(1, "l", ms=3.0)])
    assert spreads["l"]["prefill"].p50 == 2.0
    assert spreads["l"]["unit"].max == 6.0
    assert "decode" not in spreads["l"]


def test_verdicts() -> None:
    steady = run_of(unit(0, "l", 10, 20), unit(1, "l", 10, 30), seconds=5.0)
    assert all(verdict.passed for verdict in judge(steady, most_build_s=6.0))
    names = [v.name for v in judge(steady, most_build_s=5.0) if not v.passed]
    assert names == ["build"]
    assert len(judge(steady, most_build_s=None)) == 1
    leaking = run_of(unit(0, "l", 0), unit(1, "l", GROWTH_TOLERANCE_BYTES + 1))
    (verdict,) = judge(leaking, most_build_s=None)
    assert not verdict.passed
    assert "l +2.00 MiB" in verdict.text


def test_answers_of_a_long_conversation_must_take_about_the_same() -> None:
    def scenario(slowest_ms: float) -> ScenarioResult:
        times_ms = [10.0] * 50 + [slowest_ms] * 2
        units = [replace(unit(i, "l"), stages_ms={"answer": ms}) for i, ms in enumerate(times_ms)]
        return ScenarioResult("long", units, most_spread=1.3)

    for slowest_ms, is_good in ((12.0, True), (14.0, False)):
        run = Run({}, {}, {"seconds": 1.0}, scenarios=[scenario(slowest_ms)])
        _, verdict = judge(run, most_build_s=None)
        assert verdict.passed == is_good, verdict.text
    assert "l 1.40, at most 1.3" in verdict.text


def test_spreads_of_measurements_become_lines() -> None:
    lines = spread_table("ms", {"new": [1.0, 3.0]}).splitlines()
    assert lines[0].split() == ["ms", "count", "p50", "p95", "p99", "max"]
    assert lines[2].split() == ["new", "2", "2.00", "2.90", "2.98", "3.00"]


def test_tables_are_aligned() -> None:
    text = format_table(["name", "x"], [["a", "1.00"], ["long name", "10.00"]])
    assert text.splitlines() == [
        "name           x",
        "---------  -----",
        "a           1.00",
        "long name  10.00",
    ]


def test_a_stage_is_compared_with_its_floor_where_one_is_known() -> None:
    floors = {"listen": {"prefill": 0.5}}
    scenario = ScenarioResult("x", [unit(0, "listen"), unit(1, "speak", ms=4.0)], floors)
    listening, speaking = stage_table(scenario).split("\n\n")
    columns = ["p50", "p95", "p99", "max", "floor", "p50/floor"]
    assert listening.splitlines()[0].split() == ["listen", "(1),", "ms", *columns]
    assert listening.splitlines()[2].split() == ["prefill", *["1.00"] * 4, "0.50", "2.00"]
    assert speaking.splitlines()[2].split() == ["prefill", *["4.00"] * 4]
    assert len(speaking.splitlines()) == 4, "what was not measured has no line"


def test_memory_table_shows_the_first_and_the_last_unit_of_a_kind() -> None:
    listening = [unit(i, "listen", allocated=2_500_000_000) for i in (3, 4, 5)]
    lines = memory_table([*listening, unit(6, "speak")]).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["3", "5", "6"]
    sizes = ["allocated", "reserved", "peak", "device", "session", "process"]
    assert lines[0].split() == ["unit", "kind", "tokens", *sizes]
    gigabytes = ["2.5000", "0.0000", "2.5000", "0.0000", "2.5000", "0.0000"]
    assert lines[2].split() == ["3", "listen", "300", *gigabytes]


def test_a_run_becomes_json(tmp_path: Path) -> None:
    run = run_of(unit(0, "l"), unit(1, "l"))
    write_json(tmp_path / "run.json", run.as_record(judge(run, most_build_s=None)))
    record = json.loads((tmp_path / "run.json").read_text(encoding="utf8"))
    [scenario] = record["scenarios"]
    assert scenario["summary_ms"]["l"]["unit"]["count"] == 2
    assert scenario["memory_growth_bytes"] == {"l": 0}
    assert len(scenario["units"]) == 2
    assert record["verdicts"][0]["passed"] is True


def test_it_needs_no_torch() -> None:
    code = "import sys, benchmarks.summary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
