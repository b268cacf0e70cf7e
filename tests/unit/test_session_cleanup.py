"""Which recordings go, in which order, and which never do."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

import session_cleanup
from core.errors import SessionInUseError
from core.store import Store
from recording import listing, names
from recording.folder import GIGABYTE, RecordingLock, folder_size_bytes, read_meta, write_meta
from recording.listing import CleanupReport, cleanup_sessions, delete_recording
from recording.records import Meta, SessionLine, Status, encode_line
from recording.store import CleanupSchedule
from tests.fakes.virtual_time import in_virtual_time

NOW = datetime(2031, 6, 1, tzinfo=UTC)
BODY_BYTES = 100_000


def ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


def make(
    data_dir: Path,
    name: str,
    *,
    created: float,
    ended: float | None = None,
    seen: float | None = None,
) -> Path:
    """Make a recording of about 100 kB; ages in days."""
    ended = created if ended is None else ended
    folder = names.recording_folder(data_dir, name)
    (folder / names.USER_AUDIO).mkdir(parents=True)
    (folder / "user_audio/000.wav").write_bytes(bytes(BODY_BYTES))
    meta = Meta(
        session_id=name,
        app_type="chat",
        created_at=ago(created),
        ended_at=ago(ended),
        duration_s=(created - ended) * 86_400,
        status=Status.READY,
        size_bytes=BODY_BYTES,
    )
    write_meta(folder, meta)
    (folder / names.RECORDING_FILE).touch()
    if seen is not None:
        look_at(data_dir, name, seen)
    return folder


def look_at(data_dir: Path, name: str, days: float) -> None:
    with Store(data_dir).transaction() as state:
        state.execute("REPLACE INTO accesses VALUES (?, ?)", (name, ago(days).timestamp()))


def age(folder: Path, days: float) -> None:
    """Let a folder look as if nothing was written to it since."""
    at_s = ago(days).timestamp()
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (at_s, at_s))


def left(data_dir: Path) -> list[str]:
    return [folder.name for folder in names.recording_folders(data_dir)]


def room_for(data_dir: Path, count: float) -> float:
    one = folder_size_bytes(next(names.recording_folders(data_dir)))
    return count * one / GIGABYTE


def clean(
    data_dir: Path, days: float = -1, gib: float = -1, *, dry_run: bool = False
) -> CleanupReport:
    return cleanup_sessions(data_dir, days, gib, dry_run=dry_run, now=NOW)


def gone(report: CleanupReport) -> list[tuple[str, str]]:
    return [(session.session_id, session.reason) for session in report.sessions]


def test_without_limits_only_recovery_is_done(tmp_path: Path) -> None:
    make(tmp_path, "old", created=9_999)
    for days, gib in ((-1, -1), (0, 0), (-1, 0)):
        assert clean(tmp_path, days, gib) == CleanupReport(status="skipped")
    assert left(tmp_path) == ["old"]
    assert clean(tmp_path / "none", 1).scanned == 0


def test_recordings_older_than_the_limit_are_deleted(tmp_path: Path) -> None:
    make(tmp_path, "a_old", created=31, seen=0)  # looking at it does not make it younger
    make(tmp_path, "b_young", created=29)
    report = clean(tmp_path, days=30)
    assert left(tmp_path) == ["b_young"]
    assert gone(report) == [("a_old", "expired")]
    counts = (report.status, report.scanned, report.deleted, report.deleted_expired)
    assert counts == ("ok", 2, 1, 1)
    assert (report.remaining, report.remaining_size_mb, report.errors) == (1, 0.1, ())


def test_the_least_recently_used_are_deleted_until_the_rest_fits(tmp_path: Path) -> None:
    make(tmp_path, "a", created=50, seen=1)  # old, but somebody looked at it
    make(tmp_path, "b", created=40, ended=5)  # a long one that ended lately
    make(tmp_path, "c", created=30)
    make(tmp_path, "d", created=20, seen=10)
    make(tmp_path, "e", created=2)
    report = clean(tmp_path, gib=room_for(tmp_path, 3.1))
    assert gone(report) == [("c", "capacity"), ("d", "capacity")]
    assert left(tmp_path) == ["a", "b", "e"]
    assert report.deleted_capacity == 2
    assert clean(tmp_path, gib=room_for(tmp_path, 3.1)).deleted == 0


def test_age_is_applied_before_size(tmp_path: Path) -> None:
    make(tmp_path, "used_but_old", created=31, seen=0)
    make(tmp_path, "unused", created=29)
    make(tmp_path, "used", created=29, seen=1)
    report = clean(tmp_path, days=30, gib=room_for(tmp_path, 1.1))
    assert gone(report) == [("used_but_old", "expired"), ("unused", "capacity")]


def test_an_accessed_recording_is_retained(tmp_path: Path) -> None:
    folders = [make(tmp_path, name, created=days) for name, days in (("a", 9), ("b", 8), ("c", 7))]
    before = (folders[0] / names.META_FILE).read_bytes()
    look_at(tmp_path, folders[0].name, 1)
    assert (folders[0] / names.META_FILE).read_bytes() == before, "looking rewrites nothing"
    assert gone(clean(tmp_path, gib=room_for(tmp_path, 2.1))) == [("b", "capacity")]


def test_a_recording_being_written_is_never_deleted(tmp_path: Path) -> None:
    folder = make(tmp_path, "live", created=999)
    age(folder, 999)
    lock = RecordingLock(folder)
    make(tmp_path, "new", created=0)
    report = clean(tmp_path, days=1, gib=1e-9)
    assert left(tmp_path) == ["live"]
    assert (report.live, report.remaining) == (1, 1)
    with pytest.raises(SessionInUseError):
        delete_recording(folder)
    lock.release()
    assert gone(clean(tmp_path, days=1)) == [("live", "expired")]


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    make(tmp_path, "a", created=99)
    make(tmp_path, "b", created=9)
    make(tmp_path, "c", created=8)
    stray = names.recording_folder(tmp_path, "stray")
    stray.mkdir()
    age(stray, 2)
    gib = room_for(tmp_path, 1.1)
    before = sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
    dry = clean(tmp_path, 30, gib, dry_run=True)
    assert before == sorted(path.stat().st_mtime_ns for path in tmp_path.rglob("*"))
    wet = clean(tmp_path, 30, gib)
    assert dry.dry_run and dry.deleted == 3
    assert dry.model_copy(update={"dry_run": False}) == wet


def test_other_folders_are_deleted_after_a_day(tmp_path: Path) -> None:
    root = tmp_path / names.SESSIONS_FOLDER
    for name, days in (("empty_old", 2.0), ("empty_new", 0.5)):
        folder = root / name
        folder.mkdir(parents=True)
        (folder / "junk").write_bytes(bytes(10))
        age(folder, days)
    crashed = root / "crashed"
    crashed.mkdir()
    line = SessionLine(session_id="crashed", app_type="chat", start_ts=ago(2))
    (crashed / names.TIMELINE_FILE).write_bytes(encode_line(line))
    age(crashed, 2)
    report = clean(tmp_path, days=30)
    assert gone(report) == [("empty_old", "orphan")]
    assert (report.deleted_orphans, report.recovered) == (1, 1)
    assert left(tmp_path) == ["crashed", "empty_new"]
    meta = read_meta(crashed)
    assert meta is not None and meta.created_at == ago(2)


def test_a_recording_whose_meta_is_damaged_is_recovered(tmp_path: Path) -> None:
    folder = make(tmp_path, "torn", created=5)
    (folder / names.META_FILE).write_text('{"session_id": ')
    age(folder, 5)
    assert clean(tmp_path, days=30).recovered == 1
    meta = read_meta(folder)
    assert meta is not None and meta.created_at == ago(5)


def test_symlinks_and_foreign_names_are_ignored(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.copytree(make(tmp_path, "mine", created=1), outside)
    age(outside, 99)
    root = tmp_path / names.SESSIONS_FOLDER
    (root / "link").symlink_to(outside)
    (root / "not a recording").mkdir()
    (root / "file").write_text("x")
    assert clean(tmp_path, days=0.5).scanned == 1
    assert outside.exists() and (root / "link").exists() and (root / "not a recording").exists()


def test_a_failed_deletion_is_reported_and_the_cleanup_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        make(tmp_path, name, created=99)
    real = listing.delete_recording

    def delete(folder: Path) -> None:
        if folder.name == "b":
            raise PermissionError(13, "Permission denied")
        real(folder)

    monkeypatch.setattr(listing, "delete_recording", delete)
    report = clean(tmp_path, days=30)
    assert [(error.session_id, error.message) for error in report.errors] == [
        ("b", "Permission denied")
    ]
    assert left(tmp_path) == ["b"] and (report.deleted, report.remaining) == (2, 1)


@pytest.mark.parametrize("days", [30, -1])
def test_an_interrupted_deletion_is_completed_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: float
) -> None:
    folder = make(tmp_path, "half", created=99)

    def die(path: Path) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", die)
        with pytest.raises(OSError, match="killed"):
            delete_recording(folder)
    assert left(tmp_path) == [], "half a recording is never seen"
    clean(tmp_path, days)
    assert list((tmp_path / names.SESSIONS_FOLDER).iterdir()) == []


def test_a_deletion_that_a_cleanup_completes_meanwhile_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rmtree = make(tmp_path, "both", created=99), shutil.rmtree

    def overtaken(path: Path) -> None:
        rmtree(path)
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", overtaken)
    delete_recording(folder)
    assert list((tmp_path / names.SESSIONS_FOLDER).iterdir()) == []


def test_unfinished_recordings_are_recovered_first(tmp_path: Path) -> None:
    folder = names.recording_folder(tmp_path, "left")
    folder.mkdir(parents=True)
    line = SessionLine(session_id="left", app_type="chat", start_ts=ago(0.01))
    (folder / names.TIMELINE_FILE).write_bytes(encode_line(line))
    lock = RecordingLock(folder)
    assert clean(tmp_path, days=30).recovered == 0, "it is still being written"
    lock.release()
    assert clean(tmp_path).recovered == 1, "also where nothing is ever deleted"
    meta = read_meta(folder)
    assert meta is not None and meta.is_over
    assert clean(tmp_path, days=30).recovered == 0


@pytest.mark.parametrize("days", [-1, 30])
def test_what_a_crash_left_of_an_upload_is_removed_after_a_day(tmp_path: Path, days: float) -> None:
    folder = make(tmp_path, "done", created=5)
    kept = sorted(folder.iterdir())
    cut_off, running = folder / ".frontend_replay.webm.a.tmp", folder / ".comment.txt.b.tmp"
    for path, age_days in ((cut_off, 1.1), (running, 0.9)):
        path.touch()
        age(path, age_days)
    clean(tmp_path, days, dry_run=True)
    assert cut_off.exists()
    clean(tmp_path, days)
    assert sorted(folder.iterdir()) == sorted([*kept, running])


# In the background


@in_virtual_time
async def test_the_background_cleanup_runs_soon_after_endings_and_every_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, runs = asyncio.get_running_loop(), []
    failures = [OSError("no such device"), OverflowError("date value out of range")]

    def clean_up() -> CleanupReport:
        runs.append(loop.time())
        if failures:  # no run may be the last one
            raise failures.pop()
        return CleanupReport(status="ok")

    async def at_once(work: Callable[[], CleanupReport]) -> CleanupReport:
        return work()

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    cleanup_schedule = CleanupSchedule(clean_up)
    task = asyncio.create_task(cleanup_schedule.run())
    await asyncio.sleep(3_670)
    for _ in range(5):  # they end together
        cleanup_schedule.request()
    await asyncio.sleep(3_670)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert runs == [60, 3_660, 3_720, 7_320]


# The command line


def run(*arguments: str) -> tuple[int, str]:
    app = Typer()
    app.command()(session_cleanup.main)
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    return done.exit_code, done.output


def test_the_command_line_deletes_and_reports(tmp_path: Path) -> None:
    make(tmp_path, "ancient", created=99_999)
    where = ("--data-dir", str(tmp_path))
    code, text = run(*where, "--dry-run")
    assert code == 0 and "ancient" in text and "1 of 1 recordings would be deleted" in text
    assert left(tmp_path) == ["ancient"]
    assert "There is no limit" in run(*where, "--retention-days", "-1", "--max-gb", "-1")[1]
    code, text = run(*where, "--retention-days", "-1", "--max-storage-gb", "0.00000001")
    assert code == 0 and "1 of 1 recordings deleted" in text
    assert run(*where, "--retention-days", "1e308")[0] == 2
    assert left(tmp_path) == []


def test_the_command_line_applies_the_configured_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "old", created=5_000)
    monkeypatch.setenv("OMNI_SERVICE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("OMNI_RECORDING_SESSION_RETENTION_DAYS", "36500")
    assert "0 of 1 recordings would be deleted" in run("--dry-run")[1]
    monkeypatch.setenv("OMNI_RECORDING_SESSION_RETENTION_DAYS", "5")
    assert "1 of 1 recordings would be deleted" in run("--dry-run")[1]


def test_the_command_line_fails_when_something_could_not_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "stuck", created=99_999)

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(listing, "delete_recording", refuse)
    code, text = run("--data-dir", str(tmp_path), "--max-gb", "-1")
    assert code == 1 and "stuck: Permission denied" in text
