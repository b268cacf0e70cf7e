"""Lists recordings: what each is, how large, how old. Reads, and changes nothing.

Blocks on the disk: an event loop calls it in a thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import AwareDatetime, Field

from core.schemas.queue import RequestType
from recording.folder import is_live, read_meta, total_size_bytes
from recording.names import COMMENT_FILE, UPLOAD_STEM, recording_folders
from recording.records import Record, Status

REMEMBERED_MAX: Final = 50_000  # recordings known by heart; others are read each time

SETTLED_NS: Final = 10**9  # far above the step of a file system's clock: no change goes unseen


class Order(StrEnum):
    """Which recordings come first."""

    NEWEST = "newest"
    OLDEST = "oldest"
    LARGEST = "largest"
    LONGEST = "longest"


class ListedRecording(Record):
    """One recording in a list."""

    id: str = Field(description="Its id.")
    app_type: RequestType | None = Field(None, description="Which kind of conversation it was.")
    title: str = Field("", description="A neutral name.")
    created_at: AwareDatetime = Field(description="When it started, UTC.")
    duration_s: float | None = Field(None, description="How long it lasted, s.")
    bytes: int = Field(ge=0, description="Size of its files.")
    has_comment: bool = Field(False, description="Somebody commented on it.")
    has_upload: bool = Field(False, description="A browser's own recording is with it.")
    is_running: bool = Field(False, description="It is still being written.")
    status: Status | None = Field(None, description="How far it has come; null: it does not say.")
    problem: str | None = Field(None, description="Why it is not complete.")


class RecordingPage(Record):
    """A part of the list, and what all recordings add up to."""

    total: int = Field(ge=0, description="How many recordings there are.")
    total_bytes: int = Field(ge=0, description="Size of them all.")
    recordings: tuple[ListedRecording, ...] = Field(description="Those asked for, in order.")


@dataclass(frozen=True)
class _Known:
    """A recording as it was when its folder was last changed at this time."""

    changed_ns: int
    listed: ListedRecording


KEYS: Final = MappingProxyType[Order, Callable[[ListedRecording], tuple[float, str]]](
    {
        Order.NEWEST: lambda one: (-one.created_at.timestamp(), one.id),
        Order.OLDEST: lambda one: (one.created_at.timestamp(), one.id),
        Order.LARGEST: lambda one: (-float(one.bytes), one.id),
        Order.LONGEST: lambda one: (-(one.duration_s or 0.0), one.id),
    }
)


class RecordingList:
    """The recordings of one data folder; remembers what it has read until it changes."""

    def __init__(self, data_dir: Path) -> None:
        """Read nothing yet.

        Args:
            data_dir: The data folder.
        """
        self._data_dir = data_dir
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def page(self, offset: int, limit: int, order: Order = Order.NEWEST) -> RecordingPage:
        """Return a part of the list.

        Args:
            offset: How many to pass over.
            limit: Most to return.
            order: Which come first.
        """
        with self._lock:
            everything = self._read()
        everything.sort(key=KEYS[order])
        return RecordingPage(
            total=len(everything),
            total_bytes=sum(one.bytes for one in everything),
            recordings=tuple(everything[offset : offset + limit]),
        )

    def _read(self) -> list[ListedRecording]:
        before, self._known = self._known, {}
        listed = []
        for folder in recording_folders(self._data_dir):
            try:
                known = _look(folder, before.get(folder.name))
            except OSError:  # it was deleted meanwhile
                continue
            listed.append(known.listed)
            if known.changed_ns and len(self._known) < REMEMBERED_MAX:
                self._known[folder.name] = known
        return listed


def _look(folder: Path, known: _Known | None) -> _Known:
    """Return what a recording is; a time of change of 0 says that it has to be read again."""
    changed_ns = folder.stat().st_mtime_ns  # every file here gets its name by a rename
    is_running = is_live(folder)
    if known is not None and known.changed_ns == changed_ns and not is_running:
        return known
    meta = read_meta(folder)
    began = meta.created_at if meta else datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    lasted_s = meta.duration_s if meta else None
    if is_running:
        lasted_s = max(0.0, (datetime.now(UTC) - began).total_seconds())
    listed = ListedRecording(
        id=folder.name,
        app_type=meta.app_type if meta else None,
        title=meta.title if meta else "",
        created_at=began,
        duration_s=lasted_s if lasted_s is None else round(lasted_s, 1),
        bytes=total_size_bytes(folder, None if is_running else meta),
        has_comment=(folder / COMMENT_FILE).is_file(),
        has_upload=any(folder.glob(f"{UPLOAD_STEM}.*")),
        is_running=is_running,
        status=meta.status if meta else None,
        problem=meta.problem if meta else None,
    )
    is_settled = time.time_ns() - changed_ns > SETTLED_NS
    is_kept = is_settled and meta is not None and meta.is_over and not is_running
    return _Known(changed_ns if is_kept else 0, listed)
