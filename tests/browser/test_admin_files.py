"""Administration of what is kept: voices, presets, recordings, logs, the audit."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Route, expect

from tests.browser.admin_desk import (
    TOKEN,
    Json,
    answer_dialog,
    call,
    expect_toast,
    hold_call,
    look_again,
    recordings,
    section,
    voices,
)
from tests.browser.conftest import SiteMaker
from tests.browser.media_files import silence_16k, speech_16k, write_speech
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

MANY_LINES = 60  # more than twice what the log's box shows

# --- voices and presets ---


def test_a_voice_is_added_heard_and_deleted_after_a_yes(
    visit: Visits, shared_site: SiteMaker, tmp_path: Path
) -> None:
    system = shared_site(workers=1)
    page = visit("/admin#voices", at=system)
    expect(section(page, "voices")).to_contain_text("No voices added yet.")
    expect(page.locator("#voice-hint")).to_contain_text("0.5 to 30 s")
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#voice-problem")).to_have_text("Choose a file first.")
    path = write_speech(tmp_path / "my voice.wav", speech_16k("ref_voice"))
    page.locator("#voice-file").set_input_files(path)
    expect(page.locator("#voice-name")).to_have_value("my voice")
    page.locator("#voice-name").fill("Ada")
    page.get_by_role("button", name="Upload").click()
    expect_toast(page, "Added: Ada.")
    assert voices(system) == ["Ada"]
    row = section(page, "voices").locator("tbody tr")
    with page.expect_response("**/api/assets/ref_audio/*/audio"):
        row.get_by_role("button", name="Listen: Ada").click()
    expect(row.get_by_role("button", name="Stop: Ada")).to_be_visible()
    row.get_by_role("button", name="Stop: Ada").click()
    delete = row.get_by_role("button", name="Delete")
    delete.click()
    answer_dialog(page, "Delete Ada?", confirm=None)
    assert voices(system) == ["Ada"]
    delete.click()
    answer_dialog(page, "Delete Ada?", confirm="Delete")
    expect_toast(page, "Deleted: Ada.")
    assert voices(system) == []
    # Whoever works with the keyboard is not thrown to the top of the page.
    expect(page.locator("#title-voices")).to_be_focused()


def test_a_voice_falls_silent_when_the_login_ends(
    visit: Visits, problems: Problems, shared_site: SiteMaker, tmp_path: Path
) -> None:
    problems.allow("HTTP 401 .*/api/")
    system = shared_site(workers=1, config={"security": {"admin_token": TOKEN}})
    page = visit(f"/admin#token={TOKEN.replace(' ', '%20')}", at=system)
    page.locator("[data-goto=voices]").click()
    page.evaluate(
        """() => {
            const { play } = HTMLMediaElement.prototype;
            HTMLMediaElement.prototype.play = function () {
                this.loop = true; // however long the test takes
                globalThis.sounding = this;
                return play.call(this);
            };
        }"""
    )
    path = write_speech(tmp_path / "Ada.wav", speech_16k("ref_voice"))
    page.locator("#voice-file").set_input_files(path)
    page.get_by_role("button", name="Upload").click()
    page.get_by_role("button", name="Listen: Ada").click()
    page.wait_for_function("() => globalThis.sounding?.paused === false")
    page.context.clear_cookies()
    page.locator("#voice-file").set_input_files(path)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator("#board")).to_be_hidden()
    assert page.evaluate("globalThis.sounding.paused")


def test_useless_voices_are_refused_each_with_its_reason(
    visit: Visits, problems: Problems, fake_site: RunningSystem, tmp_path: Path
) -> None:
    problems.allow(r"HTTP 4(00|13) POST .*/api/assets/ref_audio")
    page = visit("/admin#voices", at=fake_site)
    noise = tmp_path / "no sound.wav"
    noise.write_bytes(b"this is no sound at all" * 20)
    large = tmp_path / "large.wav"
    large.write_bytes(bytes(11 * 1024 * 1024))
    long = write_speech(tmp_path / "long.wav", np.concatenate([speech_16k()] * 4))
    silent = write_speech(tmp_path / "silent.wav", silence_16k(2))
    for path, words in (
        (noise, "cannot be used as a voice"),
        (silent, "cannot be used as a voice"),
        (long, "This audio is too long."),
    ):
        page.locator("#voice-file").set_input_files(path)
        page.get_by_role("button", name="Upload").click()
        expect_toast(page, words)
        page.evaluate("document.querySelectorAll('.toast').forEach((toast) => toast.remove())")
    page.locator("#voice-file").set_input_files(large)
    expect(page.locator("#voice-problem")).to_contain_text("This file is too large: 11 MiB.")
    assert voices(fake_site) == []


def test_presets_can_be_read_and_heard(visit: Visits, site: RunningSystem) -> None:
    page = visit("/admin#presets", at=site)
    panels = section(page, "presets").locator("details")
    told = call(site, "GET", "/api/presets")
    expect(panels).to_have_count(sum(len(presets) for presets in told.values()))
    preset = next(one for one in told["audio_duplex"] if one["system_prompt"])
    panel = page.locator(f"[data-mode=audio_duplex] [data-preset={preset['id']}]")
    panel.locator("summary").click()
    expect(panel.locator(".admin-prompt")).to_have_text(preset["system_prompt"])
    with page.expect_response("**/api/presets/audio_duplex/*/audio"):
        panel.get_by_role("button", name="Listen").click()
    expect(panel.get_by_role("button", name="Stop")).to_be_visible()
    # It stays open while the page brings itself up to date.
    with page.expect_response("**/api/presets"):
        look_again(page)
    expect(panel).to_have_attribute("open", "")


# --- recordings ---


def test_a_recording_is_listed_opened_and_deleted_after_a_yes(
    visit: Visits, make_site: SiteMaker
) -> None:
    system = make_site(workers=1)
    recording_id = hold_call(system)
    page = visit("/admin#recordings", at=system)
    row = section(page, "recordings").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Voice call")
    expect(row).to_contain_text("complete")
    expect(section(page, "recordings")).to_contain_text("1 recording,")
    link = row.get_by_role("link", name=re.compile("^Open"))
    expect(link).to_have_attribute("href", f"/s/{recording_id}")
    with page.expect_download() as download:
        row.get_by_role("link", name=re.compile("^Download")).click()
    assert download.value.suggested_filename == f"{recording_id}.zip"
    delete = row.get_by_role("button", name=re.compile("^Delete"))
    delete.click()
    expect(page.locator("dialog[open]")).to_contain_text(recording_id)
    answer_dialog(page, "Delete Voice call", confirm=None)
    assert recording_id in recordings(system)
    delete.click()
    answer_dialog(page, "Delete Voice call", confirm="Delete")
    expect_toast(page, "Deleted: Voice call")
    expect(section(page, "recordings")).to_contain_text("No recordings yet.")
    assert recordings(system) == {}


def test_many_recordings_come_in_pages_and_in_the_chosen_order(
    visit: Visits, fake_site: RunningSystem
) -> None:
    def answer(route: Route) -> None:
        query = httpx.URL(route.request.url).params
        first = int(query["offset"])
        asked.append(dict(query))
        listed = [
            {
                "id": f"r{n}",
                "app_type": "omni_duplex",
                "created_at": "2026-01-01T00:00:00Z",
                "duration_s": 5.0,
                "bytes": 2_048,
                "status": "ready",
            }
            for n in range(first, min(60, first + 25))
        ]
        route.fulfill(json={"total": 60, "total_bytes": 122_880, "recordings": listed})

    asked: list[dict[str, str]] = []
    page = visit("", at=fake_site)
    page.route("**/api/admin/recordings?**", answer)
    page.goto("/admin#recordings")
    rows = section(page, "recordings").locator("tbody tr")
    expect(rows).to_have_count(25)
    expect(page.get_by_role("button", name="Previous page")).to_have_attribute(
        "aria-disabled", "true"
    )
    page.get_by_role("button", name="Next page").click()
    expect(section(page, "recordings")).to_contain_text("26–50 of 60")
    page.get_by_role("button", name="Previous page").dblclick()
    expect(section(page, "recordings")).to_contain_text("1–25 of 60")
    assert all(int(query["offset"]) >= 0 for query in asked)
    page.get_by_role("button", name="Next page").click()
    expect(section(page, "recordings")).to_contain_text("26–50 of 60")
    page.get_by_role("button", name="Next page").click()
    expect(rows).to_have_count(10)
    expect(page.get_by_role("button", name="Next page")).to_have_attribute("aria-disabled", "true")
    page.get_by_label("Sort by").select_option("largest")
    expect(section(page, "recordings")).to_contain_text("1–25 of 60")
    assert asked[-1]["sort"] == "largest" and asked[-1]["offset"] == "0"


def test_cleaning_up_shows_first_what_would_go(visit: Visits, make_site: SiteMaker) -> None:
    system = make_site(workers=1)
    ids = {hold_call(system), hold_call(system)}
    page = visit("/admin#recordings", at=system)
    page.locator("#cleanup summary").click()
    look = page.get_by_role("button", name="Preview")
    report, go = page.locator("#cleanup-report"), page.locator("#cleanup-go")
    page.locator("#cleanup-days").fill("-3")
    look.click()
    expect(page.locator("#cleanup .field-error")).to_contain_text("greater than zero")
    page.locator("#cleanup-days").fill("365")
    look.click()
    expect(report).to_contain_text("nothing would be deleted")
    expect(go).to_be_hidden()
    page.locator("#cleanup-days").fill("")
    page.locator("#cleanup-room").fill("0.0000001")
    look.click()
    expect(report).to_contain_text(re.compile(r"2 recordings \(.*\) would be deleted"))
    for recording_id in ids:
        expect(report).to_contain_text(recording_id)
    assert set(recordings(system)) == ids
    # What was looked at holds for what was typed then.
    page.locator("#cleanup-room").fill("0.00000001")
    expect(go).to_be_hidden()
    look.click()
    go.click()
    answer_dialog(page, "Delete 2 recordings?", confirm=None)
    assert set(recordings(system)) == ids
    go.click()
    answer_dialog(page, "Delete 2 recordings?", confirm="Delete 2 recordings")
    expect_toast(page, "2 recordings were deleted.")
    assert recordings(system) == {}


# --- logs and audit ---


def test_the_log_is_followed_filtered_and_waits_for_the_reader(
    visit: Visits, shared_site: SiteMaker
) -> None:
    system = shared_site(workers=1)
    page = visit("/admin#logs", at=system)
    lines = page.locator(".admin-log-line")
    expect(lines.first).to_be_visible()
    expect(page.locator("#log-source option")).to_have_text(["gateway", "launcher", "worker_0"])
    call(system, "GET", "/api/queue/find_me_in_the_log")
    expect(lines.filter(has_text="find_me_in_the_log")).to_have_count(1)
    page.locator("#log-text").fill("FIND_ME_IN")
    expect(page.locator(".admin-log-line:not([hidden])")).to_have_count(1)
    page.locator("#log-text").fill("")
    # Scrolled up, the reader stays where they are and is told of what is new.
    box = page.locator(".admin-log-lines")
    for n in range(MANY_LINES):
        call(system, "GET", f"/api/queue/line_{n}")
    page.wait_for_function(
        "(box) => box.scrollHeight > 2 * box.clientHeight", arg=box.element_handle()
    )
    box.evaluate("(box) => { box.scrollTop = 0; }")
    jump = page.locator(".admin-jump")
    expect(jump).to_be_visible()
    call(system, "GET", "/api/queue/another_line")
    expect(jump).to_contain_text("below")
    assert box.evaluate("(box) => box.scrollTop") == 0
    jump.click()
    expect(jump).to_be_hidden()
    page.locator("#log-source").select_option("worker_0")
    expect(lines.filter(has_text="another_line")).to_have_count(0)
    expect(lines.first).to_be_visible()


def log_answer(cursor: str, *lines: Json) -> Json:
    """Return what the server says of a log."""
    told = {"source": "gateway", "sources": ["gateway"], "cursor": cursor}
    return told | {"lines": list(lines), "has_more": False, "was_turned_over": False}


def log_line(text: str, level: str | None) -> Json:
    """Return one line."""
    return {"text": text, "level": level, "time": "2026-01-01T10:00:00Z"}


def test_levels_are_told_in_words_and_lines_are_bounded(
    visit: Visits, fake_site: RunningSystem
) -> None:
    batches = [[log_line("calm", "info"), log_line("odd", "warning"), log_line("broken", "error")]]
    batches += [[log_line(f"line {n}", "info") for n in range(500)] for _ in range(4)]

    def answer(route: Route) -> None:
        batch = batches.pop(0) if batches else []
        route.fulfill(json=log_answer("c", *batch))

    page = visit("", at=fake_site)
    page.route("**/api/admin/logs?**", answer)
    page.goto("/admin#logs")
    lines = page.locator(".admin-log-line")
    expect(lines).to_have_count(3)
    page.locator("#log-level").select_option("warning")
    shown = page.locator(".admin-log-line:not([hidden])")
    expect(shown).to_have_count(2)
    expect(shown.first.locator(".admin-log-level")).to_have_text("warning")
    page.locator("#log-level").select_option("error")
    expect(shown).to_have_text(re.compile("broken"))
    page.locator("#log-level").select_option("debug")
    for _ in range(4):
        with page.expect_response("**/api/admin/logs?**"):
            look_again(page)
    expect(lines).to_have_count(2_000)
    expect(lines.filter(has_text="calm")).to_have_count(0)


def test_following_can_be_switched_off(visit: Visits, fake_site: RunningSystem) -> None:
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(json=log_answer("c", log_line(f"line {len(asked)}", "info")))

    page = visit("", at=fake_site)
    page.route("**/api/admin/logs?**", answer)
    page.goto("/admin#logs")
    lines = page.locator(".admin-log-line")
    expect(lines).not_to_have_count(0)
    follow = page.get_by_role("switch", name="Follow")
    follow.click()
    count = lines.count()
    look_again(page)
    look_again(page)
    expect(lines).to_have_count(count)
    follow.click()
    expect(lines).not_to_have_count(count)


def test_a_part_of_the_log_that_is_read_twice_is_shown_once(
    visit: Visits, fake_site: RunningSystem
) -> None:
    waiting: list[Route] = []

    def answer(route: Route) -> None:
        if "after=" in route.request.url and len(waiting) < 2:
            waiting.append(route)
            return
        is_first = "after=" not in route.request.url
        words, cursor = ("first", "c0") if is_first else ("last", "c2")
        route.fulfill(json=log_answer(cursor, *[log_line(words, "info")] * ("c2" not in asked)))
        asked.append(cursor)

    asked: list[str] = []
    page = visit("", at=fake_site)
    page.route("**/api/admin/logs?**", answer)
    with page.expect_request("**/api/admin/logs?*after=c0"):
        page.goto("/admin#logs")
    follow = page.get_by_role("switch", name="Follow")
    follow.click()
    with page.expect_request("**/api/admin/logs?*after=c0"):
        follow.click()
    for route in waiting:
        route.fulfill(json=log_answer("c1", log_line("once", "info")))
    words = page.locator(".admin-log-text")
    expect(words).to_have_text(["first", "once", "last"])


def test_a_server_without_log_files_says_where_they_are(
    visit: Visits, problems: Problems, fake_site: RunningSystem
) -> None:
    problems.allow(r"HTTP 404 GET .*/api/admin/logs")
    page = visit("", at=fake_site)
    gone = {"detail": "There are no log files.", "code": "not_found"}
    page.route("**/api/admin/logs?**", lambda route: route.fulfill(status=404, json=gone))
    page.goto("/admin#logs")
    expect(section(page, "logs")).to_contain_text("the server was not started by its launcher")


def test_what_was_done_is_listed(visit: Visits, make_site: SiteMaker) -> None:
    system = make_site(workers=1)
    page = visit("/admin#audit", at=system)
    expect(section(page, "audit").locator("tbody tr")).to_contain_text("Sign in")
    call(system, "PUT", "/api/admin/apps/omni", {"enabled": True})
    look_again(page)
    row = section(page, "audit").locator("tbody tr").first
    for words in ("Switch an app", "omni", "enabled=true", "done", "127.0.0.1"):
        expect(row).to_contain_text(words)
