"""`python -m tests.goldens DIR`: the table of verdicts for one folder of recordings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.goldens.report import Report, Row
from tests.goldens.runner import GoldensError, not_covered, open_folder, run

HEADINGS = ("name", "shape", "max abs", "max rel", "tolerance", "verdict")


def _cells(row: Row) -> tuple[str, ...]:
    shape = "×".join(map(str, row.shape)) or "-"
    verdict = "passed" if row.passed else "FAILED"
    return (row.name, shape, f"{row.max_abs:.2e}", f"{row.max_rel:.2e}", row.tolerance, verdict)


def print_table(report: Report) -> None:
    table = [HEADINGS, *(_cells(row) for row in report.rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(HEADINGS))]
    for line in table:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print("  ".join(cells).rstrip())


def main(arguments: list[str] | None = None) -> int:
    """Compare a folder and print the verdicts.

    Returns:
        0 if every tensor present was compared and passed (inputs excepted), 1 if not, 2 if the
        folder cannot be compared at all.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.goldens",
        description="Compare recorded reference outputs with what this code computes.",
    )
    parser.add_argument("folder", type=Path, help="folder with *.safetensors, *.npz, *_meta.json")
    parser.add_argument("--checkpoint", type=Path, help="default: FOLDER/tiny_checkpoint")
    options = parser.parse_args(arguments)
    try:
        report = run(options.folder, options.checkpoint)
        missing = not_covered(open_folder(options.folder, options.checkpoint), report)
    except GoldensError as error:
        print(error, file=sys.stderr)
        return 2
    print_table(report)
    passed = sum(row.passed for row in report.rows)
    for row in report.rows:
        if not row.passed:
            print(f"FAILED: {row.name}")
    for note in report.notes:
        print(f"note: {note}")
    for name in missing:
        print(f"not covered: {name}")
    compared_too = {row.name for row in report.rows}
    print(f"{len(report.inputs - compared_too)} recorded tensors are inputs of a run")
    print(f"{len(report.rows)} compared, {passed} passed, {len(missing)} not covered")
    return 0 if report.rows and passed == len(report.rows) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
