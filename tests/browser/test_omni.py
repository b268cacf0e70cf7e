"""The video call with the camera, from the first click to the recording."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from tests.browser import calls
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.calls import Wire
from tests.browser.devices import Devices, become, held_tracks, unplug
from tests.browser.looks import Look
from tests.browser.media_files import FILM_SIZE
from tests.browser.video_files import read_video
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

SETTINGS = "omni_settings"
UNITS_MAX = 20
NO_VOICE = "HTTP 404 GET .*/api/default_ref_audio"  # the fake backend's system has none
AUDIBLE = 0.001


def open_call(
    visit: Visits, at: RunningSystem, devices: Devices | None = None, **settings: object
) -> Page:
    """Open the page with settings that let the model speak soon."""
    visit.problems.allow(NO_VOICE)
    storage = calls.eager_storage(SETTINGS, **settings)
    return visit("/omni", at=at, storage=storage, devices=devices or Devices(has_tap=True))


def decoded(message: dict[str, Any]) -> Image.Image:
    """Return the picture of a `video_frame`."""
    return Image.open(io.BytesIO(base64.b64decode(message["frame"])))


def pictures_of(wire: Wire) -> list[list[Image.Image]]:
    """Return the pictures that a page sent ahead of each of its chunks."""
    units: list[list[Image.Image]] = []
    ahead: list[Image.Image] = []
    for message in wire.sent:
        if message["type"] == "video_frame":
            ahead.append(decoded(message))
        elif message["type"] == "audio_chunk":
            units.append(ahead)
            ahead = []
    return units


def test_pictures_go_ahead_of_the_sound_and_are_all_seen(
    visit: Visits, site: RunningSystem
) -> None:
    page = open_call(visit, site)
    wire = Wire(page)
    calls.start(page)
    calls.wait_for_units(page, 4)
    calls.stop(page)
    assert not any("frame_base64_list" in chunk for chunk in wire.said("audio_chunk"))
    seen = [result["vision_slices"] for result in wire.got("result")]
    ahead = [len(pictures) for pictures in pictures_of(wire)][: len(seen)]
    # A unit that has to wait on a busy machine takes the next one's picture along.
    assert 0 < sum(ahead) <= sum(seen) <= len(wire.said("video_frame"))
    assert "bad_frame" not in {warning["code"] for warning in wire.got("warning")}


def test_hd_cuts_pictures_into_tiles(visit: Visits, site: RunningSystem) -> None:
    page = open_call(visit, site)
    wire = Wire(page)
    calls.start(page)
    calls.wait_for_units(page, 2)
    hd = page.get_by_role("button", name="HD")
    expect(hd).to_have_attribute("aria-pressed", "false")
    hd.click()
    expect(hd).to_have_attribute("aria-pressed", "true")
    calls.wait_for_units(page, len(wire.got("result")) + 3)
    # A unit may have several pictures on a busy machine, so the sums are compared.
    for _ in range(UNITS_MAX):
        tiles = [result["vision_slices"] for result in wire.got("result")]
        if sum(tiles) > len(wire.said("video_frame")):
            break
        calls.wait_for_units(page, len(tiles) + 1)
    assert sum(tiles) > len(wire.said("video_frame"))
    expect(page.locator("#figures")).to_have_text(re.compile(r" · \d+ tiles \(\d+ tokens\)"))
    assert wire.said("audio_chunk")[0]["max_slice_nums"] == 1
    assert wire.said("audio_chunk")[-1]["max_slice_nums"] == 2


def test_the_camera_can_be_seen_before_the_call(visit: Visits, site: RunningSystem) -> None:
    page = open_call(visit, site)
    assert held_tracks(page, "camera") == 0
    page.get_by_role("button", name="Turn on the camera").click()
    expect(page.locator("#screen")).to_have_attribute("data-picture", "camera")
    assert held_tracks(page, "microphone") == 0
    calls.start(page)
    assert held_tracks(page, "camera") == 1


def test_mirror_and_flip(visit: Visits, site: RunningSystem) -> None:
    page = open_call(visit, site)
    page.get_by_role("button", name="Turn on the camera").click()
    screen = page.locator("#screen")
    expect(screen).to_have_attribute("data-mirrored", "true")
    expect(page.locator("#picture")).to_have_css("scale", "-1 1")
    page.get_by_role("button", name="Mirror my picture").click()
    expect(screen).to_have_attribute("data-mirrored", "false")
    expect(page.locator("#picture")).to_have_css("scale", "none")
    page.get_by_role("button", name="Mirror my picture").click()
    page.get_by_role("button", name="Use the other camera").click()
    expect(page.get_by_text("There is no other camera.")).to_be_visible()
    expect(screen).to_have_attribute("data-mirrored", "false")  # what is in front is not mirrored
    expect(screen).to_have_attribute("data-picture", "camera")


def test_subtitles_follow_the_words_and_the_settings(visit: Visits, site: RunningSystem) -> None:
    page = open_call(visit, site, subtitle_height=40)
    calls.start(page)
    subtitles = page.locator("#subtitles")
    expect(subtitles).to_be_visible(timeout=60_000)
    expect(page.locator("#screen")).to_have_attribute("style", re.compile("--subtitle-height: 40%"))
    words = subtitles.text_content() or ""
    expect(page.locator("#transcript")).to_contain_text(words.split()[0])
    switch = page.get_by_role("button", name="Subtitles")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(subtitles).to_be_hidden()


@pytest.mark.parametrize("width_px", [360, 1_280])
def test_fullscreen_shows_picture_words_and_buttons(
    visit: Visits, site: RunningSystem, width_px: int
) -> None:
    storage = calls.eager_storage(SETTINGS)
    look = Look(width_px=width_px)
    page = visit("/omni", at=site, storage=storage, look=look, devices=Devices(has_tap=True))
    calls.start(page)
    page.get_by_role("button", name="Fullscreen").click()
    expect(page.locator("html")).to_have_attribute("data-full", "true")
    expect(page.locator("#nav")).to_have_attribute("inert", "")
    stage = page.locator("#call-stage").bounding_box()
    assert stage and (stage["x"], stage["y"], stage["width"]) == (0, 0, width_px)
    expect(page.locator("#chat-overlay li").first).to_be_visible(timeout=60_000)
    assert page.locator("#chat-overlay li").count() <= 12
    expect(page.locator("[data-action=stop]")).to_be_in_viewport()
    assert axe_violations(page) == []
    assert layout_faults(page) == []
    page.get_by_role("button", name="Leave fullscreen").click()
    expect(page.locator("html")).not_to_have_attribute("data-full", "true")
    expect(page.locator("#nav")).not_to_have_attribute("inert", "")
    expect(page.locator("#chat-overlay")).to_be_hidden()
    calls.stop(page)


def test_a_hidden_tab_pauses_picture_and_sound(visit: Visits, site: RunningSystem) -> None:
    page = open_call(visit, site)
    wire = Wire(page)
    calls.start(page)
    calls.wait_for_units(page, 1)
    calls.hide(page, is_hidden=True)
    calls.wait_for_phase(page, "paused")
    expect(page.locator("#stage .state-hint")).to_have_text("Paused while the page was hidden.")
    sent = len(wire.said("audio_chunk"))
    calls.hide(page, is_hidden=False)
    calls.wait_for_phase(page, "running")
    calls.wait_for_units(page, sent + 3)
    assert any(pictures_of(wire)[sent:])


def test_a_call_is_recorded_and_downloaded(
    visit: Visits, fake_site: RunningSystem, tmp_path: Path
) -> None:
    page = open_call(visit, fake_site, barge_in=False)  # the user talks all the time
    record = page.locator("#record")
    expect(record).to_be_disabled()
    calls.start(page)
    record.click()
    expect(record).to_have_attribute("aria-pressed", "true")
    calls.wait_for_state(page, "speaking")
    calls.wait_for_units(page, calls.units_sent(page) + 3)
    calls.stop(page)
    expect(record).to_have_attribute("aria-pressed", "false")
    with page.expect_download() as download:
        calls.press(page, "download-video")
    assert re.fullmatch(r"omni_\w+\.webm", download.value.suggested_filename)
    path = tmp_path / "call.webm"
    download.value.save_as(path)
    seen = read_video(path)
    assert seen.size == FILM_SIZE
    assert seen.frame_count > 1
    assert not seen.is_dark
    assert seen.channel_count == 2
    assert min(seen.levels) > AUDIBLE  # the user left, the model right


def test_a_muted_user_is_not_recorded(
    visit: Visits, fake_site: RunningSystem, tmp_path: Path
) -> None:
    page = open_call(visit, fake_site)
    calls.start(page)
    calls.press(page, "mute")
    page.locator("#record").click()
    calls.wait_for_state(page, "speaking")
    calls.wait_for_units(page, calls.units_sent(page) + 2)
    page.locator("#record").click()
    with page.expect_download() as download:
        calls.press(page, "download-video")
    path = tmp_path / "call.webm"
    download.value.save_as(path)
    user, model = read_video(path).levels
    assert user < AUDIBLE < model
    page.get_by_role("button", name="Remove omni_").click()
    expect(page.locator("[data-action=download-video]")).to_have_count(0)


def test_a_recording_that_cannot_begin_says_so(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site)
    calls.start(page)
    refuse = "() => { throw new DOMException('', 'UnknownError'); }"
    page.evaluate(f"void (MediaRecorder.prototype.start = {refuse})")
    record = page.locator("#record")
    record.click()
    expect(page.locator(".toasts")).to_contain_text("This browser cannot record video.")
    expect(record).to_have_attribute("aria-pressed", "false")


def test_how_a_call_is_recorded_is_chosen(visit: Visits, site: RunningSystem) -> None:
    page = visit("/omni", at=site)
    page.get_by_role("button", name="Recording settings").click()
    expect(page.get_by_label("File format").locator("option[value=webm-vp8]")).to_have_count(1)
    page.get_by_label("File format").select_option("webm-vp8")
    page.get_by_label("Picture quality").select_option("8 Mbit/s")
    page.get_by_label("Draw the subtitles into the picture").uncheck()
    page.reload()
    page.get_by_role("button", name="Recording settings").click()
    expect(page.get_by_label("File format")).to_have_value("webm-vp8")
    expect(page.get_by_label("Picture quality")).to_have_value("8000000")
    expect(page.get_by_label("Draw the subtitles into the picture")).not_to_be_checked()


def test_without_permission_a_file_or_a_voice_call_is_offered(
    visit: Visits, site: RunningSystem
) -> None:
    page = visit("/omni", at=site, devices=Devices(permission="denied"))
    calls.press(page, "start")
    notice = page.locator("#notice")
    expect(notice).to_contain_text("The camera is not allowed.")
    expect(notice.get_by_role("link", name="Voice call")).to_have_attribute("href", "/audio_duplex")
    expect(page.locator("[data-action=start]")).to_be_enabled()
    notice.get_by_role("button", name="Use a video file").click()
    expect(notice).to_be_hidden()
    expect(page.get_by_role("button", name="Choose a video")).to_be_visible()


def test_a_lost_camera_does_not_end_the_call(visit: Visits, site: RunningSystem) -> None:
    page = open_call(visit, site)
    wire = Wire(page)
    calls.start(page)
    calls.wait_for_units(page, 2)
    unplug(page, "camera")
    expect(page.locator("#notice")).to_contain_text("the call continues with audio only")
    expect(page.locator("#screen")).to_contain_text("No picture at the moment.")
    calls.wait_for_units(page, calls.units_sent(page) + 2)
    assert not pictures_of(wire)[-1]
    calls.wait_for_phase(page, "running")
    become(page, "camera", "file")
    page.get_by_role("button", name="Try the camera again").click()
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#screen")).to_have_attribute("data-picture", "camera")
    without = len(wire.said("audio_chunk"))
    calls.wait_for_units(page, without + 2)
    assert any(pictures_of(wire)[without:])
