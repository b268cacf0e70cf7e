"""What tests of the administration page do besides it, and what a person does on it."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Locator, Page, Route, expect

from benchmarks.launched import wait_until
from tests.browser.media_files import speech_16k
from tests.system.client import DuplexClient
from tests.system.loops import new_id
from tests.system.running import RunningSystem

TOKEN = "open sesame, please"
SECTIONS = (
    "overview",
    "workers",
    "queue",
    "conversations",
    "durations",
    "apps",
    "voices",
    "presets",
    "recordings",
    "logs",
    "audit",
)
LIMIT_S = 120.0
# Any: bodies and answers are JSON.
Json = dict[str, Any]


# --- what the tests do besides the browser ---


def call(system: RunningSystem, method: str, path: str, body: Json | None = None) -> Json:
    """Ask the server itself."""
    answer = system.ask(method, path, json=body, timeout=LIMIT_S)
    assert answer.status_code == httpx.codes.OK, answer.text
    told: Json = answer.json()
    return told


@contextmanager
def talking(system: RunningSystem, *, is_served: bool = True) -> Iterator[str]:
    """Have somebody in a voice call, or in line for one, for the block."""
    begun = threading.Event()
    session_id = new_id("adx")
    leave: list[Callable[[], object]] = []

    async def talk() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        leave.append(lambda: loop.call_soon_threadsafe(over.set))
        url = system.ws(f"/ws/duplex/{session_id}")
        async with DuplexClient.connected(url) as client:
            if is_served:
                await client.prepare(prefix_system_prompt="Listen.")
            else:
                await client.hear("queued")
            begun.set()
            await over.wait()

    # On a thread of its own: Playwright's loop runs on this one.
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(lambda: asyncio.run(talk()))
        try:
            assert begun.wait(LIMIT_S)
            yield session_id
        finally:
            for each in leave:
                each()
            done.result(LIMIT_S)


def hold_call(system: RunningSystem) -> str:
    """Hold a call of one second and return the id of its finished recording."""

    async def talk() -> str:
        async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
            await client.prepare(prefix_system_prompt="Listen.")
            await client.unit(speech_16k()[:16_000])
            await client.say("stop")
            recording_id: str = (await client.hear("stopped"))["recording_session_id"]
            await client.closed()
        return recording_id

    with ThreadPoolExecutor(1) as pool:
        recording_id = pool.submit(lambda: asyncio.run(talk())).result()
    wait_until("it is ready", lambda: is_ready(system, recording_id), LIMIT_S)
    return recording_id


def recordings(system: RunningSystem) -> dict[str, Json]:
    """Return all recordings by id."""
    listed = call(system, "GET", "/api/admin/recordings?limit=200")["recordings"]
    return {one["id"]: one for one in listed}


def is_ready(system: RunningSystem, recording_id: str) -> bool:
    """Whether a recording is complete."""
    return bool(recordings(system).get(recording_id, {}).get("status") == "ready")


def add_voice(system: RunningSystem, name: str, path: Path) -> str:
    """Add a voice and return its id."""
    body = {"name": name, "audio_base64": base64.b64encode(path.read_bytes()).decode()}
    voice_id: str = call(system, "POST", "/api/assets/ref_audio", body)["id"]
    return voice_id


def voices(system: RunningSystem) -> list[str]:
    """Return the names of the voices."""
    listed = call(system, "GET", "/api/assets/ref_audio")["ref_audios"]
    return [one["name"] for one in listed]


# --- what a person does on the page ---


def section(page: Page, name: str) -> Locator:
    """Return a section that is shown."""
    found = page.locator(f"#section-{name}")
    expect(found).to_be_visible()
    return found


def look_again(page: Page) -> None:
    """Have the page bring itself up to date, as when its tab is shown again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def answer_dialog(page: Page, title: str, *, confirm: str | None) -> None:
    """Expect a question that names the thing; answer it, or cancel."""
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("heading")).to_contain_text(title)
    dialog.get_by_role("button", name=confirm or "Cancel", exact=True).click()
    expect(page.locator("dialog")).to_have_count(0)


def expect_toast(page: Page, text: str) -> None:
    """Expect a report at the foot of the page."""
    expect(page.locator(".toast", has_text=text).first).to_be_visible()


def worker_of(system: RunningSystem, name: str = "worker_0") -> Json:
    """Return what the server says of a worker."""
    listed: list[Json] = call(system, "GET", "/workers")["workers"]
    return next(one for one in listed if one["worker_id"] == name)


def answer_workers(page: Page, **changes: object) -> None:
    """Have the server say something else about its workers from now on."""

    def handle(route: Route) -> None:
        told = route.fetch().json()
        told["workers"] = [one | changes for one in told["workers"]]
        route.fulfill(json=told)

    page.route("**/workers", handle)


HISTORY = {
    "period_s": 10.0,
    "t": [1_800_000_000.0 + 10 * n for n in range(60)],
    "series": {
        "sessions.audio_duplex": [n % 5 for n in range(60)],
        "sessions.omni_duplex": [2] * 60,
        "queue.length": [n % 3 for n in range(60)],
        "queue.oldest_wait_s": [float(n) for n in range(60)],
        "unit.p50_ms": [200.0] * 60,
        "unit.p99_ms": [640.0] * 60,
        "vram_used_mb.worker_0": [20_480.0] * 60,
    },
}


def give_history(page: Page) -> None:
    """Have the server tell of an hour in which something happened."""
    page.route("**/api/admin/history", lambda route: route.fulfill(json=HISTORY))
