"""Measurement of yielding to an interruption."""

from __future__ import annotations

import pytest

from benchmarks.nano.yielding import yielded
from MiniCPMO45.modes.duplex import UnitResult

LISTENS = UnitResult(is_listen=True)
BEGINS = UnitResult(is_listen=False, text="Once upon a time")
GOES_ON = UnitResult(is_listen=False, text=" a small bird")
SAYS_ALL = UnitResult(is_listen=False, text=" flew home.")
ENDS = UnitResult(is_listen=False, end_of_turn=True)
IS_CUT = UnitResult(is_listen=True, barge_in=True)
LAST = 3


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([LISTENS, BEGINS, GOES_ON, ENDS], True),  # within a sentence
        ([LISTENS, BEGINS, GOES_ON, IS_CUT], True),
        ([LISTENS, BEGINS, ENDS], True),  # before the word was over
        ([LISTENS, BEGINS, GOES_ON, GOES_ON, ENDS], False),  # too late
        ([LISTENS, BEGINS, GOES_ON, GOES_ON, IS_CUT], False),
        ([LISTENS, BEGINS, GOES_ON, GOES_ON], False),  # never
        ([BEGINS, SAYS_ALL, ENDS], None),  # nothing was left to stop
        ([LISTENS, BEGINS, SAYS_ALL, ENDS], False),  # the reply was completed
    ],
)
def test_yielding_to_an_interruption(units: list[UnitResult], expected: bool | None) -> None:
    assert yielded(units, LAST) is expected
