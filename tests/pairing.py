"""Products of two lists of cases, of which the default run takes a part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

First = TypeVar("First")
Second = TypeVar("Second")


def taking_turns(
    first: Sequence[First], second: Sequence[Second], rounds: int = 1
) -> list[ParameterSet]:
    """Return all pairs for `parametrize`; all but the chosen ones are marked `matrix`.

    Chosen are, for each of `first`, as many of `second` as there are rounds, which take turns. So
    every case of `first` is among the chosen ones, and every one of `second` if `first` is longer.
    """
    pairs = []
    for row, left in enumerate(first):
        chosen = {(row * rounds + turn) % len(second) for turn in range(rounds)}
        for column, right in enumerate(second):
            marks = () if column in chosen else (pytest.mark.matrix,)
            pairs.append(pytest.param(left, right, marks=marks))
    return pairs


def by_default(usual: Collection[First], cases: Sequence[First]) -> list[ParameterSet]:
    """Return all cases for `parametrize`; all but the usual ones are marked `matrix`."""
    return [
        pytest.param(case, marks=() if case in usual else (pytest.mark.matrix,)) for case in cases
    ]
