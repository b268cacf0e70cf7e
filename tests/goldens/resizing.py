"""Recordings whose pictures were resized in another order of passes."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

from PIL import Image

from MiniCPMO45.processing import pictures
from MiniCPMO45.processing.pictures import Size
from tests.goldens.report import Report

NOTE = "recorded with a Pillow that resizes tall pictures columns first; compared in that order"


def resize_in_one_call(image: Image.Image, size: Size) -> Image.Image:
    """Resize in one call: Pillow 13 begins with the vertical pass for tall pictures."""
    return image.resize(size, Image.Resampling.BICUBIC)


def compare_in_either_order(name: str, report: Report, compare: Callable[[Report], None]) -> None:
    """Compare with our order of passes and, if that fails, with Pillow's.

    Args:
        name: subject of the note.
        report: receives the verdicts, and a note if only Pillow's order passes.
        compare: computes everything and reports.
    """
    ours, error = _attempt(compare)
    if error is not None or not ours.has_passed:
        with patch.object(pictures, "resize", resize_in_one_call):
            theirs, other = _attempt(compare)
        if other is None and theirs.has_passed:
            theirs.notes.append(f"{name}: {NOTE}")
            ours, error = theirs, None
    report.extend(ours)
    if error is not None:
        raise error


def _attempt(compare: Callable[[Report], None]) -> tuple[Report, Exception | None]:
    report = Report()
    try:
        compare(report)
    except Exception as error:  # other pixels can derail a conversation
        return report, error
    return report, None
