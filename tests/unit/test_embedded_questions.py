"""How the cascade's figures are counted and judged."""

from __future__ import annotations

import pytest

from benchmarks.embedded_calls import Unit, is_ignored, was_stopped
from benchmarks.embedded_questions import SPOKEN, OpenQuestion, Report

RAIN = next(question for question in SPOKEN if "rain" in question.text)
COLOUR = OpenQuestion("Which colour is it?", r"\bred\b", r"colou?r", r"\bgreen\b")


@pytest.mark.parametrize(
    ("answer", "points"),
    [
        ("It is Red.", 2),
        ("A pretty color.", 1),
        ("It is red, not green.", 0),
        ("I do not know.", 0),
        ("It is red, and " + "so on " * 30, 1),
        ("1. Red. 2. Or another one.", 1),
        ("Here:\n- Red", 1),
        ("As an AI, I would say red.", 1),
    ],
)
def test_an_answer_gets_points_for_facts_that_can_be_spoken(answer: str, points: int) -> None:
    assert COLOUR.points(answer) == points


def test_a_known_answer_is_marked() -> None:
    assert RAIN.points("Clouds are full of water, and when they are heavy, drops fall.") == 2
    assert RAIN.points("Rain falls from the ground into the air.") == 0


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
