"""Listing and cleanup of recordings: by age first, then by least recent use.

Listing changes no recording. A cleanup skips recordings being written and first recovers unfinished
ones. Blocks on the disk: call from a thread.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, Literal

from pydantic import AwareDatetime, Field

from core.errors import OmniError, SessionInUseError
from core.files import locked
from core.schemas.queue import RequestType
from core.store import Store
from recording import names
from recording.folder import GIGABYTE, is_live, newest_change_s, read_meta, total_size_bytes
from recording.records import Record, Status
from recording.recovery import needs_recovery, recover_all, recover_session, remove_abandoned

logger: Final = logging.getLogger(__name__)

ACCESS_STEP_S: Final = 60.0  # resolution of access times: a page reads many files

UNLIMITED: Final = -1
MEGABYTE: Final = 10**6
# A younger folder without `meta.json` may just be being created.
ORPHAN_AGE: Final = timedelta(days=1)

Reason = Literal["expired", "capacity", "orphan"]


class Order(StrEnum):
    """Sort order of a list."""

    NEWEST = "newest"
    OLDEST = "oldest"
    LARGEST = "largest"
    LONGEST = "longest"


class ListedRecording(Record):
    """A recording in a list."""

    id: str = Field(description="Its id.")
    app_type: RequestType | None = Field(None, description="Kind of conversation.")
    title: str = Field("", description="A neutral name.")
    created_at: AwareDatetime = Field(description="Start, UTC.")
    duration_s: float | None = Field(None, description="Duration, s.")
    bytes: int = Field(ge=0, description="Size of its files.")
    has_comment: bool = Field(False, description="It has a comment.")
    has_upload: bool = Field(False, description="It has a browser's own recording.")
    is_running: bool = Field(False, description="It is still being written.")
    status: Status | None = Field(None, description="Its status; null: unknown.")
    problem: str | None = Field(None, description="Why it is incomplete.")


class RecordingPage(Record):
    """A page of the list, and totals of all recordings."""

    total: int = Field(ge=0, description="Number of recordings.")
    total_bytes: int = Field(ge=0, description="Size of all recordings.")
    recordings: tuple[ListedRecording, ...] = Field(description="The requested page, in order.")


# Of `Meta`.
LISTED_FIELDS: Final = {"app_type", "title", "created_at", "duration_s", "status", "problem"}
KEYS: Final[dict[Order, Callable[[ListedRecording], float]]] = {
    Order.NEWEST: lambda one: -one.created_at.timestamp(),
    Order.OLDEST: lambda one: one.created_at.timestamp(),
    Order.LARGEST: lambda one: -one.bytes,
    Order.LONGEST: lambda one: -(one.duration_s or 0.0),
}


def page_of(
    everything: Iterable[ListedRecording], offset: int, limit: int, order: Order = Order.NEWEST
) -> RecordingPage:
    found = sorted(everything, key=lambda one: (KEYS[order](one), one.id))
    return RecordingPage(
        total=len(found),
        total_bytes=sum(one.bytes for one in found),
        recordings=tuple(found[offset : offset + limit]),
    )


def list_folder(folder: Path) -> ListedRecording:
    is_running, meta = is_live(folder), read_meta(folder)
    if meta is not None:
        known = meta.model_dump(include=LISTED_FIELDS)
    else:
        known = {"created_at": datetime.fromtimestamp(newest_change_s(folder), UTC)}
    if is_running:
        lasted_s = (datetime.now(UTC) - known["created_at"]).total_seconds()
        known["duration_s"] = round(max(0.0, lasted_s), 1)
    return ListedRecording(
        id=folder.name,
        bytes=total_size_bytes(folder, None if is_running else meta),
        has_comment=(folder / names.COMMENT_FILE).is_file(),
        has_upload=any(folder.glob(f"{names.UPLOAD_STEM}.*")),
        is_running=is_running,
        **known,
    )


def list_folders(folders: Iterable[Path]) -> list[ListedRecording]:
    found = []
    for folder in folders:
        with suppress(OSError):  # deleted meanwhile
            found.append(list_folder(folder))
    return found


def touch_access(store: Store, recording_id: str) -> None:
    """Record an access; disk errors are ignored, since reading must not fail for them."""
    now_s = time.time()
    sql = "SELECT 1 FROM accesses WHERE recording_id = ? AND at_s > ?"
    if not store.rows(sql, (recording_id, now_s - ACCESS_STEP_S)):
        with suppress(OSError), store.transaction() as state:
            state.execute("REPLACE INTO accesses VALUES (?, ?)", (recording_id, now_s))


def last_accesses(store: Store) -> dict[str, datetime]:
    rows = store.rows("SELECT * FROM accesses")
    return {recording_id: datetime.fromtimestamp(at_s, UTC) for recording_id, at_s in rows}


def forget_accesses(store: Store, recording_ids: Collection[str]) -> None:
    with suppress(OSError), store.transaction() as state:
        rows = ((one,) for one in recording_ids)
        state.executemany("DELETE FROM accesses WHERE recording_id = ?", rows)


class DeletedSession(Record):
    """A recording that was, or would be, deleted."""

    session_id: str
    reason: Reason
    size_bytes: int


class CleanupError(Record):
    """A recording whose cleanup failed."""

    session_id: str
    message: str


class CleanupReport(Record):
    """Result of a cleanup."""

    status: Literal["ok", "skipped"]
    dry_run: bool = False
    scanned: int = 0
    live: int = 0
    deleted: int = 0
    deleted_expired: int = 0
    deleted_capacity: int = 0
    deleted_orphans: int = 0
    recovered: int = 0
    remaining: int = 0
    remaining_size_mb: float = 0.0
    sessions: tuple[DeletedSession, ...] = ()
    errors: tuple[CleanupError, ...] = ()


@dataclass
class _Cleanup:
    """A cleanup run; `left` holds the recordings not deleted, by id."""

    delete_one: Callable[[str], None]
    is_dry: bool
    now: datetime
    left: dict[str, ListedRecording] = field(default_factory=dict)
    deleted: list[DeletedSession] = field(default_factory=list)
    errors: list[CleanupError] = field(default_factory=list)
    scanned: int = 0
    recovered: int = 0

    def examine(self, folder: Path) -> None:
        self.scanned += 1
        if not self.is_dry:
            if needs_recovery(folder):
                self.recovered += self._attempt(folder.name, partial(recover_session, folder))
            remove_abandoned(folder, self.now)
        if self._attempt(folder.name, lambda: self.left.update({folder.name: list_folder(folder)})):
            one = self.left[folder.name]
            is_empty = one.status is None and not needs_recovery(folder)
            if is_empty and self.now - one.created_at >= ORPHAN_AGE:
                self._delete(one, "orphan")

    def finish(self, days: float, gigabytes: float, state: Store) -> CleanupReport:
        accesses = last_accesses(state)
        if days > 0:
            oldest = self.now - timedelta(days=days)
            for one in [one for one in self.left.values() if one.created_at < oldest]:
                self._delete(one, "expired")
        if gigabytes > 0:
            self._make_room(round(gigabytes * GIGABYTE), accesses)
        gone = accesses.keys() - self.left.keys()
        if gone and not self.is_dry:
            forget_accesses(state, gone)
        by_reason = [deleted.reason for deleted in self.deleted]
        left = self.left.values()
        return CleanupReport(
            status="ok",
            dry_run=self.is_dry,
            scanned=self.scanned,
            live=sum(one.is_running for one in left),
            deleted=len(self.deleted),
            deleted_expired=by_reason.count("expired"),
            deleted_capacity=by_reason.count("capacity"),
            deleted_orphans=by_reason.count("orphan"),
            recovered=self.recovered,
            remaining=len(left),
            remaining_size_mb=round(sum(one.bytes for one in left) / MEGABYTE, 2),
            sessions=tuple(self.deleted),
            errors=tuple(self.errors),
        )

    def _make_room(self, limit_bytes: int, accesses: Mapping[str, datetime]) -> None:
        def last_use(one: ListedRecording) -> tuple[datetime, str]:
            ended_at = one.created_at + timedelta(seconds=one.duration_s or 0)
            return accesses.get(one.id, ended_at), one.id

        total_bytes = sum(one.bytes for one in self.left.values())
        for one in sorted(self.left.values(), key=last_use):
            if total_bytes > limit_bytes and self._delete(one, "capacity"):
                total_bytes -= one.bytes

    def _delete(self, one: ListedRecording, reason: Reason) -> bool:
        if one.is_running:
            return False
        if not self.is_dry and not self._attempt(one.id, partial(self.delete_one, one.id)):
            return False
        del self.left[one.id]
        deleted = DeletedSession(session_id=one.id, reason=reason, size_bytes=one.bytes)
        self.deleted.append(deleted)
        return True

    def _attempt(self, name: str, act: Callable[[], object]) -> bool:
        try:
            act()
            return True
        except (OSError, OmniError) as error:
            logger.warning("cleanup of %s: %s", name, error)
            text = error.strerror if isinstance(error, OSError) else str(error)
            self.errors.append(CleanupError(session_id=name, message=text or repr(error)))
            return False


def delete_recording(folder: Path) -> None:
    """Delete a recording atomically for readers; SessionInUseError while it is written."""
    if is_live(folder):
        raise SessionInUseError("This recording is still being written.")
    deleting = folder.with_name(names.DELETING_PREFIX + folder.name)
    os.rename(folder, deleting)
    with suppress(FileNotFoundError):  # a cleanup completes it at the same time
        shutil.rmtree(deleting)


def cleanup_sessions(
    data_dir: Path | str,
    retention_days: float = UNLIMITED,
    max_storage_gb: float = UNLIMITED,
    *,
    dry_run: bool = False,
    now: datetime | None = None,
) -> CleanupReport:
    """Delete recordings by age, then by least recent use until the rest fits.

    Interrupted deletions are completed, recordings left unfinished by a killed process or a full
    disk recovered, and abandoned temporary files removed first. A folder older than a day without
    a recording is deleted. -1 or 0 is no limit; without any limit nothing else is deleted, and the
    status is `skipped`.
    """
    root, now = Path(data_dir) / names.SESSIONS_FOLDER, now or datetime.now(UTC)
    if not dry_run:
        for deleting in root.glob(f"{names.DELETING_PREFIX}*"):
            shutil.rmtree(deleting, ignore_errors=True)
    if max(retention_days, max_storage_gb) <= 0:
        recovered = [] if dry_run else recover_all(data_dir, now)
        return CleanupReport(status="skipped", dry_run=dry_run, recovered=len(recovered))
    run = _Cleanup(lambda name: delete_recording(root / name), dry_run, now)
    with locked(root) if root.is_dir() else nullcontext(), closing(Store(Path(data_dir))) as state:
        for folder in names.recording_folders(data_dir):
            run.examine(folder)
        return run.finish(retention_days, max_storage_gb, state)


def cleanup_listed(
    listed: Callable[[], list[ListedRecording]],
    delete: Callable[[str], None],
    state: Store,
    days: float,
    gigabytes: float,
    *,
    dry_run: bool,
) -> CleanupReport:
    """Apply the rules of `cleanup_sessions` to a list; `state` has the access times."""
    if max(days, gigabytes) <= 0:
        return CleanupReport(status="skipped", dry_run=dry_run)
    run = _Cleanup(delete, dry_run, datetime.now(UTC))
    run.left = {one.id: one for one in listed()}
    run.scanned = len(run.left)
    return run.finish(days, gigabytes, state)
