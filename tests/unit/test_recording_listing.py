"""The list of recordings: order, sizes, what changes while one looks."""

from __future__ import annotations

import errno
import io
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from core.errors import NotFoundError
from core.schemas.queue import RequestType
from core.store import Store
from recording.folder import RecordingLock, folder_size_bytes, write_meta
from recording.listing import (
    Order,
    RecordingPage,
    delete_recording,
    forget_accesses,
    last_accesses,
    page_of,
    touch_access,
)
from recording.names import recording_folder
from recording.records import Meta, Status
from recording.store import FolderStore

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


class Folders(FolderStore):
    """A data folder's recordings by pages."""

    def page(self, offset: int, limit: int, order: Order = Order.NEWEST) -> RecordingPage:
        return page_of(self.listed(), offset, limit, order)


def record(
    data_dir: Path, name: str, *, day: int = 0, size: int = 100, duration_s: float = 1
) -> Path:
    folder = recording_folder(data_dir, name)
    folder.mkdir(parents=True)
    (folder / "recording.json").write_bytes(b" " * size)
    meta = Meta(
        session_id=name,
        app_type=RequestType.OMNI_DUPLEX,
        created_at=BEGAN + timedelta(days=day),
        duration_s=duration_s,
        status=Status.READY,
        size_bytes=size,
    )
    write_meta(folder, meta)
    return folder


def test_an_empty_or_missing_folder_lists_nothing(tmp_path: Path) -> None:
    page = Folders(tmp_path).page(0, 10)
    assert (page.total, page.total_bytes, page.recordings) == (0, 0, ())


@pytest.mark.parametrize(
    ("order", "names"),
    [
        (Order.NEWEST, ["c", "b", "a"]),
        (Order.OLDEST, ["a", "b", "c"]),
        (Order.LARGEST, ["b", "a", "c"]),
        (Order.LONGEST, ["a", "c", "b"]),
    ],
)
def test_lists_are_sorted_as_requested(tmp_path: Path, order: Order, names: list[str]) -> None:
    record(tmp_path, "a", day=0, size=200, duration_s=9)
    record(tmp_path, "b", day=1, size=300, duration_s=1)
    record(tmp_path, "c", day=2, size=100, duration_s=5)
    listed = Folders(tmp_path)
    assert [one.id for one in listed.page(0, 10, order).recordings] == names
    part = listed.page(1, 1, order)
    assert [one.id for one in part.recordings] == names[1:2]
    assert (part.total, part.total_bytes) == (3, folder_size_bytes(tmp_path / "sessions"))
    assert listed.page(5, 1).recordings == ()


def test_new_comments_and_uploads_are_listed(tmp_path: Path) -> None:
    folder = record(tmp_path, "a")
    listed = Folders(tmp_path)
    (one,) = listed.page(0, 1).recordings
    assert (one.has_comment, one.has_upload) == (False, False)
    (folder / "comment.txt").write_text("Good.")
    (folder / "frontend_replay.webm").write_bytes(b"x")
    (one,) = listed.page(0, 1).recordings
    assert (one.has_comment, one.has_upload) == (True, True)
    assert one.bytes == folder_size_bytes(folder)


def test_a_running_recording_is_measured_each_time(tmp_path: Path) -> None:
    folder = record(tmp_path, "a", size=100)
    lock = RecordingLock(folder)
    listed = Folders(tmp_path)
    before = listed.page(0, 1)
    (folder / "more").write_bytes(b" " * 5_000)
    after = listed.page(0, 1)
    assert before.recordings[0].is_running
    assert after.total_bytes == before.total_bytes + 5_000
    lock.release()
    assert not listed.page(0, 1).recordings[0].is_running


def test_a_recording_without_metadata_is_listed(tmp_path: Path) -> None:
    folder = recording_folder(tmp_path, "lost")
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_bytes(b"x" * 10)
    (one,) = Folders(tmp_path).page(0, 1).recordings
    assert (one.id, one.app_type, one.bytes, one.status) == ("lost", None, 10, None)


def test_deleted_recordings_leave_the_list(tmp_path: Path) -> None:
    folder = record(tmp_path, "a")
    listed = Folders(tmp_path)
    assert listed.page(0, 1).total == 1
    folder.rename(folder.with_name(".deleting-a"))
    assert listed.page(0, 1).total == 0


def test_what_another_request_has_deleted_is_not_found(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    with pytest.raises(NotFoundError):
        folders.delete("gone")
    with pytest.raises(NotFoundError):
        folders.keep("gone", "frontend_replay.webm", io.BytesIO(b"film"), replaces=set())
    record(tmp_path, "kept")
    with pytest.raises(NotFoundError):
        folders.write("gone", "comment.txt", b"Good.")
    assert [one.id for one in folders.listed()] == ["kept"]


@pytest.mark.parametrize("scans", [0, 1])
def test_the_files_of_a_recording_deleted_during_the_scan_are_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: int
) -> None:
    folders, folder = Folders(tmp_path), record(tmp_path, "a")
    (folder / "user_audio").mkdir()
    (folder / "user_audio" / "000.wav").write_bytes(b"sound")
    names = [one.name for one in folders.files("a")]
    assert names == ["meta.json", "recording.json", "user_audio/000.wav"]
    scan, left = os.scandir, scans

    def scan_once_deleted(path: str) -> Any:
        nonlocal left
        if left == 0 and folder.exists():
            delete_recording(folder)
        left -= 1
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_once_deleted)
    with pytest.raises(NotFoundError):
        folders.files("a")


def test_accesses_are_not_recorded_in_a_read_only_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)

    def refuse(_: Store) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Store, "transaction", refuse)
    touch_access(store, "a")
    forget_accesses(store, {"a"})


def test_an_access_is_recorded_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, noted = Store(tmp_path), []
    for at_s in (100.0, 130.0, 161.0):
        monkeypatch.setattr(time, "time", lambda at_s=at_s: at_s)
        touch_access(store, "a")
        noted.append(last_accesses(store)["a"].timestamp())
    assert noted == [100.0, 100.0, 161.0]
