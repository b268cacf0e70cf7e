"""Home page and administration while the cascade is downloaded, and afterwards.

A local server stands in for the publisher's hub. It runs where the cascade's files are. To write
the pictures anew set MINICPMO_WRITE_SCREENSHOTS=1, and run this file with -m gate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, expect

from benchmarks.launched import ASK_S, Plan, wait_until
from core.schemas.worker import ModelKind
from settings.embedded import CascadeFiles
from tests.browser import shots
from tests.browser.test_cascade_call import FOLDER, files
from tests.browser.visits import Visits
from tests.fakes.embedded import nano_checkpoint
from tests.system.running import RunningSystem, start_command

pytestmark = pytest.mark.gate

__all__ = ["files"]  # the fixture

PICTURES: Final = shots.FOLDER / "cascade"
AT_ONCE: Final = 0.35  # of the file
BLOCK_BYTES: Final = 65_536
BLOCK_S: Final = 0.5  # while the rest is held back
LOAD_LIMIT_S: Final = 300.0


class SlowHub:
    """Serves one file: a part at once, and the rest slowly until it is released."""

    def __init__(self, file: Path) -> None:
        is_released = self._is_released = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                begin, size = _begin(self.headers["Range"]), file.stat().st_size
                self.send_response(206)
                self.send_header("Content-Length", str(size - begin))
                self.end_headers()
                with file.open("rb") as source:
                    source.seek(begin)
                    while block := source.read(BLOCK_BYTES):
                        self.wfile.write(block)
                        if source.tell() > AT_ONCE * size:
                            is_released.wait(BLOCK_S)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def release(self) -> None:
        self._is_released.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def hub(files: CascadeFiles) -> Iterator[SlowHub]:
    publisher = SlowHub(files.language_model)
    yield publisher
    publisher.close()


@pytest.fixture
def system(hub: SlowHub, tmp_path: Path) -> Iterator[RunningSystem]:
    """The real stack with nano, which lacks only the cascade's language model."""
    data = tmp_path / "system" / "data"
    (data / "cascade").mkdir(parents=True)
    for name in ("whisper", "voice"):
        (data / "cascade" / name).symlink_to(FOLDER / name)
    (data / "nano").symlink_to(nano_checkpoint())
    plan = Plan(
        backend="real",
        config={"model": {"embedded": "auto"}},
        command=start_command(),
        variables={"HF_ENDPOINT": hub.url},
    )
    with RunningSystem(data.parent, plan) as running:
        yield running


def test_the_pages_show_the_download_and_then_what_it_brought(
    visit: Visits, system: RunningSystem, hub: SlowHub
) -> None:
    home, desk = visit("/", at=system), visit("/admin", at=system)
    note = home.locator("#model-note")
    for page in (home, desk):
        expect(page.get_by_role("progressbar", name="Download progress")).to_be_visible()
        expect(page.get_by_role("main")).to_contain_text("Downloading a model that talks about")
    expect(note).to_contain_text("only in English and about a few topics")
    keep(home, "home_downloading")
    keep(desk, "admin_downloading")
    hub.release()
    wait_until(
        "the cascade answers",
        lambda: system.worker_health(0)["model"]["kind"] == ModelKind.CASCADE,
        LOAD_LIMIT_S,
        ASK_S,
    )
    for page in (home, desk):
        page.reload()
        expect(page.get_by_role("main")).to_contain_text("Whisper tiny → Qwen2.5-Coder 0.5B")
        expect(page.get_by_role("progressbar", name="Download progress")).to_have_count(0)
    expect(note).to_contain_text("Three small models stand in for MiniCPM-o")
    keep(home, "home_cascade")
    keep(desk, "admin_cascade")


def keep(page: Page, name: str) -> None:
    """Compare a page with its picture, or take the picture anew."""
    path = PICTURES / f"{name}.png"
    image, words = shots.picture(page), shots.interface_words(page)
    if shots.is_writing():
        shots.write(path, image, words)
    faults = shots.differences(path, image, words, shots.MAX_DIFFERENCE_OF_A_CALL)
    assert not faults, f"{path.name}: {'; '.join(faults)}"


def _begin(asked: str | None) -> int:
    """Return the first byte that a range asks for."""
    return int((asked or "bytes=0-").removeprefix("bytes=").rstrip("-"))
