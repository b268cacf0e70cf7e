"""The voice call, from the first click to the recording."""

from __future__ import annotations

import re
import wave
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from benchmarks.launched import wait_until
from tests.browser import calls
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.calls import Wire
from tests.browser.conftest import SiteMaker
from tests.browser.devices import (
    Devices,
    become,
    held_tracks,
    now_ms,
    played,
    unplug,
    wait_until_playing,
    wait_until_quiet,
)
from tests.browser.looks import Look
from tests.browser.media_files import RECORDINGS
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

SETTINGS = "audio_duplex_settings"
END_LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def _no_default_voice(problems: Problems) -> None:
    """The fake backend comes without a voice of its own."""
    problems.allow("HTTP 404 GET .*/api/default_ref_audio")


def open_call(visit: Visits, at: RunningSystem | None = None, **settings: object) -> Page:
    """Open the page with settings that let the model speak soon."""
    storage = calls.eager_storage(SETTINGS, **settings)
    return visit("/audio_duplex", at=at, storage=storage, devices=Devices(has_tap=True))


def test_what_was_heard_and_said_can_be_downloaded(
    visit: Visits, fake_site: RunningSystem, tmp_path: Path
) -> None:
    page = open_call(visit, fake_site)
    calls.start(page)
    calls.wait_for_state(page, "speaking")
    calls.wait_for_units(page, 3)
    calls.stop(page)
    with page.expect_download() as download:
        calls.press(page, "download")
    assert re.fullmatch(r"adx_\w+\.wav", download.value.suggested_filename)
    path = tmp_path / "call.wav"
    download.value.save_as(path)
    with wave.open(str(path)) as sound:
        assert (sound.getnchannels(), sound.getframerate()) == (2, 16_000)
        assert sound.getnframes() > 2 * 16_000


def test_a_hidden_tab_pauses_and_goes_on_by_itself(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site)
    calls.start(page)
    calls.hide(page, is_hidden=True)
    calls.wait_for_phase(page, "paused")
    expect(page.locator("#stage .state-hint")).to_have_text("Paused while the page was hidden.")
    calls.hide(page, is_hidden=False)
    calls.wait_for_phase(page, "running")


def test_the_button_interrupts_the_model(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site, barge_in=False)  # the voice of the microphone does not
    wire = Wire(page)
    calls.start(page)
    page.evaluate(
        """() => {
            const stage = document.getElementById("stage");
            globalThis.states = [];
            const note = () => states.push(stage.dataset.callState);
            new MutationObserver(note).observe(stage, { attributeFilter: ["data-call-state"] });
        }"""
    )
    wait_until_playing(page)
    calls.press(page, "interrupt")
    page.wait_for_function("() => states.includes('interrupted')")  # it may be over by now
    wait_until_quiet(page, quiet_ms=200)
    assert len(wire.said("interrupt")) == 1
    cut = page.locator(".turn[data-who=model]", has_text="Interrupted")
    expect(cut).to_have_count(1)
    wait_until_playing(page, since_ms=now_ms(page))


def test_a_file_speaks_in_place_of_the_user(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site)
    page.get_by_role("radio", name="Audio file").click()
    calls.press(page, "start")
    expect(page.locator("#source .field-error")).to_have_text("Choose a file first.")
    page.locator("#source input[type=file]").set_input_files(RECORDINGS / "question_1.wav")
    expect(page.locator("#source [role=status]")).to_contain_text("question_1.wav")
    calls.start(page)
    expect(page.locator("#file-progress")).to_be_visible()
    expect(page.locator("[data-action=mute]")).to_be_hidden()
    assert held_tracks(page, "microphone") == 0
    calls.wait_for_phase(page, "ended")
    expect(page.locator(".turn[data-who=user]")).to_have_count(1)


def test_a_file_and_the_microphone_speak_together(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site, source="mix", pad_after_s=0)
    page.locator("#source input[type=file]").set_input_files(RECORDINGS / "question_1.wav")
    expect(page.locator("#source [role=status]")).to_contain_text("question_1.wav")
    calls.start(page)
    assert held_tracks(page, "microphone") == 1
    calls.wait_for_phase(page, "ended")
    assert held_tracks(page, "microphone") == 0


WATCHED_SUSPENSION = """() => {
  const { suspend, resume } = AudioContext.prototype;
  const resumed = new Set();
  AudioContext.prototype.resume = function () {
    resumed.add(this);
    return resume.call(this);
  };
  AudioContext.prototype.suspend = function () {
    // Called after the page's own listeners, which were there before.
    const note = () => (document.body.dataset.pause ??= resumed.has(this) ? "undone" : "held");
    this.addEventListener("statechange", note);
    return suspend.call(this);
  };
}"""


def start_mix(visit: Visits, site: RunningSystem) -> Page:
    """Start a call with a file and the microphone beside it."""
    page = open_call(visit, site, source="mix", pad_after_s=30)
    page.locator("#source input[type=file]").set_input_files(RECORDINGS / "question_1.wav")
    expect(page.locator("#source [role=status]")).to_contain_text("question_1.wav")
    calls.start(page)
    return page


def test_a_pause_holds_a_file_and_the_microphone_beside_it(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = start_mix(visit, fake_site)
    calls.wait_for_units(page, 1)
    page.evaluate(WATCHED_SUSPENSION)
    calls.press(page, "pause")
    calls.wait_for_phase(page, "paused")
    expect(page.locator("body")).to_have_attribute("data-pause", "held")
    calls.stop(page)


def test_a_file_goes_on_when_the_microphone_beside_it_comes_back(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = start_mix(visit, fake_site)
    calls.wait_for_units(page, 2)
    before = page.evaluate("document.querySelector('#file-progress').value")
    unplug(page, "microphone")
    calls.wait_for_phase(page, "paused")
    become(page, "microphone", "file")
    calls.wait_for_phase(page, "running")
    progress = page.evaluate(
        """() => new Promise((resolve) => {
            const bar = document.querySelector("#file-progress");
            new MutationObserver(() => resolve(bar.value)).observe(bar, { attributes: true });
        })"""
    )
    assert progress >= before > 1
    assert held_tracks(page, "microphone") == 1
    calls.stop(page)
    assert held_tracks(page, "microphone") == 0


def test_a_file_that_is_no_sound_is_refused(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site, source="file")
    page.locator("#source input[type=file]").set_input_files(RECORDINGS / "frame_0.png")
    expect(page.locator("#source .field-error")).to_contain_text("cannot read any audio")


def test_units_can_be_read_with_the_keyboard(visit: Visits, fake_site: RunningSystem) -> None:
    page = open_call(visit, fake_site)
    calls.start(page)
    calls.wait_for_units(page, 4)
    calls.stop(page)
    plot = page.get_by_role("slider", name="Timeline of the last units")
    plot.focus()
    page.keyboard.press("Home")
    expect(plot).to_have_attribute("aria-valuetext", re.compile(r"^No\. 1: \w+ · \d+ of 1,000 ms"))
    page.keyboard.press("ArrowRight")
    expect(page.locator(".timeline-readout")).to_have_text(re.compile(r"^No\. 2:"))
    page.keyboard.press("Escape")
    expect(page.locator(".timeline-readout")).not_to_have_text(re.compile(r"^No\. [12]:"))


def test_the_sounds_of_the_line_can_be_muted(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=1)
    first = visit("/audio_duplex", at=system)
    calls.start(first)
    storage = {"minicpmo_chimes_muted": "true"}
    second = visit("/audio_duplex", at=system, storage=storage, devices=Devices(has_tap=True))
    calls.press(second, "start")
    calls.wait_for_phase(second, "queued")
    mute = second.get_by_role("button", name="Mute the sounds")
    expect(mute).to_have_attribute("aria-pressed", "true")
    expect(second.locator(".queue-wait")).not_to_be_empty()
    assert not [one for one in played(second) if one.is_audible]
    mute.click()
    expect(mute).to_have_attribute("aria-pressed", "false")
    wait_until_playing(second)


def test_words_change_with_the_language_in_the_middle_of_a_call(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit("/audio_duplex", at=fake_site, look=Look(width_px=360))
    calls.start(page)
    page.get_by_role("button", name="中文").click()
    expect(page.locator("[data-action=stop]")).to_contain_text("结束")
    calls.wait_for_units(page, 2)
    calls.stop(page)
    expect(page.locator("#stage .state-word")).to_have_text("已结束")


@pytest.mark.parametrize("look", [Look("zh", 360, "light"), Look("en", 1_280, "dark")], ids=str)
def test_no_rule_is_broken_during_and_after_a_call(
    visit: Visits, fake_site: RunningSystem, look: Look
) -> None:
    page = visit("/audio_duplex", at=fake_site, look=look)
    calls.start(page)
    page.locator(".turn[data-who=user]").first.wait_for()
    page.locator(".turn[data-who=model]").first.wait_for(timeout=calls.CALL_LIMIT_MS)
    assert axe_violations(page) == []
    assert layout_faults(page) == []
    calls.stop(page)
    page.locator("#open-settings").click()
    assert axe_violations(page) == []


def test_leaving_the_page_ends_the_call(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/audio_duplex", at=fake_site)
    calls.start(page)
    assert len(fake_site.get("/status")["running_tasks"]) == 1
    page.goto("/")
    wait_until("nobody talks", lambda: not fake_site.get("/status")["running_tasks"], END_LIMIT_S)


def test_the_neural_voice_detector_comes_when_it_is_chosen(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = open_call(visit, fake_site, barge_gate="silero")
    with page.expect_response("**/vendor/silero/silero_vad.onnx") as fetched:
        calls.start(page)
    assert fetched.value.ok
    # The looped voice talks into the answer and is taken for speech by the network too.
    page.locator(".turn-cut").first.wait_for(timeout=60_000)


def test_without_the_neural_voice_detector_the_call_goes_on(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    problems.allow(r"HTTP 404 GET .*/vendor/onnxruntime", r"console: .*onnxruntime")
    page = visit("", at=fake_site, storage=calls.eager_storage(SETTINGS, barge_gate="silero"))
    page.route("**/vendor/onnxruntime/**", lambda route: route.fulfill(status=404))
    page.goto("/audio_duplex")
    calls.start(page)
    expect(page.locator(".toast")).to_contain_text("not installed on the server")
    calls.wait_for_units(page, 3)
