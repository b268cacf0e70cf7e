"""Lists recordings: what each is, how large, how old, when somebody last looked.

Changes no recording: what was read of one is kept in the store until its folder changes.

Blocks on the disk: an event loop calls it in a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import AwareDatetime, Field, ValidationError

from core.schemas.queue import RequestType
from core.store import Store
from recording.folder import is_live, read_meta, total_size_bytes
from recording.names import COMMENT_FILE, UPLOAD_STEM, recording_folders
from recording.records import Record, Status

SETTLED_NS: Final = 10**9  # far above the step of a file system's clock: no change goes unseen
ACCESS_STEP_S: Final = 60.0  # a page that shows a recording reads many of its files


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


def page_of(
    everything: Iterable[ListedRecording], offset: int, limit: int, order: Order = Order.NEWEST
) -> RecordingPage:
    found = sorted(everything, key=KEYS[order])
    return RecordingPage(
        total=len(found),
        total_bytes=sum(one.bytes for one in found),
        recordings=tuple(found[offset : offset + limit]),
    )


def list_folders(data_dir: Path, store: Store) -> list[ListedRecording]:
    """Return the recordings of a data folder; the store caches what was read."""
    before = {row[0]: row[1:] for row in store.rows("SELECT * FROM recordings")}
    gone = set(before)
    listed, changed = [], []
    for folder in recording_folders(data_dir):
        try:
            known = _describe(folder, before.get(folder.name))
        except OSError:  # it was deleted meanwhile
            continue
        listed.append(known.listed)
        if known.changed_ns:
            gone.discard(folder.name)
            if known.changed_ns != before.get(folder.name, (0,))[0]:
                changed.append((folder.name, known.changed_ns, known.listed.to_json()))
    if gone or changed:
        with suppress(OSError), store.transaction() as state:
            state.executemany("DELETE FROM recordings WHERE id = ?", ((one,) for one in gone))
            state.executemany("REPLACE INTO recordings VALUES (?, ?, ?)", changed)
    return listed


def list_folder(folder: Path) -> ListedRecording:
    return _describe(folder, None).listed


def touch_access(store: Store, recording_id: str) -> None:
    """Record an access, so that the recording is deleted later than others.

    Reading a recording must not fail for this, so errors of the disk are ignored.
    """
    now_s = time.time()
    sql = "SELECT 1 FROM accesses WHERE recording_id = ? AND at_s > ?"
    if not store.rows(sql, (recording_id, now_s - ACCESS_STEP_S)):
        with suppress(OSError), store.transaction() as state:
            state.execute("REPLACE INTO accesses VALUES (?, ?)", (recording_id, now_s))


def last_accesses(store: Store) -> dict[str, datetime]:
    rows = store.rows("SELECT * FROM accesses")
    return {recording_id: datetime.fromtimestamp(at_s, UTC) for recording_id, at_s in rows}


def forget_accesses(store: Store, recording_ids: Collection[str]) -> None:
    if recording_ids:
        with suppress(OSError), store.transaction() as state:
            rows = ((one,) for one in recording_ids)
            state.executemany("DELETE FROM accesses WHERE recording_id = ?", rows)


def _describe(folder: Path, before: tuple[int, str] | None) -> _Known:
    """Describe a recording; `changed_ns` 0 says that it has to be read again."""
    changed_ns = folder.stat().st_mtime_ns  # every file here gets its name by a rename
    is_running = is_live(folder)
    if before is not None and before[0] == changed_ns and not is_running:
        with suppress(ValidationError):  # of another version
            return _Known(changed_ns, ListedRecording.model_validate_json(before[1]))
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
