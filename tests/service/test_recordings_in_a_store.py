"""Recordings in an object store, through a gateway and a worker that share nothing but it."""

from __future__ import annotations

import asyncio
import errno
import io
import zipfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from config import Settings
from core.errors import NotFoundError
from core.schemas.queue import SESSION_SECRET_HEADER, RequestType
from core.serving import routes
from core.serving.fake_backend import FakeBackend
from core.store import Store
from gateway_modules import service
from recording.bucket import DELETING_FILE, SEAL_FILE, Bucket, BucketError, open_store
from recording.folder import RecordingLock, read_meta, write_meta, write_owner
from recording.names import SEALED_FILE
from recording.objects import ObjectStore, RunningRecordings
from recording.records import Status
from recording.store import files_in
from tests.fakes.gateway_stage import HURRY, Stage, settings_for, until
from tests.service import workers
from tests.service.test_gateway_sessions import WEBM
from tests.unit.recordings import Bench, end, listen, make_bench, record_duplex, speak

OWNER = {SESSION_SECRET_HEADER: "secret"}


@dataclass
class Site:
    """A gateway, a worker's disk, and the store between the two."""

    stage: Stage
    bench: Bench
    bucket: Bucket

    def seal_of(self, name: str) -> object:
        return self.bucket.seal(name)

    def is_away(self, name: str) -> bool:
        """Whether it is sealed in the store, and its worker knows it, which lists it until then."""
        local = self.bench.folder(name)
        return self.seal_of(name) is not None and (
            (local / SEALED_FILE).exists() or not local.exists()
        )


@asynccontextmanager
async def site(
    folder: Path, *names: str, at_gateway: dict[str, object] | None = None, **recording: object
) -> AsyncIterator[Site]:
    """Have a site for the block; the worker's disk holds these recordings when it starts."""
    url = (folder / "store").as_uri()
    keys = {"recording": {"store": url, **recording}}
    gateway_keys = {"recording": at_gateway or keys["recording"]}
    bench = make_bench(folder / "worker")
    for name in names:
        end(record_duplex(bench, name, [listen(), speak("Yes.")]))
        write_owner(bench.folder(name), "secret")
    worker_settings: Settings = workers.settings_for(folder / "worker", **keys)
    with workers.running_worker(worker_settings, FakeBackend) as worker:
        addresses = [f"127.0.0.1:{worker.port}"]
        stage = Stage(settings_for(folder / "gateway", **gateway_keys), 0, HURRY, addresses)
        await stage.start()
        try:
            found = Site(stage, bench, Bucket(open_store(url), url))
            await until(lambda: all(map(found.is_away, names)), "not sealed")
            yield found
        finally:
            await stage.stop()


def in_loop(test: Callable[[Path], Coroutine[object, object, None]]) -> Callable[[Path], None]:
    """Run an async test on a loop of its own."""

    def run(tmp_path: Path) -> None:
        asyncio.run(test(tmp_path))

    return run


@in_loop
async def test_sealed_recordings_read_as_on_disk(folder: Path) -> None:
    async with site(folder, "a", "b") as here:
        http, local = here.stage.http, here.bench.folder("a")
        page = (await http.get("/api/admin/recordings")).json()
        assert page["total"] == 2 and {one["id"] for one in page["recordings"]} == {"a", "b"}
        meta = read_meta(local)
        listed = next(one for one in page["recordings"] if one["id"] == "a")
        assert meta is not None and (listed["title"], listed["status"]) == (meta.title, "ready")
        assert (await http.get("/s/a")).status_code == 200
        url = "/api/sessions/a"
        assert (await http.get(url)).content == (local / "meta.json").read_bytes()
        recording = await http.get(f"{url}/recording")
        assert recording.content == (local / "recording.json").read_bytes()
        for file in files_in(local):
            whole, content = f"{url}/assets/{file.name}", (local / file.name).read_bytes()
            assert (await http.get(whole)).content == content
            part = await http.get(whole, headers={"Range": "bytes=3-40"})
            assert (part.status_code, part.content) == (206, content[3:41])
        archive = zipfile.ZipFile(io.BytesIO((await http.get(f"{url}/download")).content))
        assert archive.namelist() == [file.name for file in files_in(local)]
        for name in ("seal.json", ".owner", ".sealed", "none.wav", "ai_audio"):
            assert (await http.get(f"{url}/assets/{name}")).status_code == 404


@in_loop
async def test_an_unreachable_store_is_not_reported_as_an_internal_error(folder: Path) -> None:
    def refuse(*_: object) -> None:
        raise BucketError(errno.EIO, "connection refused")

    async with site(folder, "a") as here:
        http = here.stage.http
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Bucket, "read", refuse)
            patched.setattr(Bucket, "list_folder", refuse)
            for url in ("/api/sessions/a", "/s/a", "/api/admin/recordings"):
                answer = await http.get(url)
                assert (answer.status_code, answer.json()["code"]) == (502, "worker_unreachable")
                assert answer.json()["detail"].startswith("The recordings cannot be reached")
            answer = await http.get(
                "/s/a", headers={"Accept": "text/html", "Accept-Language": "en"}
            )
            assert answer.status_code == 502 and "Try again later" in answer.text
            assert answer.headers["content-type"].startswith("text/html")
        assert (await http.get("/api/sessions/a")).status_code == 200


@in_loop
async def test_only_owners_comment_upload_and_delete(folder: Path) -> None:
    async with site(folder, "a") as here:
        admin, stranger = here.stage.http, here.stage.http_client()
        url, file = "/api/sessions/a", {"file": ("x", WEBM, "video/webm")}
        async with stranger, here.stage.http_client(OWNER) as owner:
            for client, status in ((stranger, 403), (owner, 200), (admin, 200)):
                answer = await client.post(f"{url}/comment", json={"comment": "good"})
                assert answer.status_code == status
            assert (await stranger.delete(url)).status_code == 403
            answer = await owner.post(f"{url}/upload-recording", files=file)
            assert answer.json()["path"] == "frontend_replay.webm"
            assert (await stranger.get(f"{url}/comment")).json() == {"comment": "good"}
            assert (await stranger.get(url)).json()["browser_recording"] == "frontend_replay.webm"
            got = await stranger.get(f"{url}/assets/frontend_replay.webm")
            assert got.content == WEBM
            listed = (await admin.get("/api/admin/recordings")).json()["recordings"][0]
            assert listed["has_comment"] and listed["has_upload"]
            assert not list((folder / "gateway").rglob("*frontend_replay*")), "no copy is left"
            await owner.post(f"{url}/comment", json={"comment": ""})
            assert (await stranger.get(f"{url}/comment")).json() == {"comment": ""}
            assert (await owner.delete(url)).json() == {"success": True}
            assert (await owner.get(url)).status_code == 404
        assert here.bucket.list_folder() == ([], set())
        assert not here.bench.folder("a").exists(), "the worker's copy is deleted too"


@in_loop
async def test_a_running_recording_is_read_from_its_worker(folder: Path) -> None:
    async with site(folder) as here:
        end(record_duplex(here.bench, "a", [listen()]))
        local, http, url = here.bench.folder("a"), here.stage.http, "/api/sessions/a"
        lock = RecordingLock(local)
        meta = read_meta(local)
        assert meta is not None
        running = {"status": Status.RECORDING, "app_type": RequestType.STREAMING}
        write_meta(local, meta.model_copy(update=running))
        write_owner(local, "secret")
        if here.seal_of("a"):  # the worker was faster than the lock
            here.bucket.remove("a", [SEAL_FILE])
            (local / ".sealed").unlink()
        await asyncio.sleep(0.3)  # what was not there a moment ago may be remembered so long
        assert (await http.get(url)).json()["status"] == "recording"
        content = (local / "recording.json").read_bytes()
        assert (await http.get(f"{url}/recording")).content == content
        name = files_in(local)[-1].name
        part = await http.get(f"{url}/assets/{name}", headers={"Range": "bytes=2-9"})
        assert (part.status_code, part.content) == (206, (local / name).read_bytes()[2:10])
        (listed,) = (await http.get("/api/admin/recordings")).json()["recordings"]
        assert listed["is_running"]
        answer = await http.delete(url)
        assert (answer.status_code, answer.json()["code"]) == (409, "session_in_use")
        (local / "diagnostics.jsonl").write_bytes(b"{}\n")
        async with here.stage.http_client(OWNER) as owner:
            assert (await owner.post(f"{url}/comment", json={"comment": "now"})).is_success
        archive = zipfile.ZipFile(io.BytesIO((await http.get(f"{url}/download")).content))
        assert archive.read("comment.txt") == b"now" and archive.read(name)
        write_meta(local, meta)
        lock.release()
        await until(lambda: here.seal_of("a"), "it is not sealed")
        assert (await http.get(f"{url}/comment")).json() == {"comment": "now"}
        assert (await http.get(f"{url}/assets/diagnostics.jsonl")).content == b"{}\n"


@in_loop
async def test_cleanup_deletes_the_seal_first_and_finishes_deletions(
    folder: Path,
) -> None:
    async with site(folder, "a", "b", "c", keep_local_h=0) as here:
        store, bucket = here.stage.gateway.recordings, here.bucket
        bucket.put("b", DELETING_FILE, b"")  # cut short after its seal
        bucket.remove("b", [SEAL_FILE])
        bucket.put("d", "events.jsonl", b"{}")  # a machine that never came back
        page = (await here.stage.http.get("/api/admin/recordings")).json()
        assert {one["id"] for one in page["recordings"]} >= {"a", "c"}
        done = await asyncio.to_thread(store.clean, 36_500, -1)
        assert (done.deleted, done.remaining) == (0, 2)
        assert set(bucket.list_folder()[0]) == {"a", "c", "d"}
        size_gb = page["total_bytes"] / 1e9
        dry = await asyncio.to_thread(lambda: store.clean(-1, size_gb / 2, dry_run=True))
        assert dry.deleted == 1 and set(bucket.list_folder()[0]) == {"a", "c", "d"}
        age_days = timedelta(microseconds=1) / timedelta(days=1)
        done = await asyncio.to_thread(store.clean, age_days, -1)
        assert done.remaining == 2, "they began in a year to come"
        assert set(bucket.list_folder()[0]) == {"a", "c"}, "nobody has sealed d for as long"
        done = await asyncio.to_thread(store.clean, -1, size_gb / 2)
        assert (done.deleted, done.remaining) == (1, 1)
        (left,) = bucket.list_folder()[0]
        assert here.seal_of(left)


def test_media_are_redirected_to_signed_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = "https://store.test/{}?signature=1"
    folder_store = open_store((tmp_path / "store").as_uri())
    monkeypatch.setattr(service, "open_store", lambda _: folder_store)
    monkeypatch.setattr(Bucket, "signed_url", lambda _, *names: signed.format("/".join(names)))
    direct = {"store": "s3://talks/live", "direct": True}

    async def check() -> None:
        async with site(tmp_path, "a", at_gateway=direct) as here:
            http, url = here.stage.http, "/api/sessions/a/assets"
            sent = await http.get(f"{url}/user_audio/000.wav", headers={"Range": "bytes=0-3"})
            assert sent.status_code == 302 and sent.headers["cache-control"] == "no-store"
            assert sent.headers["location"] == signed.format("a/user_audio/000.wav")
            assert (await http.head(f"{url}/user_audio/000.wav")).status_code == 200
            assert (await http.get(f"{url}/events.jsonl")).status_code == 200
            for gone in (f"{url}/user_audio/999.wav", f"{url}/.owner", f"{url[:-8]}b/assets/x.wav"):
                assert (await http.get(gone)).status_code == 404
            assert (await http.get("/api/sessions/a/download")).status_code == 200
            policy = (await http.get("/s/a")).headers["content-security-policy"]
            rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
            opened = {name for name, places in rules.items() if "https://store.test" in places}
            assert opened == {"connect-src", "img-src", "media-src"}
            assert "store.test" in (await http.get("/admin")).headers["content-security-policy"]

    asyncio.run(check())


def test_signed_urls_are_valid_for_an_hour_and_need_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://s3.test:444")
    bucket = Bucket(open_store("s3://talks/live"), "s3://talks/live")
    url = urlsplit(bucket.signed_url("a", "x y.wav"))
    assert (url.netloc, url.path) == ("s3.test:444", "/talks/live/sessions/a/x%20y.wav")
    assert parse_qs(url.query)["X-Amz-Expires"] == ["3600"]
    state = Store(tmp_path)
    running = RunningRecordings(list)
    store = ObjectStore(bucket, running, state, is_direct=True)
    assert store.media_origin == "https://s3.test:444"

    def refuse(*_: object) -> str:
        raise BucketError(errno.EIO, "no key")

    monkeypatch.setattr(Bucket, "signed_url", refuse)
    with pytest.raises(ValueError, match="recording.direct: URLs cannot be signed: no key"):
        ObjectStore(bucket, running, state, is_direct=True)


@pytest.mark.parametrize("url", ["", "file:///srv/recordings"])
def test_signed_urls_need_a_store_that_supports_them(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="direct needs a store that signs URLs"):
        settings_for(tmp_path, recording={"store": url, "direct": True})


@pytest.mark.parametrize("url", ["ftp://x", "bucket", "S3://x"])
def test_other_places_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="recording"):
        settings_for(tmp_path, recording={"store": url})


@in_loop
async def test_what_another_worker_of_the_folder_has_deleted_is_not_found(folder: Path) -> None:
    with pytest.raises(NotFoundError):
        await routes.delete(folder / "a")
