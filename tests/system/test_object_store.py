"""Recordings of two workers in an object store over HTTP, with one worker killed as it uploads."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.launched import free_ports, wait_until
from launcher.processes import bound_command
from recording.bucket import Bucket, open_store
from recording.folder import names_in
from recording.names import recording_folders
from recording.store import files_in
from tests.source_tree import ROOT
from tests.system.client import RATE_HZ, DuplexClient

pytest.importorskip("moto", reason="needs the extra stores")
pytestmark = pytest.mark.matrix

TALKS = 50
AT_ONCE = 8
HOST = "127.0.0.1"
LIMIT_S = 300.0  # ends a test that hangs
POLL_S = 0.5  # each poll lists every recording of the store, which delays uploads
TOKEN = "a-token-of-the-test"
STORE = "s3://talks/live"


class Site:
    """An S3 server, two workers with folders of their own, and a gateway; all are programs."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        first = free_ports(4)
        self.s3, self.gateway, *self.workers = range(first, first + 4)
        self.environment = os.environ | {
            "AWS_ENDPOINT_URL": f"http://{HOST}:{self.s3}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "OMNI_RECORDING_STORE": STORE,
            "OMNI_SECURITY_ADMIN_TOKEN": TOKEN,
        }
        (folder / "config.json").write_text(json.dumps({"logging": {"level": "WARNING"}}))

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Start a program; it is killed at the end."""
        environment = self.environment | {"OMNI_SERVICE_DATA_DIR": str(self.folder / name)}
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                bound_command((sys.executable, *command), signal.SIGKILL),
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
            )
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def start_store(self) -> subprocess.Popen[bytes]:
        server = self.start("s3", "-m", "moto.server", "-H", HOST, "-p", str(self.s3))
        answers(f"http://{HOST}:{self.s3}/moto-api/")
        return server

    def start_worker(self, index: int) -> subprocess.Popen[bytes]:
        flags = ("--backend", "fake", "--slots", str(AT_ONCE), "--fake-ms", "unit=5")
        place = ("--port", str(self.workers[index]), "--name", f"w{index}")
        return self.start(f"w{index}", "worker.py", *self.config, *flags, *place)

    def start_gateway(self, **environment: str) -> None:
        self.environment |= environment
        workers = ",".join(f"{HOST}:{port}" for port in self.workers)
        flags = ("--http", "--port", str(self.gateway), "--workers", workers)
        self.start("gateway", "gateway.py", *self.config, *flags)
        answers(f"{self.url}/health")

    @property
    def config(self) -> tuple[str, str]:
        return "--config", str(self.folder / "config.json")

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.gateway}"

    def ask(self, path: str, **headers: str) -> httpx.Response:
        shown = {"X-Admin-Token": TOKEN, **headers}
        return httpx.get(
            self.url + path, headers=shown, trust_env=False, verify=False, timeout=LIMIT_S
        )

    def folders(self) -> list[Path]:
        return [one for name in ("w0", "w1") for one in recording_folders(self.folder / name)]

    async def talk(self, number: int) -> None:
        url = f"ws://{HOST}:{self.gateway}/ws/duplex/adx_{number}"
        async with DuplexClient.connected(url) as client:
            await client.prepare(prefix_system_prompt="Be brief.")
            await client.unit(np.full(RATE_HZ, number / 100, np.float32))
            await client.say("stop")
            await client.hear("stopped")


def answers(url: str) -> None:
    def does() -> bool:
        try:
            return httpx.get(url, trust_env=False, verify=False, timeout=LIMIT_S).is_success
        except httpx.TransportError:
            return False

    wait_until(f"{url} answers", does, LIMIT_S)


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(folder, stack)
        made.start_store()
        bucket = f"http://{HOST}:{made.s3}/talks"
        httpx.put(bucket, trust_env=False, verify=False, timeout=LIMIT_S).raise_for_status()
        yield made


def bucket_of(made: Site, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in made.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    return Bucket(open_store(STORE), STORE)


async def hold_talks(made: Site) -> None:
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with free:
            await made.talk(number)

    await asyncio.gather(*map(one, range(TALKS)))


def holds(bucket: Bucket, folder: Path) -> bool:
    """Whether a recording is sealed, and every sum is right."""
    seal = bucket.seal(folder.name)
    if seal is None or not bucket.has_all(folder.name, seal):
        return False
    assert [one.name for one in seal.files] == names_in(folder)[0]
    assert bucket.read(folder.name, "meta.json") == (folder / "meta.json").read_bytes()
    for one in seal.files:
        content = b"".join(bucket.blocks(folder.name, one.name, 0, one.size_bytes))
        assert content == (folder / one.name).read_bytes(), one.name
    return True


def test_a_worker_killed_as_it_uploads_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tmp_path) as made:
        bucket = bucket_of(made, monkeypatch)
        workers = [made.start_worker(index) for index in (0, 1)]
        made.start_gateway()
        asyncio.run(hold_talks(made))

        def is_between() -> bool:
            mine = [folder.name for folder in recording_folders(tmp_path / "w1")]
            begun = set(bucket.list_folder()[0]) & set(mine)
            return any(bucket.seal(name) is None for name in begun)

        wait_until("a recording of w1 is half uploaded", is_between, LIMIT_S)
        workers[1].send_signal(signal.SIGKILL)
        workers[1].wait()
        assert any(bucket.seal(one.name) is None for one in made.folders())
        made.start_worker(1)
        check_all(made, bucket)
        unsealed = "omni_worker_recordings_unsealed 0.0"
        for port in made.workers:
            url = f"http://{HOST}:{port}/metrics"
            assert (
                unsealed
                in httpx.get(url, trust_env=False, verify=False, timeout=LIMIT_S).text.splitlines()
            )


def check_all(made: Site, bucket: Bucket) -> None:
    """Wait until all talks are sealed; the gateway shows what lies on the disks."""
    folders = made.folders()
    assert len(folders) == TALKS
    left = set(folders)

    def drained() -> bool:
        left.difference_update([folder for folder in left if bucket.seal(folder.name)])
        return not left

    wait_until("all is sealed", drained, LIMIT_S, poll_s=POLL_S)
    assert all(holds(bucket, folder) for folder in folders)
    page = made.ask("/api/admin/recordings?limit=100").json()
    assert {one["id"] for one in page["recordings"]} == {folder.name for folder in folders}
    for folder in folders[:: TALKS // 10]:
        url = f"/api/sessions/{folder.name}"
        assert made.ask(url).content == (folder / "meta.json").read_bytes()
        assert made.ask(f"{url}/recording").content == (folder / "recording.json").read_bytes()
        for file in files_in(folder):
            content = (folder / file.name).read_bytes()
            assert made.ask(f"{url}/assets/{file.name}").content == content
            part = made.ask(f"{url}/assets/{file.name}", Range="bytes=1-20")
            assert (part.status_code, part.content) == (206, content[1:21])


def test_media_come_from_the_store_by_signed_urls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site(tmp_path) as made:
        bucket = bucket_of(made, monkeypatch)
        made.start_worker(0)
        made.start_gateway(OMNI_RECORDING_DIRECT="true")
        asyncio.run(made.talk(1))
        (folder,) = made.folders()
        wait_until("it is sealed", lambda: bucket.seal(folder.name) is not None, LIMIT_S)
        name, wanted = "user_audio/000.wav", "bytes=1-20"
        sent = made.ask(f"/api/sessions/{folder.name}/assets/{name}", Range=wanted)
        url, content = sent.headers["location"], (folder / name).read_bytes()
        assert sent.status_code == 302 and url.startswith(f"http://{HOST}:{made.s3}/talks/live/")
        whole = httpx.get(url, trust_env=False, verify=False, timeout=LIMIT_S)
        assert (whole.content, whole.headers["content-type"]) == (content, "audio/wav")
        part = httpx.get(
            url, headers={"Range": wanted}, trust_env=False, verify=False, timeout=LIMIT_S
        )
        assert (part.status_code, part.content) == (206, content[1:21])
        assert (
            f"media-src 'self' blob: http://{HOST}:{made.s3};"
            in (made.ask(f"/s/{folder.name}").headers["content-security-policy"])
        )
