"""Devices that fail or are slow: each case has its sentence, and goes on where it can."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser import calls
from tests.browser.devices import Devices, become, held_tracks, unplug
from tests.browser.problems import Problems
from tests.browser.test_audio_duplex_problems import expect_problem
from tests.browser.test_check import finding, press
from tests.browser.test_omni import NO_VOICE
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem


@pytest.mark.parametrize(
    ("devices", "text", "step"),
    [
        (
            Devices(permission="denied"),
            "The microphone is not allowed.",
            "icon next to the address",
        ),
        (Devices(microphone="none"), "No microphone was found.", "Connect one"),
        (Devices(microphone="busy"), "used by another program", "Close the other program"),
    ],
    ids=["denied", "none", "busy"],
)
def test_each_failure_of_the_microphone_has_its_sentence(
    visit: Visits, fake_site: RunningSystem, devices: Devices, text: str, step: str
) -> None:
    page = visit("/check", at=fake_site, devices=devices)
    press(page, "Test the microphone")
    finding(page, "microphone", "bad", text)
    finding(page, "microphone", "bad", step)
    expect(page.locator("#verdict")).to_have_attribute("data-kind", "bad")


@pytest.mark.parametrize(
    ("rate_hz", "state", "text"),
    [(25, "good", "640 × 360, 25 frames per second"), (5, "caution", "5 frames per second")],
    ids=["quick", "slow"],
)
def test_the_camera_is_judged_by_the_times_of_its_pictures(
    visit: Visits, fake_site: RunningSystem, rate_hz: int, state: str, text: str
) -> None:
    page = visit("", at=fake_site)
    # Pictures come as the script says, whatever the machine makes of its fake camera.
    page.add_init_script(
        f"""let nowMs = 0;
        HTMLVideoElement.prototype.requestVideoFrameCallback = (callback) =>
            setTimeout(() => callback((nowMs += 1000 / {rate_hz}), {{}}));"""
    )
    page.goto("/check")
    wait_until_ready(page)
    press(page, "Test the camera")
    finding(page, "camera", state, text)
    expect(page.locator("#camera-size")).to_contain_text("640 × 360")
    unplug(page, "camera")
    finding(page, "camera", "caution", "The camera was unplugged.")
    expect(page.locator("#camera-size")).to_be_hidden()


def test_unplugged_in_the_middle_and_plugged_in_again(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    problems.allow(NO_VOICE)
    page = visit("/audio_duplex", at=fake_site)
    calls.start(page)
    unplug(page, "microphone")
    expect_problem(page, "unplugged", "The microphone was unplugged.")
    calls.wait_for_phase(page, "paused")
    page.locator("#notice").get_by_role("button", name="Try the microphone again").click()
    expect_problem(page, "no_microphone", "No microphone was found.")
    become(page, "microphone", "file")  # the page sees by itself that one is there
    calls.wait_for_phase(page, "running")
    expect(page.locator("#notice")).to_be_hidden()
    assert held_tracks(page, "microphone") == 1


def test_the_chosen_microphone_is_used_again_when_it_comes_back(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    problems.allow(NO_VOICE)
    page = visit("/half_duplex", at=fake_site)
    calls.start(page)
    chosen = page.locator("[data-device=mic] option").nth(1).get_attribute("value")
    page.evaluate(
        """(chosen) => {
            const media = navigator.mediaDevices;
            const [ask, list] = [media.getUserMedia, media.enumerateDevices];
            const opened = [];
            media.getUserMedia = (wanted) => {
                opened.push(wanted.audio.deviceId?.exact === chosen);
                document.documentElement.dataset.opened = opened.join();
                return ask(wanted);
            };
            media.enumerateDevices = async () =>
                (await list()).filter(({ deviceId }) => !window.isGone || deviceId !== chosen);
            window.setGone = (isGone) => {
                window.isGone = isGone;
                media.dispatchEvent(new Event("devicechange"));
            };
        }""",
        chosen,
    )
    page.locator("[data-device=mic]").select_option(chosen, force=True)
    opened = expect(page.locator("html"))
    opened.to_have_attribute("data-opened", "true")
    page.evaluate("setGone(true)")
    opened.to_have_attribute("data-opened", "true,false")
    page.evaluate("setGone(false)")
    opened.to_have_attribute("data-opened", "true,false,true")
