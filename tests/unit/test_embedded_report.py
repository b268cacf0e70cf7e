"""How the cascade's figures are counted and judged."""

from __future__ import annotations

import pytest

from benchmarks.embedded import Report, word_errors


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
    report.add("late", 0.2, 0.1, is_most=True)
    report.add("right", 0.2, 0.1, is_most=False)
    assert [report.is_reached(name) for name in ("late", "right")] == [False, True]
