"""Digits in an ASR transcript equal spoken numbers."""

from __future__ import annotations

import pytest

from benchmarks.nano.judges import word_errors


@pytest.mark.parametrize(
    ("spoken", "transcript"),
    [
        ("It is the fifteenth of July.", "It is the 15th of July."),
        ("It is twelve thirty eight in the morning.", "It is 1238 in the morning."),
        ("It is ten oh three in the evening.", "It is 10.03 in the evening."),
        ("A year has three hundred and sixty five days.", "A year has 365 days."),
        ("Eight times six is forty eight.", "8x6 is 48."),
        ("One, two, three, four.", "1-2-3-4."),
        ("Three plus four is seven.", "3+4 is 7."),
        ("One hundred.", "100"),
    ],
)
def test_equal_readings_have_no_errors(spoken: str, transcript: str) -> None:
    assert word_errors(spoken, transcript).wrong == 0


@pytest.mark.parametrize(
    ("spoken", "transcript", "wrong"),
    [
        ("It is the fifteenth of July.", "It is the 16th of July.", 1),
        ("Eight times six is forty eight.", "8x6 is 49.", 1),
        ("It is ten oh three.", "It is 10:13", 2),
        ("Two plus two is four.", "", 5),
    ],
)
def test_wrong_digits_count_as_errors(spoken: str, transcript: str, wrong: int) -> None:
    assert word_errors(spoken, transcript).wrong == wrong
