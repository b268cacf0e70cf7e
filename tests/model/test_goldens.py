"""Recorded reference outputs against this code, over every folder of recordings at hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.goldens.folder import GoldenFolder
from tests.goldens.places import recordings
from tests.goldens.report import Report
from tests.goldens.runner import Comparer, comparers, not_covered, open_folder, run_one

FOLDERS = recordings()
COMPARERS = comparers()


@dataclass
class Comparisons:
    """Reports over one folder, each made when first asked for."""

    folder: GoldenFolder
    reports: dict[str, tuple[Report, str | None]] = field(default_factory=dict)

    def of(self, comparer: Comparer) -> tuple[Report, str | None]:
        """The comparer's report, and its traceback if it raised."""
        if comparer.name not in self.reports:
            report = Report()
            self.reports[comparer.name] = (report, run_one(comparer, self.folder, report))
        return self.reports[comparer.name]


@pytest.fixture(scope="module", params=FOLDERS)
def comparisons(request: pytest.FixtureRequest) -> Comparisons:
    """Everything computed from one folder of recordings."""
    return Comparisons(open_folder(FOLDERS[request.param]))


def test_recordings_are_at_hand() -> None:
    assert FOLDERS, "neither tests/golden nor another folder of recordings is here"


@pytest.mark.parametrize("comparer", COMPARERS, ids=lambda comparer: comparer.name)
def test_equals_the_recordings(comparer: Comparer, comparisons: Comparisons) -> None:
    report, traceback_text = comparisons.of(comparer)
    if traceback_text is not None:
        pytest.fail(traceback_text, pytrace=False)
    if not report.rows:
        pytest.skip("nothing recorded for it in this folder")
    failed = [
        f"{row.name}: {row.max_abs:.2e} > {row.tolerance}" for row in report.rows if not row.passed
    ]
    assert not failed, "\n".join(failed)


def test_every_recording_is_looked_at(comparisons: Comparisons) -> None:
    together = Report()
    for comparer in COMPARERS:
        report, _ = comparisons.of(comparer)
        together.rows.extend(report.rows)
        together.inputs.update(report.inputs)
    assert not_covered(comparisons.folder, together) == []
