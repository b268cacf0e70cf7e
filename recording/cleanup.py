"""Deletes recordings: first those too old, then the least recently used until all fit.

A recording being written is never touched, one left unfinished is finished first. Needs only the
folder, no session, no settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from core.errors import OmniError, SessionInUseError
from core.files import locked_folder
from core.store import Store
from recording.folder import GIGABYTE, is_live, newest_change_s, read_meta, total_size_bytes
from recording.listing import ListedRecording, forget_accesses, last_accesses
from recording.names import DELETING_PREFIX, SESSIONS_FOLDER, recording_folders
from recording.records import Meta, Record
from recording.recovery import needs_recovery, recover_all, recover_session

logger: Final = logging.getLogger(__name__)

UNLIMITED: Final = -1
MEGABYTE: Final = 10**6
# A folder without `meta.json` younger than this may be one that is just being made.
ORPHAN_AGE: Final = timedelta(days=1)

Reason = Literal["expired", "capacity", "orphan"]
FIRST_RUN_S: Final = 60.0  # source: docs/specification/service.md#5.7
LEAST_PAUSE_S: Final = 60.0  # many sessions that end together cost one cleanup
LONGEST_PAUSE_S: Final = 3_600.0  # how long what a full disk left unfinished waits


class DeletedSession(Record):
    """One recording that was, or would be, deleted."""

    session_id: str
    reason: Reason
    size_bytes: int


class CleanupError(Record):
    """One recording that could not be dealt with."""

    session_id: str
    message: str


class CleanupReport(Record):
    """What a cleanup did, or would do."""

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


@dataclass(frozen=True)
class _Session:
    recording_id: str
    size_bytes: int
    is_live: bool
    created_at: datetime
    used_at: datetime


@dataclass
class _Cleanup:
    now: datetime
    is_dry: bool
    accesses: Mapping[str, datetime]
    delete_one: Callable[[str], None]
    sessions: list[_Session] = field(default_factory=list)
    deleted: list[DeletedSession] = field(default_factory=list)
    errors: list[CleanupError] = field(default_factory=list)
    scanned: int = 0
    recovered: int = 0

    def look_at(self, folder: Path) -> None:
        """Examine a folder; one that is no recording any more is deleted at once."""
        self.scanned += 1
        try:
            session = self._examined(folder)
        except OSError as error:
            self._note(folder.name, error)
            return
        if session is not None:
            self.sessions.append(session)

    def delete(self, session: _Session, reason: Reason) -> bool:
        """Delete a recording, or note that it would be; False if that failed."""
        if not self._remove(session.recording_id, session.size_bytes, reason):
            return False
        self.sessions.remove(session)
        return True

    def _examined(self, folder: Path) -> _Session | None:
        live = is_live(folder)
        meta = read_meta(folder)
        changed = datetime.fromtimestamp(newest_change_s(folder), UTC)
        size_bytes = total_size_bytes(folder, None if live else meta)
        if needs_recovery(folder):
            if not self.is_dry:
                meta = self._recovered(folder) or meta
                size_bytes = total_size_bytes(folder, meta)
        elif meta is None and not live and self.now - changed >= ORPHAN_AGE:
            if self._remove(folder.name, size_bytes, "orphan"):
                return None
        return _Session(
            recording_id=folder.name,
            size_bytes=size_bytes,
            is_live=live,
            created_at=meta.created_at if meta else changed,
            used_at=self.accesses.get(folder.name) or (meta.ended_at if meta else None) or changed,
        )

    def _recovered(self, folder: Path) -> Meta | None:
        """Finish a recording; None if the disk is too full, which deleting others may change."""
        try:
            meta = recover_session(folder)
        except (OSError, SessionInUseError) as error:
            self._note(folder.name, error)
            return None
        self.recovered += 1
        return meta

    def _remove(self, recording_id: str, size_bytes: int, reason: Reason) -> bool:
        try:
            if not self.is_dry:
                self.delete_one(recording_id)
        except (OSError, OmniError) as error:
            self._note(recording_id, error)
            return False
        deleted = DeletedSession(session_id=recording_id, reason=reason, size_bytes=size_bytes)
        self.deleted.append(deleted)
        return True

    def _note(self, recording_id: str, error: Exception) -> None:
        logger.warning("cleanup of %s: %s", recording_id, error)
        message = error.strerror if isinstance(error, OSError) else str(error)
        self.errors.append(CleanupError(session_id=recording_id, message=message or repr(error)))


def delete_recording(folder: Path) -> None:
    """Delete a recording; at no moment can half of it be seen.

    Raises:
        SessionInUseError: It is still being written.
    """
    if is_live(folder):
        raise SessionInUseError("This recording is still being written.")
    deleting = folder.with_name(DELETING_PREFIX + folder.name)
    os.rename(folder, deleting)
    shutil.rmtree(deleting)


def cleanup_sessions(
    data_dir: Path | str,
    retention_days: float = UNLIMITED,
    max_storage_gb: float = UNLIMITED,
    *,
    dry_run: bool = False,
    now: datetime | None = None,
) -> CleanupReport:
    """Delete recordings by age, then by least recent use until all fit. Blocks on the disk.

    What a killed process or a full disk left unfinished is recovered first and then treated like
    any other. A folder older than a day that holds no recording is deleted. -1 or 0 is no limit;
    without any limit nothing but recovery is done, and the status is `skipped`.
    """
    if max(retention_days, max_storage_gb) <= 0:
        recovered = [] if dry_run else recover_all(data_dir)
        return CleanupReport(status="skipped", dry_run=dry_run, recovered=len(recovered))
    place = Path(data_dir) / SESSIONS_FOLDER
    with locked_folder(place) if place.is_dir() else nullcontext():
        return _clean(data_dir, retention_days, max_storage_gb, dry_run, now)


def _clean(
    data_dir: Path | str,
    retention_days: float,
    max_storage_gb: float,
    dry_run: bool,
    now: datetime | None,
) -> CleanupReport:
    with closing(Store(Path(data_dir))) as store:
        accesses = last_accesses(store)
        root = Path(data_dir) / SESSIONS_FOLDER

        def delete_one(recording_id: str) -> None:
            delete_recording(root / recording_id)

        run = _Cleanup(now or datetime.now(UTC), dry_run, accesses, delete_one)
        if not dry_run:
            _finish_deleting(root)
        for folder in recording_folders(data_dir):
            run.look_at(folder)
        _delete_by_limits(run, retention_days, max_storage_gb)
        if not dry_run:
            forget_accesses(store, accesses.keys() - {one.recording_id for one in run.sessions})
    return _report(run)


def cleanup_listed(
    listed: Callable[[], list[ListedRecording]],
    delete: Callable[[str], None],
    state: Store,
    days: float,
    gigabytes: float,
    *,
    dry_run: bool,
) -> CleanupReport:
    """Delete what is listed by the rules of `cleanup_sessions`; `state` has the accesses."""
    if max(days, gigabytes) <= 0:
        return CleanupReport(status="skipped", dry_run=dry_run)
    accesses = last_accesses(state)
    run = _Cleanup(datetime.now(UTC), dry_run, accesses, delete)
    for one in listed():
        used_at = accesses.get(one.id, one.created_at + timedelta(seconds=one.duration_s or 0))
        run.scanned += 1
        run.sessions.append(_Session(one.id, one.bytes, one.is_running, one.created_at, used_at))
    _delete_by_limits(run, days, gigabytes)
    if not dry_run:
        forget_accesses(state, accesses.keys() - {one.recording_id for one in run.sessions})
    return _report(run)


def _delete_by_limits(run: _Cleanup, retention_days: float, max_storage_gb: float) -> None:
    if retention_days > 0:
        oldest = run.now - timedelta(days=retention_days)
        for session in [one for one in run.sessions if one.created_at < oldest]:
            if not session.is_live:
                run.delete(session, "expired")
    if max_storage_gb > 0:
        _make_room(run, round(max_storage_gb * GIGABYTE))


def _make_room(run: _Cleanup, limit_bytes: int) -> None:
    total_bytes = sum(session.size_bytes for session in run.sessions)
    for session in sorted(run.sessions, key=lambda one: (one.used_at, one.recording_id)):
        if total_bytes <= limit_bytes:
            return
        if not session.is_live and run.delete(session, "capacity"):
            total_bytes -= session.size_bytes


def _finish_deleting(root: Path) -> None:
    """Delete what an earlier run was killed while deleting."""
    for deleting in root.glob(f"{DELETING_PREFIX}*"):
        shutil.rmtree(deleting, ignore_errors=True)


def _report(run: _Cleanup) -> CleanupReport:
    by_reason = [deleted.reason for deleted in run.deleted]
    remaining_bytes = sum(session.size_bytes for session in run.sessions)
    return CleanupReport(
        status="ok",
        dry_run=run.is_dry,
        scanned=run.scanned,
        live=sum(session.is_live for session in run.sessions),
        deleted=len(run.deleted),
        deleted_expired=by_reason.count("expired"),
        deleted_capacity=by_reason.count("capacity"),
        deleted_orphans=by_reason.count("orphan"),
        recovered=run.recovered,
        remaining=len(run.sessions),
        remaining_size_mb=round(remaining_bytes / MEGABYTE, 2),
        sessions=tuple(run.deleted),
        errors=tuple(run.errors),
    )


class CleanupSchedule:
    """Runs soon after the start, after sessions have ended, and every hour."""

    def __init__(self, clean: Callable[[], CleanupReport]) -> None:
        self._clean = clean
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Run within a minute: a session has ended."""
        self._requested.set()

    async def run(self) -> None:
        """Clean up in a thread, repeatedly, until cancelled. The caller owns the task."""
        await asyncio.sleep(FIRST_RUN_S)
        while True:
            self._requested.clear()
            try:
                report = await asyncio.to_thread(self._clean)
            except Exception:  # whatever is wrong with one run, the disk needs the next one
                logger.exception("cleanup of recordings failed")
            else:
                level = logging.INFO if report.deleted or report.recovered else logging.DEBUG
                logger.log(level, "cleanup of recordings: %s", report.to_json())
            await asyncio.sleep(LEAST_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_PAUSE_S - LEAST_PAUSE_S):
                    await self._requested.wait()
