"""Comparisons by name, with tolerances, and their table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

ABSENT = object()
"""Stands for a tensor that a compact folder leaves out; comparing with it is skipped."""


@dataclass(frozen=True)
class Row:
    """One comparison."""

    name: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    tolerance: str
    passed: bool


@dataclass
class Report:
    """Verdicts by tensor name (`file/tensor` or `file/json path`).

    Attributes:
        rows: the comparisons.
        inputs: tensors that are inputs of a run, or of what is not served here.
        notes: remarks on how the recording was made.
    """

    rows: list[Row] = field(default_factory=list)
    inputs: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def has_passed(self) -> bool:
        return all(row.passed for row in self.rows)

    def extend(self, other: Report) -> None:
        self.rows += other.rows
        self.inputs |= other.inputs
        self.notes += other.notes

    def given(self, *names: str) -> None:
        self.inputs.update(names)

    def exact(self, name: str, actual: object, expected: object) -> None:
        if expected is ABSENT:
            return
        if isinstance(expected, np.ndarray):
            got = np.asarray(actual)
            same = got.shape == expected.shape and bool(np.array_equal(got, expected))
            shape = expected.shape
        else:
            same, shape = actual == expected, ()
        self.rows.append(Row(name, shape, 0.0 if same else np.inf, 0.0, "exact", same))

    def close(
        self,
        name: str,
        actual: ArrayLike,
        expected: ArrayLike,
        *,
        atol: float = 0.0,
        rtol_of_max: float = 0.0,
        rtol: float = 0.0,
        rounding: ArrayLike = 0.0,
        min_correlation: float | None = None,
    ) -> None:
        """Compare arrays; an element passes within atol + rtol_of_max * max|expected| + rtol * |e|.

        Args:
            name: `file/tensor`.
            actual: what our code computed; the shape must equal `expected`'s.
            expected: the recorded array.
            atol: absolute tolerance.
            rtol_of_max: tolerance relative to the largest recorded magnitude.
            rtol: tolerance relative to each recorded element.
            rounding: of each element, added: what the last bit of float32 makes of it, which
                differs between processors.
            min_correlation: if given, the least allowed correlation of the flattened arrays.
        """
        if expected is ABSENT:
            return
        got = np.asarray(actual, dtype=np.float64)
        want = np.asarray(expected, dtype=np.float64)
        text = " + ".join(
            part
            for part, value in (
                (f"{atol:g}", atol),
                (f"{rtol_of_max:g}*max", rtol_of_max),
                (f"{rtol:g}*|x|", rtol),
            )
            if value
        )
        if got.shape != want.shape:
            note = f"shape {got.shape}"
            self.rows.append(Row(name, want.shape, np.inf, np.inf, note, False))
            return
        if want.size == 0:
            self.rows.append(Row(name, want.shape, 0.0, 0.0, text, True))
            return
        error = np.abs(got - want)
        largest = float(np.abs(want).max())
        limit = atol + rtol_of_max * largest + rtol * np.abs(want) + np.asarray(rounding)
        passed = bool((error <= limit).all())  # NaN compares False
        if min_correlation is not None and want.std() > 0:
            text += f", corr>{min_correlation:g}"
            passed = (
                passed and float(np.corrcoef(got.ravel(), want.ravel())[0, 1]) > min_correlation
            )
        worst = float(error.max())
        self.rows.append(Row(name, want.shape, worst, worst / (largest or 1.0), text, passed))
