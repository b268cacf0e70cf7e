"""Runs every comparer over a folder of recordings and lists what none of them compared.

A comparer is a module of this package with `FILES` and `compare(folder, report)`.
"""

from __future__ import annotations

import importlib
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

import tests.goldens
from tests.goldens.folder import GoldenFolder
from tests.goldens.report import Report, Row

CHECKPOINT_NAME = "tiny_checkpoint"
"""Folder beside the recordings that holds the checkpoint they were made with."""


class GoldensError(Exception):
    """The folder cannot be compared."""


@dataclass(frozen=True)
class Comparer:
    """One area of the recordings.

    Attributes:
        name: the module's name inside this package.
        files: recorded files that it compares, without extension.
        compare: computes and reports.
    """

    name: str
    files: tuple[str, ...]
    compare: Callable[[GoldenFolder, Report], None]


def comparers() -> list[Comparer]:
    """Return the comparers of this package by name; other modules are shared code."""
    found = []
    for module_info in pkgutil.iter_modules(tests.goldens.__path__):
        name = module_info.name
        if name == "__main__":
            continue
        members = vars(importlib.import_module(f"{tests.goldens.__name__}.{name}"))
        if "FILES" in members and "compare" in members:
            found.append(Comparer(name, tuple(members["FILES"]), members["compare"]))
    return sorted(found, key=lambda comparer: comparer.name)


def open_folder(path: Path, checkpoint: Path | None = None) -> GoldenFolder:
    """Open a folder of recordings.

    Args:
        path: the folder.
        checkpoint: the checkpoint it was recorded with; `path/tiny_checkpoint` when None.

    Raises:
        GoldensError: a folder is missing or holds no recording.
    """
    if not path.is_dir():
        raise GoldensError(f"{path} is not a folder.")
    if not any(recorded_arrays(path)):
        raise GoldensError(f"{path} holds no recorded tensors (*.safetensors, *.npz).")
    checkpoint = checkpoint or path / CHECKPOINT_NAME
    if not (checkpoint / "config.json").is_file():
        raise GoldensError(f"{checkpoint} holds no checkpoint; name one with --checkpoint.")
    return GoldenFolder(path, checkpoint)


def recorded_arrays(path: Path) -> Iterator[tuple[str, str]]:
    """Return (file without extension, array name) of every recorded array."""
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, "np") as opened:
            yield from ((file.stem, key) for key in opened.keys())
    for file in sorted(path.glob("*.npz")):
        with np.load(file) as archive:
            yield from ((file.stem, key) for key in archive.files)


def run_one(comparer: Comparer, folder: GoldenFolder, report: Report) -> str | None:
    """Run one comparer if `folder` has anything for it.

    Returns:
        The traceback if it raised (which also counts as a failed comparison), else None.
    """
    is_present = any(
        folder.has(name) or (folder.path / f"{name}.json").is_file() for name in comparer.files
    )
    if not is_present:
        return None
    try:
        comparer.compare(folder, report)
    except Exception as error:  # one broken comparer must not hide the others' verdicts
        note = f"raised {type(error).__name__}"
        report.rows.append(Row(f"({comparer.name})", (), np.inf, np.inf, note, False))
        return traceback.format_exc()
    return None


def not_covered(folder: GoldenFolder, report: Report) -> list[str]:
    """Return recorded tensors that are neither compared nor inputs, and JSON files unused."""
    seen = {row.name for row in report.rows} | report.inputs
    missing = [
        f"{file}/{name}"
        for file, name in recorded_arrays(folder.path)
        if f"{file}/{name}" not in seen
    ]
    files_named = {name.split("/", 1)[0].removesuffix(".json") for name in seen}
    missing += [
        file.name for file in sorted(folder.path.glob("*.json")) if file.stem not in files_named
    ]
    return missing


def run(
    path: Path,
    checkpoint: Path | None = None,
    on_traceback: Callable[[str], None] = print,
) -> Report:
    """Compare everything in a folder.

    Args:
        path: the folder of recordings.
        checkpoint: the checkpoint it was recorded with; `path/tiny_checkpoint` when None.
        on_traceback: receives the traceback of each comparer that raised.

    Raises:
        GoldensError: the folder cannot be compared.
    """
    folder = open_folder(path, checkpoint)
    report = Report()
    for comparer in comparers():
        text = run_one(comparer, folder, report)
        if text is not None:
            on_traceback(text)
    return report
