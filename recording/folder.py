"""Reads and rewrites what a recording says about itself: `meta.json` and `recording.json`.

Blocks on the disk: an event loop calls these in a thread.
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from recording.disk import folder_size_bytes, write_file
from recording.locks import is_live
from recording.names import LOCK_FILE, META_FILE, RECORDING_FILE
from recording.records import Meta, Recording

JSON_INDENT: Final = 2  # source: service specification, section 5.1
# A player asks for many parts of a file; the time of the last one is not worth a write each.
ACCESS_RESOLUTION: Final = timedelta(seconds=60)

_RECORDING: Final[TypeAdapter[Recording]] = TypeAdapter(Recording)


def read_meta(folder: Path) -> Meta | None:
    """Return what `meta.json` holds; None if it is missing or damaged."""
    try:
        return Meta.model_validate_json((folder / META_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_meta(folder: Path, meta: Meta) -> None:
    """Replace `meta.json`.

    Raises:
        OSError: The disk is full, or refuses.
    """
    write_file(folder / META_FILE, meta.to_json(JSON_INDENT).encode(), is_durable=True)


def read_recording(folder: Path) -> Recording | None:
    """Return what `recording.json` holds; None if it is missing or damaged."""
    try:
        return _RECORDING.validate_json((folder / RECORDING_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def write_recording(folder: Path, recording: Recording) -> None:
    """Replace `recording.json`.

    Raises:
        OSError: The disk is full, or refuses.
    """
    write_file(folder / RECORDING_FILE, recording.to_json(JSON_INDENT).encode(), is_durable=True)


def touch_access(folder: Path, *, now: datetime | None = None) -> bool:
    """Note that somebody looked at a recording, so that it is deleted later than others.

    A recording still being written is left alone: nothing deletes it, and its writer owns the file.

    Args:
        folder: The recording's folder.
        now: When; the present by default.

    Returns:
        Whether the time was written. It is not when there is no readable `meta.json`, when the
        time written before is less than a minute old, or when the disk refuses: looking at a
        recording must not fail for this.
    """
    at = datetime.now(UTC) if now is None else now
    meta = read_meta(folder)
    if meta is None or is_live(folder):
        return False
    last = meta.last_access_at
    if last is not None and last <= at < last + ACCESS_RESOLUTION:
        return False
    try:
        write_meta(folder, meta.model_copy(update={"last_access_at": at}))
    except OSError:
        return False
    return True


def content_size_bytes(folder: Path) -> int:
    """Return the size of a recording's files, without those that tell about it."""
    total_bytes = folder_size_bytes(folder)
    for name in (META_FILE, LOCK_FILE):
        with contextlib.suppress(OSError):
            total_bytes -= (folder / name).stat().st_size
    return total_bytes


def update_size(folder: Path) -> None:
    """Bring `size_bytes` up to date after a file was added, for instance by an upload.

    Raises:
        OSError: The disk is full, or refuses.
    """
    meta = read_meta(folder)
    if meta is not None and not is_live(folder):
        size_bytes = content_size_bytes(folder)
        write_meta(folder, meta.model_copy(update={"size_bytes": size_bytes}))
