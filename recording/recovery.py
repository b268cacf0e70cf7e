"""Ends a recording on disk: after its session, or in place of a process that was killed.

Needs only the folder. Doing it twice, or being killed while doing it, loses nothing.
"""

from __future__ import annotations

import contextlib
import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from core.errors import SessionInUseError
from core.files import UNFINISHED_SUFFIX, locked_folder
from recording.build import Identity, build_recording, identify, length
from recording.folder import (
    content_size_bytes,
    is_live,
    newest_change_s,
    read_meta,
    read_recording,
    remove_lock,
    write_meta,
    write_recording,
)
from recording.names import (
    COMMENT_FILE,
    LOCK_FILE,
    META_FILE,
    RECORDING_FILE,
    SESSIONS_FOLDER,
    TIMELINE_FILE,
    recording_folders,
)
from recording.records import EndReason, Meta, Status
from recording.timeline import EndLine, Timeline, read_timeline

logger: Final = logging.getLogger(__name__)

KILLED_TEXT: Final = "The program writing it ended before the session did."


def write_results(folder: Path) -> Meta:
    """Write `recording.json`, then `meta.json` with status finalizing, which is returned.

    No other writer may be active. After an OSError what was there before is kept.
    """
    timeline = read_timeline(folder / TIMELINE_FILE)
    before, written = read_meta(folder), read_recording(folder)
    identity = identify(folder, timeline, before, written)
    if written is not None:  # a damaged timeline must not undo what an undamaged one gave
        timeline.complete_from(written)
    built = build_recording(folder, timeline, identity)
    if written is not None and built.merged_replay is not None:
        known = {"merged_replay_timing": written.merged_replay_timing}
        built = built.model_copy(update=known)
    write_recording(folder, built)
    meta = _meta(folder, timeline, identity, before)
    write_meta(folder, meta)
    return meta


def write_checkpoint(folder: Path) -> None:
    """Write `recording.json` as it would be now; no file may be added to meanwhile."""
    timeline = read_timeline(folder / TIMELINE_FILE)
    identity = identify(folder, timeline, read_meta(folder), None)
    write_recording(folder, build_recording(folder, timeline, identity))


def mark_ready(folder: Path) -> Meta | None:
    """Set the final status and size; return `meta.json`, None if there is none to read.

    The status becomes failed where there is nothing to show though the session was cut off.
    """
    _remove_unfinished(folder)
    meta = read_meta(folder)
    if meta is not None:
        is_lost = meta.problem is not None and not length(read_recording(folder))
        known = {
            "status": Status.FAILED if is_lost else Status.READY,
            "size_bytes": content_size_bytes(folder),
        }
        meta = meta.model_copy(update=known)
        write_meta(folder, meta)
    return meta


def needs_recovery(folder: Path) -> bool:
    """Whether a folder holds an unfinished recording that nothing writes any more."""
    if not any((folder / name).exists() for name in (TIMELINE_FILE, META_FILE, LOCK_FILE)):
        return False
    meta = read_meta(folder)
    is_complete = meta is not None and meta.is_over and (folder / RECORDING_FILE).exists()
    return not is_complete and not is_live(folder)


def recover_session(folder: Path) -> Meta:
    """Make a recording readable whose process was killed at any moment.

    Reads what is whole of the timeline and of the media files, repairs truncated audio, and writes
    `recording.json` and `meta.json` anew. A recording that is whole comes out as it was.

    Raises:
        SessionInUseError: It is still being written.
        OSError: The folder cannot be read, or the disk is full.
    """
    if is_live(folder):
        raise SessionInUseError("This recording is still being written.")
    remove_lock(folder)
    meta = write_results(folder)
    return mark_ready(folder) or meta


def recover_all(data_dir: Path | str) -> list[str]:
    """Recover every recording that a killed process or a full disk left behind; return their ids.

    A worker calls this when it starts, in a thread; a cleanup does it too. Others wait meanwhile.
    One that cannot be read or written is logged and skipped.
    """
    place = Path(data_dir) / SESSIONS_FOLDER
    recovered: list[str] = []
    if not place.is_dir():
        return recovered
    with locked_folder(place):
        for folder in filter(needs_recovery, recording_folders(data_dir)):
            try:
                recover_session(folder)
            except (OSError, SessionInUseError) as error:
                logger.warning("recording %s could not be recovered: %s", folder.name, error)
            else:
                recovered.append(folder.name)
    return recovered


def _meta(folder: Path, timeline: Timeline, identity: Identity, before: Meta | None) -> Meta:
    created = identity.start_ts
    end = timeline.end or _known_end(before) or _presumed_end(folder, created)
    return Meta(
        session_id=identity.session_id,
        app_type=identity.app_type,
        created_at=created,
        ended_at=end.ended_at,
        duration_s=end.duration_s,
        worker_id=identity.worker_id,
        title=title_of(created),
        config=identity.config,
        end_reason=end.end_reason,
        status=Status.FINALIZING,
        problem=end.problem,
        files_left_out=end.files_left_out,
    )


def _known_end(meta: Meta | None) -> EndLine | None:
    """Return the end recorded in an earlier `meta.json`, if the timeline has lost it."""
    if meta is None or meta.ended_at is None or meta.duration_s is None:
        return None
    return EndLine(
        end_reason=meta.end_reason or EndReason.ERROR,
        ended_at=meta.ended_at,
        duration_s=meta.duration_s,
        problem=meta.problem,
        files_left_out=meta.files_left_out,
    )


def _presumed_end(folder: Path, created: datetime) -> EndLine:
    """Take the last write for the end of a session whose process was killed."""
    last_s = newest_change_s(folder)
    with contextlib.suppress(OSError):
        last_s = (folder / TIMELINE_FILE).stat().st_mtime
    ended_at = max(created, datetime.fromtimestamp(last_s, UTC))
    duration_s = (ended_at - created).total_seconds()
    return EndLine(
        end_reason=EndReason.ERROR, ended_at=ended_at, duration_s=duration_s, problem=KILLED_TEXT
    )


def title_of(created: datetime) -> str:
    """Month, day and time, UTC."""
    return f"{created.astimezone(UTC):%m-%d %H:%M}"


def _remove_unfinished(folder: Path) -> None:
    """Remove what a recorder or its replay left; a comment may just be uploading."""
    for path in folder.rglob(f".*{UNFINISHED_SUFFIX}"):
        if not path.name.startswith(f".{COMMENT_FILE}"):
            with contextlib.suppress(OSError):
                path.unlink()
