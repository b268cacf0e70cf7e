"""The embedded model's figures at full size: of these weights, and each within its limit."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from benchmarks.nano import gates, report
from benchmarks.nano.gates import GATES, Figure
from config import PROJECT_ROOT
from core.nano_assets import SOURCE
from core.sums import SUMS_FILE

LARGEST_FILE_BYTES = 16_000_000
LARGEST_BYTES = 40_000_000
PAGE = PROJECT_ROOT / "docs" / "nano.md"
JUDGED = (gates.SPEAKS, gates.SOUNDS, gates.CONVERSATION)


def test_the_report_is_of_the_weights_that_are_shipped() -> None:
    assert report.read(report.REPORT).weights == report.weights_of(SOURCE), (
        "the weights have changed: python -m benchmarks.nano --report docs/nano-figures.json"
    )


def test_every_gate_was_reached_at_full_size() -> None:
    found = report.read(report.REPORT).by_metric()
    assert set(found) == {gate.metric for gate in GATES}
    for gate in GATES:
        measured = found[gate.metric]
        assert Figure(gate, measured.value, measured.n).is_reached, measured
        assert bool(measured.judge) == (gate in JUDGED), measured


def test_the_page_shows_the_figures_of_the_report() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf8").splitlines() if "| reached |" in line]
    found = report.read(report.REPORT).by_metric()
    assert len(rows) == len(GATES)
    for gate, row in zip(GATES, rows, strict=True):
        measured = found[gate.metric]
        assert f"{measured.n:,}" in row, row
        shown = gate.shown(measured.value).removesuffix("%").removesuffix(" s")
        assert shown.removesuffix(".00").removesuffix(".0") in row, row


def test_the_weights_are_small() -> None:
    sizes = {path: path.stat().st_size for path in SOURCE.rglob("*") if path.is_file()}
    assert max(sizes.values()) <= LARGEST_FILE_BYTES, max(sizes, key=lambda path: sizes[path])
    assert sum(sizes.values()) <= LARGEST_BYTES


def test_pieces_of_a_measurement_meet_in_one_report(tmp_path: Path) -> None:
    path, day = tmp_path / "figures.json", date(2030, 1, 2)
    (tmp_path / SUMS_FILE).write_text("of some weights")
    report.add(path, tmp_path, [Figure(gates.SEES, 0.98, 200)], day, "abc")
    report.add(path, tmp_path, [Figure(gates.SPEAKS, 0.05, 80, judge="an ear")], day, "abd")
    report.add(path, tmp_path, [Figure(gates.SOUNDS, None)], day, "abd")
    assert [(each.metric, each.commit, each.judge) for each in report.read(path).figures] == [
        (gates.SPEAKS.metric, "abd", "an ear"),
        (gates.SEES.metric, "abc", ""),
    ]
    (tmp_path / SUMS_FILE).write_text("of others")
    report.add(path, tmp_path, [Figure(gates.SEES, 0.99, 200)], day, "abe")
    assert [each.value for each in report.read(path).figures] == [0.99]


def test_the_limits_are_those_that_were_set() -> None:
    """The limits stand here a second time, so that no one of them is moved by accident."""
    wanted = {
        "exact answer, held-out synthetic voices": "≥ 97.0%",
        "exact answer, held-out natural voices": "≥ 95.0%",
        "exact answer, recordings of a person": "≥ 92.0%",
        "word error on held-out replies, whole chain": "≤ 10.0%",
        "DNSMOS overall, whole chain": "≥ 2.90",
        "answered in the right unit": "≥ 98.0%",
        "units taken while the user speaks": "≤ 0.5%",
        "starts in noise and silence": "≤ 0.5%",
        "'stop' ends the turn within one unit": "≥ 95.0%",
        "its own echo ends no turn": "≥ 99.0%",
        "colour, shape, digit, count of rendered scenes": "≥ 97.0%",
        "real-time factor while speaking, one core": "≤ 0.50",
        "first audio after the speaker's end, mean": "≤ 1.20 s",
        "right turns of ten, through the sockets": "≥ 9.00",
    }
    assert {gate.metric: gate.wanted for gate in GATES} == wanted
