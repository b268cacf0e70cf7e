"""Sealed recordings in an object store: what goes there, when, and what a failure leaves."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from core.files import locked
from core.sums import file_sha256
from recording import bucket as bucket_module
from recording.bucket import (
    HOUR_S,
    SEAL_FILE,
    Bucket,
    BucketError,
    Unsealed,
    Uploader,
    open_store,
)
from recording.folder import RecordingLock, names_in, write_owner
from recording.listing import delete_recording
from recording.names import SEALED_FILE, recording_folder, recording_folders
from recording.records import Seal
from settings.recording import RecordingSettings
from tests.unit.recordings import Bench, end, listen, make_bench, record_duplex, speak

NEVER = 10**9


class FlakyBucket(Bucket):
    """Counts what is put, and fails when told."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(), "memory:")
        self.puts: list[str] = []  # written as ID/NAME
        self.fails_from = NEVER  # this put and all later ones
        self.is_away = False

    def put(self, recording_id: str, name: str, content: bytes | Path | Iterator[bytes]) -> None:
        if self.is_away or len(self.puts) >= self.fails_from:
            raise BucketError(errno.EIO, "away")
        self.puts.append(f"{recording_id}/{name}")
        super().put(recording_id, name, content)


def make(folder: Path, *names: str) -> Bench:
    bench = make_bench(folder)
    for name in names:
        end(record_duplex(bench, name, [listen(), speak("Yes.")]))
        write_owner(bench.folder(name), "secret")
    return bench


def uploader(bucket: Bucket, folder: Path) -> Uploader:
    return Uploader(bucket, folder, RecordingSettings(), "w0", clock=lambda: 5_000.0)


def sealed(bucket: Bucket, name: str) -> Seal:
    seal = bucket.seal(name)
    assert seal is not None
    return seal


def check_equal(bucket: Bucket, folder: Path) -> None:
    seal = sealed(bucket, folder.name)
    assert [one.name for one in seal.files] == names_in(folder)[0]
    assert bucket.has_all(folder.name, seal)
    for one in seal.files:
        assert bucket.read(folder.name, one.name) == (folder / one.name).read_bytes()
        assert one.sha256 == file_sha256(folder / one.name)


def test_a_recording_is_sealed_last_and_only_once(tmp_path: Path) -> None:
    bench, bucket = make(tmp_path, "a", "b"), FlakyBucket()
    assert uploader(bucket, tmp_path).scan()
    for name in "ab":
        check_equal(bucket, bench.folder(name))
        puts = [put for put in bucket.puts if put.startswith(f"{name}/")]
        assert puts[-1] == f"{name}/{SEAL_FILE}" and f"{name}/.owner" in puts
    seal = sealed(bucket, "a")
    assert (seal.worker, seal.version, seal.sealed_at.timestamp()) == ("w0", 1, 5_000)
    count = len(bucket.puts)
    assert uploader(bucket, tmp_path).scan() and len(bucket.puts) == count


def test_running_and_unfinished_recordings_are_not_sealed(tmp_path: Path) -> None:
    bench, bucket = make(tmp_path, "a", "b", "c"), FlakyBucket()
    lock = RecordingLock(bench.folder("a"))
    (bench.folder("b") / "meta.json").unlink()
    assert uploader(bucket, tmp_path).scan()
    assert bucket.list_folder()[0] == ["c"]
    lock.release()
    assert uploader(bucket, tmp_path).scan()
    check_equal(bucket, bench.folder("a"))


def test_unfinished_recordings_are_recovered_and_uploaded_within_an_hour(tmp_path: Path) -> None:
    bench, bucket, now = make(tmp_path, "a"), FlakyBucket(), 0.0
    (bench.folder("a") / "meta.json").unlink()  # as a full disk may leave it
    is_uploaded: list[bool] = []

    def wait(seconds: float) -> bool:
        nonlocal now
        now += HOUR_S / 2
        is_uploaded.append(bucket.seal("a") is not None)
        return len(is_uploaded) == 4

    seen = Uploader(bucket, tmp_path, RecordingSettings(), wait=wait, clock=lambda: now)
    seen.start()
    seen._thread.join(60)
    assert is_uploaded == [False, False, False, True]
    check_equal(bucket, bench.folder("a"))


@pytest.mark.parametrize("cut", [0, 1, 3, 6])
def test_an_interrupted_upload_is_repeated(tmp_path: Path, cut: int) -> None:
    bench, bucket = make(tmp_path, "a"), FlakyBucket()
    bucket.fails_from = cut
    assert not uploader(bucket, tmp_path).scan()
    assert bucket.seal("a") is None and not (bench.folder("a") / SEALED_FILE).exists()
    bucket.fails_from = NEVER
    assert uploader(bucket, tmp_path).scan()
    check_equal(bucket, bench.folder("a"))


def test_an_outage_of_the_store_only_delays_uploads(tmp_path: Path) -> None:
    bench, bucket, now = make(tmp_path, "a"), FlakyBucket(), 0.0
    pauses: list[float] = []
    bucket.is_away = True

    def wait(seconds: float) -> bool:
        nonlocal now
        now += seconds
        pauses.append(seconds)
        if len(pauses) == 3:
            make(tmp_path, "b")  # a talk ends while the store is away
        if now >= 60.0:
            bucket.is_away = False
        elif seconds and seen.unsealed.size_bytes == 0:
            raise AssertionError("the backlog is not counted")
        return bool(seconds) and not bucket.is_away and not seen.unsealed.count

    seen = Uploader(bucket, tmp_path, RecordingSettings(), wait=wait, clock=lambda: 2e9 + now)
    seen.start()
    seen._thread.join(60)
    assert not seen._thread.is_alive()
    assert pauses[:7] == [0, 1, 2, 4, 8, 16, 32] and pauses[-1] == bucket_module.SCAN_PERIOD_S
    for name in "ab":
        check_equal(bucket, bench.folder(name))
    assert seen.unsealed == Unsealed()


def test_unsealed_recordings_are_counted(tmp_path: Path) -> None:
    make(tmp_path, "a", "b")
    bucket = FlakyBucket()
    bucket.is_away = True
    late = Uploader(bucket, tmp_path, RecordingSettings(), clock=lambda: 1_935_990_000.0)
    assert not late.scan()
    assert late.unsealed.count == 2 and late.unsealed.size_bytes > 50_000
    assert late.unsealed.age_s > 0


def test_an_unreadable_recording_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, bucket = make(tmp_path, "a", "b"), FlakyBucket()

    def refuse(path: Path) -> str:
        if "/a/" in str(path):
            raise OSError(errno.EIO, "a broken sector")
        return file_sha256(path)

    monkeypatch.setattr(bucket_module, "file_sha256", refuse)
    assert not uploader(bucket, tmp_path).scan()
    assert bucket.seal("a") is None
    check_equal(bucket, bench.folder("b"))


def test_local_folders_are_removed_once_the_store_is_complete(tmp_path: Path) -> None:
    bench, bucket = make(tmp_path, "a", "b", "c", "d"), FlakyBucket()
    uploader(bucket, tmp_path).scan()
    lost = sealed(bucket, "b").files[0].name
    bucket.remove("b", [lost])
    bucket.remove("c", [SEAL_FILE])  # its owner has deleted it
    shutil.copytree(tmp_path, tmp_path / "before")
    early = Uploader(bucket, tmp_path, RecordingSettings(), clock=lambda: 5_000 + 24 * HOUR_S - 1)
    assert early.scan() and len(list(recording_folders(tmp_path))) == 4
    due = Uploader(bucket, tmp_path, RecordingSettings(), clock=lambda: 5_000 + 24 * HOUR_S)
    assert due.scan()
    assert [folder.name for folder in recording_folders(tmp_path)] == ["b"]
    assert due.scan(), "what the store has lost is sealed anew"
    check_equal(bucket, bench.folder("b"))


def test_another_store_receives_all_recordings(tmp_path: Path) -> None:
    bench, first, second = make(tmp_path, "a"), FlakyBucket(), FlakyBucket()
    second.url = "memory:other"
    assert uploader(first, tmp_path).scan() and uploader(second, tmp_path).scan()
    check_equal(second, bench.folder("a"))


def test_running_recordings_are_uploaded_without_a_seal(tmp_path: Path) -> None:
    bench, bucket, now = make(tmp_path, "a"), FlakyBucket(), 0.0
    lock = RecordingLock(bench.folder("a"))
    seen = Uploader(bucket, tmp_path, RecordingSettings(checkpoint_upload_s=30), clock=lambda: now)
    assert seen.scan() and bucket.puts == []
    now = 30.0
    assert seen.scan() and "a/events.jsonl" in bucket.puts
    puts = len(bucket.puts)
    (bench.folder("a") / "events.jsonl").open("ab").write(b"{}\n")
    now = 60.0
    assert seen.scan() and bucket.puts[puts:] == ["a/events.jsonl"]
    assert bucket.seal("a") is None
    lock.release()


@pytest.mark.parametrize("last", ["meta.json", SEAL_FILE])
def test_a_recording_deleted_while_it_is_uploaded_leaves_nothing(tmp_path: Path, last: str) -> None:
    bench = make(tmp_path, "a", "b")

    class DeletedMeanwhile(FlakyBucket):
        def put(
            self, recording_id: str, name: str, content: bytes | Path | Iterator[bytes]
        ) -> None:
            super().put(recording_id, name, content)
            if (recording_id, name) == ("a", last):  # by any process: a worker, a cleanup
                delete_recording(bench.folder("a"))

    bucket = DeletedMeanwhile()
    assert uploader(bucket, tmp_path).scan()
    assert f"a/{last}" in bucket.puts
    assert bucket.list_folder() == (["b"], set())
    check_equal(bucket, bench.folder("b"))
    assert [one.name for one in recording_folders(tmp_path)] == ["b"]


def test_a_running_recording_that_ends_and_is_deleted_while_it_is_uploaded_leaves_nothing(
    tmp_path: Path,
) -> None:
    bench, now = make(tmp_path, "a"), 0.0
    lock = RecordingLock(bench.folder("a"))

    class DeletedMeanwhile(FlakyBucket):
        def put(
            self, recording_id: str, name: str, content: bytes | Path | Iterator[bytes]
        ) -> None:
            if not self.puts:
                lock.release()
                delete_recording(bench.folder("a"))
            super().put(recording_id, name, b"sent before")

    bucket = DeletedMeanwhile()
    seen = Uploader(bucket, tmp_path, RecordingSettings(checkpoint_upload_s=30), clock=lambda: now)
    assert seen.scan() and bucket.puts == []
    now = 30.0
    assert seen.scan() and bucket.puts
    assert bucket.files("a") == {}


def test_workers_sharing_a_folder_have_one_uploader(tmp_path: Path) -> None:
    bench, bucket = make(tmp_path, "a"), FlakyBucket()
    waits = iter([False, True])
    second = Uploader(bucket, tmp_path, RecordingSettings(), wait=lambda _: next(waits))
    with locked(tmp_path / "sessions" / bucket_module.UPLOADER_LOCK, waits=False):
        second.start()
        second._thread.join(60)
        assert not bucket.puts
    third = Uploader(bucket, tmp_path, RecordingSettings(), wait=bool)
    third.start()
    third._thread.join(60)
    check_equal(bucket, bench.folder("a"))


def test_a_folder_can_be_the_store(tmp_path: Path) -> None:
    bench = make(tmp_path / "data", "a")
    url = (tmp_path / "store").as_uri()
    bucket = Bucket(open_store(url), url)
    assert uploader(bucket, tmp_path / "data").scan()
    check_equal(bucket, bench.folder("a"))
    stored = recording_folder(tmp_path / "store", "a")
    assert json.loads((stored / SEAL_FILE).read_text())["meta"]["session_id"] == "a"


def test_an_invalid_store_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="recording.store: "):
        open_store("nope://x")
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ValueError, match="package obstore: scripts/setup.sh store$"):
        open_store("s3://bucket")
