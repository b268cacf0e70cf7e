"""Recorded reference outputs against this code, over every folder of recordings at hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from MiniCPMO45.modes.prompt_input import PrefillOptions
from MiniCPMO45.processing.pictures import render_slices, resize, slice_image
from MiniCPMO45.processing.processor import Message, MiniCPMOProcessor
from tests.goldens import resizing
from tests.goldens.chat import history_options
from tests.goldens.folder import GoldenFolder
from tests.goldens.places import recordings
from tests.goldens.report import Report
from tests.goldens.runner import Comparer, comparers, not_covered, open_folder, run_one
from tests.model.toy import Toy, picture

BICUBIC = Image.Resampling.BICUBIC
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


@pytest.mark.parametrize("limit", [1, 2, 5, 9, 16])
def test_the_slice_limit_of_a_history_is_found_from_its_length(toy: Toy, limit: int) -> None:
    processor = MiniCPMOProcessor.of(toy.tokenizer)
    history = [Message("user", [picture(0, 2400, 1640), "hello"])]
    prompt = processor.render(history, PrefillOptions(omni_mode=False, max_slice_nums=limit))
    found = history_options(processor, history, len(prompt.ids))
    assert processor.render(history, found).ids == prompt.ids


@pytest.mark.parametrize("is_columns_first", [False, True])
def test_pictures_recorded_columns_first_are_compared_and_noted(
    toy: Toy, monkeypatch: pytest.MonkeyPatch, is_columns_first: bool
) -> None:
    def columns_first(image: Image.Image, size: tuple[int, int]) -> Image.Image:
        return image.resize((image.width, size[1]), BICUBIC).resize(size, BICUBIC)

    monkeypatch.setattr(resizing, "resize_in_one_call", columns_first)
    tall = picture(0, 120, 700)
    [slice_] = slice_image(tall, 1, toy.config.slice_config).slices
    chosen = columns_first if is_columns_first else resize
    recorded = np.asarray(chosen(tall, slice_.resized))

    def compare(report: Report) -> None:
        report.exact("rgb", np.asarray(next(render_slices([slice_]))), recorded)

    report = Report()
    resizing.compare_in_either_order("tall", report, compare)
    assert report.has_passed and len(report.rows) == 1
    assert len(report.notes) == is_columns_first
    wrong = Report()
    resizing.compare_in_either_order("wrong", wrong, lambda each: each.exact("rgb", 1, 2))
    assert not wrong.has_passed and not wrong.notes
