"""How the cascade's figures are counted and judged."""

from __future__ import annotations

import pytest

from benchmarks.embedded_calls import Unit, is_ignored, was_stopped
from benchmarks.embedded_report import Report, word_errors


@pytest.mark.parametrize(
    ("wanted", "heard", "errors", "words"),
    [
        ("What is seventeen times six?", "What is 17 x 6?", 0, 5),
        ("The colour is red.", "the color was red", 1, 4),
        ("Hello there.", "", 2, 2),
        ("Hello.", "Oh, hello there!", 2, 1),
    ],
)
def test_words_differ_whatever_their_spelling(
    wanted: str, heard: str, errors: int, words: int
) -> None:
    assert word_errors(wanted, heard) == (errors, words)


def test_a_figure_keeps_its_limit_from_its_side() -> None:
    report = Report()
    report.add("late", 0.2, 0.1, 5, is_most=True)
    report.add("right", 0.2, 0.1, 5, is_most=False)
    assert [report.is_reached(name) for name in ("late", "right")] == [False, True]


SPEAKS, LAST, SILENT = Unit(speaks=True), Unit(speaks=True, is_last=True), Unit(speaks=False)


@pytest.mark.parametrize(
    ("units", "stopped"),
    [
        ([SPEAKS, SILENT], True),
        ([SILENT, SILENT], True),
        ([SPEAKS, SPEAKS], False),
        ([LAST, SILENT], None),
        ([SPEAKS, LAST], None),
    ],
)
def test_a_reply_that_ends_by_itself_obeys_no_stop(units: list[Unit], stopped: bool | None) -> None:
    assert was_stopped(units) is stopped


@pytest.mark.parametrize(
    ("units", "ignored"),
    [
        ([SPEAKS, SPEAKS], True),
        ([SPEAKS, LAST, SILENT], True),
        ([SPEAKS, SILENT], False),
        ([LAST, SPEAKS], False),
    ],
)
def test_an_echo_neither_ends_a_reply_nor_begins_one(units: list[Unit], ignored: bool) -> None:
    assert is_ignored(units) is ignored
