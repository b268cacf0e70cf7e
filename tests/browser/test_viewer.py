"""The replay of a recorded call: /s/ID."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Request, expect

from recording.folder import read_meta, read_recording, write_meta, write_recording
from tests.browser import kept
from tests.browser.looks import Look
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

CALL = "viewer_call"
PICTURES = "viewer_pictures"
LONG = "viewer_long"
TOTAL_S = len(kept.TALK)


@pytest.fixture(scope="module", autouse=True)
def _kept(site: RunningSystem) -> Iterator[None]:
    """Recordings that several tests look at and none changes."""
    kept.keep_call(site, CALL)
    kept.keep_call(site, PICTURES, has_pictures=True)
    kept.keep_long_call(site, LONG)
    yield


def slider(page: Page) -> Locator:
    return page.get_by_role("slider", name="Position in the conversation")


def at_s(page: Page) -> float:
    """Return where the playhead is."""
    minutes, seconds = page.locator(".transport-time").inner_text().split(" / ")[0].split(":")
    return 60 * int(minutes) + float(seconds)


def expect_at(page: Page, seconds: float) -> None:
    minutes, rest = divmod(seconds, 60)
    text = f"{minutes:.0f}:{rest:04.1f} / "
    expect(page.locator(".transport-time")).to_contain_text(text)


def click_at(page: Page, selector: str, share: float) -> None:
    place = page.locator(selector)
    box = place.bounding_box()
    assert box
    place.click(position={"x": share * box["width"], "y": box["height"] / 2})


def test_a_real_recording_shows_everything_on_one_axis(visit: Visits, recording: str) -> None:
    page = visit(f"/s/{recording}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Video call")
    expect(page.locator("[data-fact=end]")).to_have_text("ended by the user")
    expect(page.locator("[data-fact=worker]")).to_have_text("worker_0")
    page.wait_for_function("() => Number(document.querySelector('.wave').dataset.loudest) > 0.1")
    expect(page.locator(".thumb")).not_to_have_count(0)
    expect(page.locator(".moment-picture")).to_have_js_property("complete", True)
    expect(page.locator(".latency-bar").first).to_be_visible()
    assert page.locator(".moment-picture").evaluate("image => image.naturalWidth") > 0
    expect(page.locator("[data-panel=film]")).to_be_visible()
    page.locator("[data-panel=config] summary").click()
    expect(page.locator(".config-list")).to_contain_text("Look and listen.")


def test_a_film_has_its_subtitles_from_a_file_beside_it(visit: Visits, site: RunningSystem) -> None:
    folder = kept.keep_call(site, "viewer_film")
    (folder / "merged_replay.mp4").write_bytes(bytes(8))  # subtitles come without a look at it
    (folder / "merged_replay.vtt").write_text(
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\n你好\n", encoding="utf8"
    )
    recording = read_recording(folder)
    assert recording is not None
    files = {
        "merged_replay_video": "merged_replay.mp4",
        "merged_replay_subtitles": "merged_replay.vtt",
    }
    write_recording(folder, recording.model_copy(update=files))
    page = visit("/s/viewer_film")
    page.locator("[data-panel=film] summary").click()
    cue = "() => document.querySelector('.replay-film').textTracks[0]?.cues?.[0]?.text"
    assert page.wait_for_function(cue).json_value() == "你好"


def test_playing_moves_the_playhead_and_pausing_keeps_it(visit: Visits) -> None:
    page = visit(f"/s/{CALL}")
    page.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_function("() => parseFloat(document.querySelector('.playhead').style.left) > 4")
    sounding = "Array.from(document.querySelectorAll('audio')).some((audio) => !audio.paused)"
    assert page.evaluate(sounding)
    page.get_by_role("button", name="Pause", exact=True).click()
    assert not page.evaluate(sounding)
    stopped_s = at_s(page)
    assert 0 < stopped_s < TOTAL_S
    page.wait_for_url(re.compile(r"[?&]t="))
    told = re.search(r"[?&]t=([\d.]+)", page.url)
    assert told
    assert float(told[1]) == pytest.approx(stopped_s, abs=0.11)


def test_it_ends_at_its_end_and_begins_anew(visit: Visits) -> None:
    page = visit(f"/s/{CALL}?t=11.6")
    page.keyboard.press("k")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    expect_at(page, TOTAL_S)
    page.keyboard.press("k")
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()
    page.keyboard.press("k")
    assert at_s(page) < TOTAL_S - 1


def test_a_click_and_a_drag_seek_on_every_track(visit: Visits) -> None:
    page = visit(f"/s/{CALL}")
    click_at(page, ".wave-slider", 0.5)
    expect_at(page, 6.0)
    click_at(page, ".lane-latency", 0.25)
    expect_at(page, 3.0)
    box = slider(page).bounding_box()
    assert box
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 20, steps=4)
    expect_at(page, 9.0)
    page.mouse.up()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    expect_at(page, 9.0)


def test_keys_are_explained_and_leave_fields_alone(visit: Visits) -> None:
    page = visit(f"/s/{CALL}?t=3", is_admin=True)
    expect(page.locator(".key-help")).to_be_visible()
    page.keyboard.press("?")
    expect(page.locator(".key-help")).to_be_hidden()
    page.get_by_role("button", name="Add a comment").click()
    page.get_by_role("textbox", name="Comment").press_sequentially("jkl .,")
    expect_at(page, 3.0)
    page.get_by_role("button", name="Cancel").click()
    play = page.get_by_role("button", name="Play", exact=True)
    play.focus()
    page.keyboard.press("Space")  # the button's own, and once only
    expect(page.get_by_role("button", name="Pause", exact=True)).to_be_visible()


def test_the_speed_of_the_sound_changes(visit: Visits) -> None:
    page = visit(f"/s/{CALL}")
    page.get_by_role("combobox", name="Speed").select_option("2")
    page.keyboard.press("k")
    page.wait_for_function("() => parseFloat(document.querySelector('.playhead').style.left) > 1")
    assert page.locator("[data-part=sound]").evaluate("audio => audio.playbackRate") == 2


def test_an_address_names_a_moment(visit: Visits) -> None:
    page = visit(f"/s/{CALL}?lang=en&t=9.2")
    expect_at(page, 9.2)
    expect(page.locator(".moment-words")).to_have_text("Fine.")
    page.keyboard.press("ArrowLeft")
    expect(page).to_have_url(re.compile(r"lang=en&t=8\.2$"))
    page.get_by_role("button", name="Copy a link to this moment").click()
    link: str = page.evaluate("navigator.clipboard.readText()")
    assert link.endswith(f"/s/{CALL}?lang=en&t=8.2")
    page.keyboard.press("Home")
    expect(page).to_have_url(re.compile(r"lang=en$"))
    page.goto(link)
    expect_at(page, 8.2)


def test_words_jump_and_are_marked_while_they_are_heard(visit: Visits) -> None:
    page = visit(f"/s/{CALL}")
    page.locator(".segment", has_text="Let me tell you").click()
    expect_at(page, 6.0)
    expect(page.locator(".said[aria-current=true]")).to_contain_text("Let me tell you")
    page.locator(".said", has_text="Good morning, how are you?").click()
    expect_at(page, 2.0)
    expect(page.locator(".moment-words")).to_have_text("Good morning,")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".moment-words")).to_have_text("Good morning, how are you?")
    expect(page.locator(".moment-mode")).to_have_text("the model speaks")
    expect(page.locator(".said", has_text="Let me tell you")).to_contain_text("interrupted")


def test_the_picture_at_the_playhead_is_shown(visit: Visits) -> None:
    page = visit(f"/s/{PICTURES}?t=5.5")
    big = page.locator(".moment-picture")
    expect(big).to_have_attribute("src", re.compile(r"user_frames/005\.jpg$"))
    page.keyboard.press("ArrowRight")
    expect(big).to_have_attribute("src", re.compile(r"user_frames/006\.jpg$"))
    page.get_by_role("button", name="What the model saw at 0:00").click()
    expect(big).to_have_attribute("src", re.compile(r"user_frames/000\.jpg$"))
    expect(big).to_have_attribute("alt", "What the model saw at 0:00")


def test_figures_tell_what_was_late_and_where_gaps_were(visit: Visits) -> None:
    page = visit(f"/s/{CALL}?t=8.5")
    figures = page.locator(".figures")
    expect(figures).to_contain_text("12 units, 4 spoken")
    expect(figures).to_contain_text("1 late")
    moment = page.locator(".moment-figures")
    expect(moment).to_contain_text("Unit 9 · 1,400 of 1,000 ms")
    expect(moment).to_contain_text("late")


def test_screen_readers_hear_where_the_playhead_is(visit: Visits) -> None:
    page = visit(f"/s/{CALL}?t=2")
    ruler = slider(page)
    expect(ruler).to_have_attribute("aria-valuetext", "0:02 of 0:12, the model speaks")
    expect(ruler).to_have_attribute("aria-valuemax", str(TOTAL_S))
    ruler.focus()
    page.keyboard.press("End")
    expect(ruler).to_have_attribute("aria-valuenow", str(TOTAL_S))
    page.locator("[data-panel=units] summary").click()
    rows = page.locator(".unit-table tbody tr")
    expect(rows).to_have_count(TOTAL_S)
    expect(rows.nth(8)).to_contain_text("late")
    page.get_by_role("button", name="Jump to unit 4").click()
    expect_at(page, 3.0)


def test_a_comment_is_saved_and_shown_again(visit: Visits, site: RunningSystem) -> None:
    kept.keep_call(site, "viewer_comment")
    page = visit("/s/viewer_comment", is_admin=True)
    page.get_by_role("button", name="Add a comment").click()
    box = page.get_by_role("textbox", name="Comment")
    box.fill("<i>It</i> heard me well.")
    expect(page.locator(".comment-count")).to_have_text("24 of 2,000")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".comment-text")).to_have_text("<i>It</i> heard me well.")
    page.reload()
    expect(page.locator(".comment-text")).to_have_text("<i>It</i> heard me well.")
    page.get_by_role("button", name="Edit").click()
    box.fill("x" * 2_100)
    expect(page.locator(".comment-count")).to_have_text("2,000 of 2,000")
    box.fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".comment-text")).to_have_text("No comment yet.")


def test_everything_is_downloaded_as_a_zip_file(visit: Visits, recording: str) -> None:
    page = visit(f"/s/{recording}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download (.zip)").click()
    assert download.value.suggested_filename == f"{recording}.zip"
    names = zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes())).namelist()
    assert {"meta.json", "recording.json", "merged_replay.wav"} <= set(names)


def test_the_replay_needs_no_library(visit: Visits) -> None:
    page = visit("")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"/s/{CALL}?t=2")
    page.wait_for_function("() => document.querySelector('.wave')?.dataset.loudest")
    expect(page.locator(".latency-bar").first).to_be_visible()
    assert not [url for url in asked if "/vendor/" in url and "lit-html" not in url]


def test_without_sound_words_and_pictures_are_still_replayed(
    visit: Visits, site: RunningSystem
) -> None:
    folder = kept.keep_call(site, "viewer_silent", has_sound=False, has_pictures=True)
    meta = read_meta(folder)
    assert meta is not None
    write_meta(folder, meta.model_copy(update={"ended_at": datetime.now(UTC)}))
    page = visit("/s/viewer_silent")
    expect(page.locator("#waiting")).to_be_hidden()  # no sound will come
    page.keyboard.press("k")
    page.wait_for_function("() => parseFloat(document.querySelector('.playhead').style.left) > 4")
    expect(page.locator(".segment")).to_have_count(3)


def test_half_an_hour_stays_small(visit: Visits) -> None:
    page = visit("")
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.url.endswith("merged_replay.wav"):
            asked.append(request.headers.get("range", "all"))

    page.on("request", note)
    page.goto(f"/s/{LONG}")
    expect(page.locator(".transport-time")).to_have_text("0:00.0 / 30:00")
    expect(page.locator(".overview")).to_be_visible()
    expect(page.locator(".segment")).to_have_count(30)
    page.wait_for_function("() => document.querySelector('.wave').dataset.loudest === '0.00'")
    page.keyboard.press("End")
    expect_at(page, 1_800)
    expect(page.locator(".segment").last).to_have_text("Answer 1799.")
    click_at(page, ".overview", 0.5)
    assert 890 < at_s(page) < 910
    for _ in range(6):
        page.get_by_role("button", name="Zoom out").click()
    span_s = page.locator(".timeline-box").evaluate("box => box.dataset.to - box.dataset.from")
    assert span_s == 300
    assert page.locator("*").count() < 4_000
    page.locator("[data-panel=units] summary").click()
    expect(page.locator(".unit-table tbody tr")).to_have_count(50)
    assert asked and "all" not in asked
    parts = [re.fullmatch(r"bytes=(\d+)-(\d*)", told) for told in asked]
    sizes = [int(part[2]) - int(part[1]) for part in parts if part and part[2]]
    assert sum(sizes) < 40_000_000  # of 115 MB


def test_an_administrator_deletes_a_recording(
    visit: Visits, site: RunningSystem, problems: Problems
) -> None:
    folder = kept.keep_call(site, "viewer_unwanted")
    recent = [
        {"id": one, "appType": "omni", "savedAt": "2026-01-01T10:00:00Z"}
        for one in ("viewer_unwanted", CALL)
    ]
    storage = {"minicpmo45_recent_sessions": json.dumps(recent)}
    page = visit("/s/viewer_unwanted", is_admin=True, storage=storage)
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog", name="Delete this recording?")
    dialog.get_by_role("button", name="Cancel").click()
    assert folder.exists()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("This recording no longer exists.")
    assert not folder.exists()
    page.goto("/")
    expect(page.locator(".recent-card")).to_have_count(1)
    expect(page.locator(".recent-card")).to_have_attribute("href", f"/s/{CALL}")


def test_nothing_is_waited_for_once_it_is_deleted(
    visit: Visits, site: RunningSystem, problems: Problems
) -> None:
    problems.allow("HTTP 409 .*/recording")
    kept.keep_call(site, "viewer_waited_for")
    page = visit("/s/viewer_call", is_admin=True)
    refusal = {"code": "still_writing", "detail": "This recording is still being written."}
    page.route(
        "**/api/sessions/viewer_waited_for/recording",
        lambda route: route.fulfill(status=409, json=refusal),
    )
    page.goto("/s/viewer_waited_for")
    expect(page.locator("#waiting")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("This recording no longer exists.")
    expect(page.locator("#waiting")).to_be_hidden()


def test_a_chat_is_shown_as_one(visit: Visits, site: RunningSystem) -> None:
    kept.keep_chat(site, "viewer_chat")
    page = visit("/s/viewer_chat")
    expect(page.get_by_role("heading", level=1)).to_have_text("Chat")
    bubbles = page.locator(".bubble")
    expect(bubbles).to_have_count(4)
    expect(bubbles.nth(0)).to_contain_text("What is <b>this</b>?")
    picture = bubbles.nth(0).get_by_role("img", name="Your picture, turn 1")
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("image => image.naturalWidth") > 0
    voice = bubbles.nth(1).get_by_label("The model's voice, turn 1")
    expect(voice).to_be_visible()
    assert voice.evaluate("audio => audio.play().then(() => audio.duration > 1)")
    expect(bubbles.nth(1)).to_contain_text(
        "first audio after 0.31 s · answered in 0.82 s · 12 tokens"
    )
    expect(bubbles.nth(3)).to_contain_text("interrupted")
    expect(bubbles.nth(3)).to_contain_text("input: 9 new, 130 cached")


def test_a_conversation_in_turns_can_be_heard_whole(visit: Visits, site: RunningSystem) -> None:
    kept.keep_turns(site, "viewer_turns")
    page = visit("/s/viewer_turns")
    expect(page.get_by_role("heading", level=1)).to_have_text("Voice turns")
    expect(page.locator(".bubble[data-who=user]")).to_contain_text("You spoke for 1.4 s.")
    whole = page.get_by_label("The whole conversation")
    assert whole.evaluate("audio => audio.play().then(() => audio.duration)") == 4


@pytest.mark.parametrize("look", [Look("zh", 360, "dark"), Look("zh", 1_920, "light")], ids=str)
def test_it_fits_and_speaks_chinese(visit: Visits, look: Look) -> None:
    page = visit(f"/s/{PICTURES}?t=3", look=look)
    expect(page.get_by_role("button", name="播放", exact=True)).to_be_visible()
    expect(slider(page)).to_have_count(0)
    expect(page.get_by_role("slider", name="对话位置")).to_be_visible()
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert page.evaluate(wide) <= 0
    assert not re.search(r"viewer\.\w", page.locator("main").inner_text())
