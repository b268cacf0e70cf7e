"""The toy checkpoint that is used when none is configured."""

from __future__ import annotations

import shutil
from pathlib import Path

MARK = "config.json"


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a checkpoint."""
    return (folder / MARK).is_file()


def partial_of(folder: Path) -> Path:
    """Return where a checkpoint is made before it is moved to its place."""
    return folder.with_name(f"{folder.name}.tmp")


def prepare(folder: Path) -> Path:
    """Make room for a new checkpoint and return where to make it.

    Args:
        folder: its place in the end.
    """
    partial = partial_of(folder)
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    return partial


def settle(folder: Path) -> None:
    """Move a finished checkpoint to its place, whatever stood there unfinished."""
    shutil.rmtree(folder, ignore_errors=True)
    partial_of(folder).replace(folder)


def discard(folder: Path) -> None:
    """Remove one that was not finished."""
    shutil.rmtree(partial_of(folder), ignore_errors=True)
