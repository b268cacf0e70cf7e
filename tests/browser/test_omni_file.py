"""The video call with a file in place of the camera: pictures, sound, mixer."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser import calls
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.calls import Wire
from tests.browser.devices import Devices, held_tracks, now_ms, wait_until_playing
from tests.browser.media_files import RECORDINGS
from tests.browser.test_omni import decoded, open_call, pictures_of
from tests.browser.video_files import write_video
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

TAP = Devices(has_tap=True)
LONG_S = 15


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seconds with a tone."""
    return write_video(tmp_path_factory.mktemp("video") / "three.webm", 3)


def open_file(visit: Visits, at: RunningSystem, path: Path, **settings: object) -> Page:
    """Open the page in file mode and choose a video."""
    page = open_call(visit, at, TAP, source="file", **settings)
    choose(page, path)
    expect(page.locator("#file-panel [role=status]").first).to_contain_text(path.name)
    return page


def choose(page: Page, path: Path) -> None:
    """Choose a file as the picker would."""
    page.locator("#file-panel input[type=file]").set_input_files(path)


def test_a_file_plays_to_the_model(visit: Visits, site: RunningSystem, video: Path) -> None:
    page = open_call(visit, site, TAP)
    wire = Wire(page)
    page.get_by_role("radio", name="Video file").click()
    calls.press(page, "start")
    expect(page.locator("#file-panel .field-error")).to_have_text("Choose a video first.")
    choose(page, video)
    about = page.locator("#file-panel [role=status]").first
    expect(about).to_have_text("three.webm · 0:03 · 320 × 240")
    expect(page.locator("#screen")).to_have_attribute("data-picture", "file")
    expect(page.locator("#screen")).to_have_attribute("data-mirrored", "false")
    calls.start(page)
    expect(page.locator("#file-progress")).to_be_visible()
    expect(page.locator("[data-action=mute]")).to_be_hidden()
    assert held_tracks(page, "camera") == held_tracks(page, "microphone") == 0
    wait_until_playing(page)  # one hears the file as well
    calls.wait_for_phase(page, "ended")
    sent = pictures_of(wire)
    assert len(sent) == 5  # with two seconds of silence
    seen = [picture for pictures in sent for picture in pictures]
    assert 1 <= len(seen) <= 3  # on a busy machine some come too late
    assert {picture.size for picture in seen} == {(320, 240)}
    assert sum(result["vision_tokens"] for result in wire.got("result")) == 64 * len(seen)


def test_silence_stands_around_a_file(visit: Visits, site: RunningSystem, video: Path) -> None:
    page = open_file(visit, site, video)
    page.get_by_label("Silence before (s)").fill("1")
    page.get_by_label("Silence after (s)").fill("0")
    page.get_by_label("Silence after (s)").blur()
    wire = Wire(page)
    calls.start(page)
    calls.wait_for_phase(page, "ended")
    first, *others = pictures_of(wire)
    assert not first
    assert len(others) == 3
    assert any(others)


def test_large_pictures_are_made_smaller(
    visit: Visits, fake_site: RunningSystem, tmp_path: Path
) -> None:
    size = (1_920, 1_080)
    large = write_video(tmp_path / "large.webm", 60, size=size, rate_hz=1, has_sound=False)
    page = open_file(visit, fake_site, large)
    expect(page.locator("#mixer")).to_contain_text("The file is silent")
    wire = Wire(page)
    calls.start(page)
    wire.wait_until_said("video_frame")  # a busy machine decodes the first ones too late
    calls.stop(page)
    picture = decoded(wire.said("video_frame")[0])
    assert (picture.format, picture.size) == ("JPEG", (1_280, 720))


@pytest.mark.parametrize("sound", ["microphone", "both"])
def test_the_microphone_can_go_with_a_file(
    visit: Visits, fake_site: RunningSystem, video: Path, sound: str
) -> None:
    page = open_file(visit, fake_site, video, pad_after_s=0)
    page.locator(f"#file-panel [data-kind={sound}]").click()
    calls.start(page)
    assert held_tracks(page, "microphone") == 1
    expect(page.locator("[data-action=mute]")).to_be_visible()
    calls.wait_for_phase(page, "ended")
    assert held_tracks(page, "microphone") == 0


SLOW_SUSPENSION = """() => {
  const { suspend } = AudioContext.prototype;
  AudioContext.prototype.suspend = async function () {
    await new Promise((resolve) => setTimeout(resolve, 1_500));
    await suspend.call(this);
    document.body.dataset.isSuspended = "";
  };
}"""


def test_a_pause_holds_the_file(visit: Visits, fake_site: RunningSystem, tmp_path: Path) -> None:
    # Long enough for a busy machine to pause it before its end.
    video = write_video(tmp_path / "long.webm", LONG_S)
    page = open_file(visit, fake_site, video, file_sound="both", pad_after_s=0)
    wire = Wire(page)
    calls.start(page)
    calls.wait_for_units(page, 1)
    page.evaluate(SLOW_SUSPENSION)  # a second of the file is completed meanwhile
    calls.press(page, "pause")
    calls.wait_for_phase(page, "paused")
    page.locator("body[data-is-suspended]").wait_for()
    at = page.locator("#file-progress").get_attribute("value")
    picture = page.evaluate("document.querySelector('#picture').paused")
    assert picture is True
    page.get_by_role("button", name="Resume").click()
    calls.wait_for_phase(page, "ended")
    assert at is not None
    assert len(wire.said("audio_chunk")) == LONG_S  # nothing of it was lost


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sound", "This file contains audio only."),
        ("text", "The browser cannot read this video."),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(
    visit: Visits, site: RunningSystem, tmp_path: Path, name: str, sentence: str
) -> None:
    files = {"sound": RECORDINGS / "question_1.wav", "text": tmp_path / "text.mp4"}
    files["text"].write_text("This is no video.", encoding="utf8")
    page = open_call(visit, site, TAP, source="file")
    choose(page, files[name])
    expect(page.locator("#file-panel .field-error")).to_contain_text(sentence)
    expect(page.locator("#screen")).to_have_attribute("data-picture", "none")
    expect(page.get_by_role("button", name="Choose a video")).to_be_visible()


def test_the_mixer_measures_the_voice(visit: Visits, site: RunningSystem, video: Path) -> None:
    page = open_file(visit, site, video, file_sound="both")
    page.locator("#mixer summary").click()
    loudness = page.locator("#mixer [role=status]")
    expect(loudness).to_have_text(
        re.compile(r"^File -\d+\.\d LUFS, .* -\d+\.\d dB · Your voice is not measured yet$")
    )
    page.get_by_role("button", name="Measure my voice").click()
    expect(page.get_by_role("button", name="Speak now")).to_be_disabled()
    expect(loudness).to_have_text(re.compile(r"Your voice -\d+\.\d LUFS, .* [+-]?\d+\.\d dB$"))
    assert held_tracks(page, "microphone") == 0


def test_a_mix_can_be_tried_out(visit: Visits, site: RunningSystem, video: Path) -> None:
    page = open_file(visit, site, video, file_sound="both")
    page.locator("#mixer summary").click()
    expect(page.get_by_role("button", name="Listen")).to_be_disabled()
    assert axe_violations(page) == []
    assert layout_faults(page) == []
    page.get_by_role("button", name="Record a preview").click()
    heard = page.get_by_role("meter", name="What the model hears")
    expect(heard).not_to_have_attribute("aria-valuenow", "-60")
    page.locator("[data-action=preview-record]").click()
    expect(page.locator("#mixer")).to_have_attribute("data-doing", "recorded")
    assert held_tracks(page, "microphone") == 0
    since_ms = now_ms(page)
    page.get_by_role("button", name="Listen").click()
    wait_until_playing(page, since_ms)
    expect(page.locator("#mixer")).to_have_attribute("data-doing", "recorded")


def test_trims_change_what_the_model_hears(
    visit: Visits, fake_site: RunningSystem, tmp_path: Path
) -> None:
    video = write_video(tmp_path / "long.webm", 30)  # does not end before a busy machine is done
    page = open_file(visit, fake_site, video, trim_file_db=12)
    page.locator("#mixer summary").click()
    calls.start(page)
    expect(page.get_by_role("button", name="Measure my voice")).to_be_hidden()
    meter = page.get_by_role("meter", name="File")
    expect(meter).to_have_attribute("aria-valuenow", re.compile(r"^-1\d$"))  # -28 LUFS and 12 dB
    page.get_by_label("File louder or quieter (dB)").fill("-12")
    expect(meter).to_have_attribute("aria-valuenow", re.compile(r"^-[34]\d$"))
