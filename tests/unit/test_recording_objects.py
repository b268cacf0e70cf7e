"""The recordings of an object store, and those that its workers have not uploaded yet."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from obstore.store import MemoryStore

from core.errors import NotFoundError, WorkerUnreachableError
from core.schemas.queue import RequestType
from core.store import Store
from recording.bucket import SEAL_FILE, Bucket, BucketError
from recording.listing import ListedRecording, RecordingPage
from recording.names import COMMENT_FILE, is_added
from recording.objects import ObjectStore, RunningRecordings
from recording.records import Meta, Seal

LIMIT_S = 120.0


def seal(bucket: Bucket, name: str) -> None:
    """Seal a recording without files."""
    began_at = datetime.now(UTC)
    meta = Meta(session_id=name, app_type=RequestType.CHAT, created_at=began_at)
    made = Seal(sealed_at=began_at, files=(), meta=meta)
    bucket.put(name, SEAL_FILE, made.to_json().encode())


def test_a_hanging_worker_blocks_only_one_reader() -> None:
    now_s, is_asked, may_answer = [0.0], threading.Event(), threading.Event()
    one = ListedRecording(id="a", created_at=datetime.now(UTC), bytes=1, is_running=True)
    page = RecordingPage(total=1, total_bytes=1, recordings=(one,)).to_json()

    def answer(_: httpx.Request) -> httpx.Response:
        if now_s[0]:
            is_asked.set()
            assert may_answer.wait(LIMIT_S)
        return httpx.Response(200, text=page)

    transport = httpx.MockTransport(answer)
    running = RunningRecordings(lambda: ["w:1"], transport=transport, clock=lambda: now_s[0])
    assert running.find("a") == one
    now_s[0] = 60.0
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(running.find, "a")
        assert is_asked.wait(LIMIT_S)
        try:
            assert threads.submit(running.find, "a").result(LIMIT_S / 2) == one
        finally:
            may_answer.set()
        assert first.result(LIMIT_S) == one
    running.close()


def test_what_was_uploaded_before_the_seal_is_deleted_too(tmp_path: Path) -> None:
    bucket = Bucket(MemoryStore(), "memory:")
    for name in ("user_audio/000.wav", ".owner", "comment.txt"):
        bucket.put("a", name, b"x")
    ObjectStore(bucket, RunningRecordings(list), Store(tmp_path)).delete("a")
    assert bucket.files("a") == {}


@pytest.mark.parametrize("is_film", [True, False])
def test_what_is_added_while_its_recording_is_deleted_leaves_nothing(
    tmp_path: Path, is_film: bool
) -> None:
    class DeletedMeanwhile(Bucket):
        def put(
            self, recording_id: str, name: str, content: bytes | Path | Iterator[bytes]
        ) -> None:
            if is_added(name):  # by another gateway, before the last byte is there
                self.delete(recording_id)
            super().put(recording_id, name, content)

    bucket = DeletedMeanwhile(MemoryStore(), "memory:")
    seal(bucket, "a")
    store = ObjectStore(bucket, RunningRecordings(list), Store(tmp_path))
    store.check("a")
    with pytest.raises(NotFoundError):
        if is_film:
            store.keep("a", "frontend_replay.webm", io.BytesIO(b"film"), replaces=set())
        else:
            store.write("a", COMMENT_FILE, b"Good.")
    assert bucket.files("a") == {}


def test_a_recording_is_found_while_it_is_sealed(tmp_path: Path) -> None:
    bucket = Bucket(MemoryStore(), "memory:")

    def answer(_: httpx.Request) -> httpx.Response:
        """Seal it, so that the worker does not list it any more."""
        seal(bucket, "a")
        return httpx.Response(
            200, text=RecordingPage(total=0, total_bytes=0, recordings=()).to_json()
        )

    for look in (lambda store: store.check("a"), lambda store: store.listed()[0]):
        bucket.remove("a", [SEAL_FILE])
        running = RunningRecordings(lambda: ["w:1"], transport=httpx.MockTransport(answer))
        look(ObjectStore(bucket, running, Store(tmp_path)))
        running.close()


@pytest.mark.parametrize("is_away", [True, False])
def test_a_deletion_that_fails_at_its_worker_fails(is_away: bool) -> None:
    one = ListedRecording(id="a", created_at=datetime.now(UTC), bytes=1)
    page = RecordingPage(total=1, total_bytes=1, recordings=(one,)).to_json()

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE" and request.url.host == "has-it":
            if is_away:
                raise httpx.ConnectError("away")
            return httpx.Response(500)
        return httpx.Response(200, text=page if request.url.host == "has-it" else "{}")

    workers = ["has-it:1", "other:1"]
    running = RunningRecordings(lambda: workers, transport=httpx.MockTransport(answer))
    with pytest.raises(WorkerUnreachableError):
        running.delete("a")
    assert running.find("a") == one
    running.close()


def test_a_workers_error_is_not_taken_for_a_file() -> None:
    one = ListedRecording(id="a", created_at=datetime.now(UTC), bytes=9, is_running=True)
    page = RecordingPage(total=1, total_bytes=9, recordings=(one,)).to_json()

    def answer(request: httpx.Request) -> httpx.Response:
        match request.url.path:
            case "/recordings":
                return httpx.Response(200, text=page)
            case "/recordings/a":
                return httpx.Response(200, text='{"sizes": {"events.jsonl": 9}}')
        return httpx.Response(500, text="It broke, and says so.")

    running = RunningRecordings(lambda: ["w:1"], transport=httpx.MockTransport(answer))
    [file] = running.files("a")
    with pytest.raises(BucketError, match="500"):
        list(file.blocks(0, 9))
    running.close()
