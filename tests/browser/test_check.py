"""Device check: each device is tried out, and each way to fail has its own sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from benchmarks.launched import wait_until
from tests.browser.audits import axe_violations
from tests.browser.devices import Devices, become, held_tracks, unplug
from tests.browser.looks import Look
from tests.browser.media_files import silence_16k, speech_16k, write_speech
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready

pytestmark = pytest.mark.matrix

FAINT = 0.05  # of the recorded voice
RECORD_LIMIT_MS = 120_000
ECHO_SCRIPT = Path(__file__).with_name("inject") / "echo.js"
HALF_DB = 6
LIMIT_S = 120.0
ROUND_TRIP_MS = 5


def finding(page: Page, check: str, state: str, text: str | re.Pattern[str]) -> None:
    """Expect a check to have come to a result."""
    card = page.locator(f'[data-check="{check}"]')
    expect(card.locator(".check-result")).to_contain_text(text)
    expect(card).to_have_attribute("data-state", state)


def press(page: Page, name: str) -> None:
    """Press the button with a name."""
    page.get_by_role("main").get_by_role("button", name=name, exact=True).click()


def say_that_it_was_heard(page: Page) -> None:
    """Play the melody and answer the question."""
    press(page, "Play the melody")
    press(page, "Yes, I heard it")


def near(visit: Visits) -> Page:
    """Open the page; each call to the server takes the same time, whatever the machine does."""
    page = visit("")
    page.add_init_script(f"let nowMs = 0; performance.now = () => (nowMs += {ROUND_TRIP_MS});")
    page.goto("/check")
    wait_until_ready(page)
    finding(page, "server", "good", f"Near and steady: {ROUND_TRIP_MS} ms")
    page.evaluate("delete performance.now")
    return page


def test_browser_and_network_are_checked_by_themselves(visit: Visits) -> None:
    page = near(visit)
    finding(page, "browser", "good", "everything that is needed")
    expect(page.locator("#verdict-text")).to_have_text("2 of 4 checks are done.")
    expect(page.locator(".ability[data-state=good]")).to_have_count(8)


def test_speech_is_heard_well(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Start the check")
    finding(page, "microphone", "good", "Your microphone works well.")
    expect(page.locator("#meter-word")).to_have_text("Good")
    expect(page.get_by_role("meter")).to_have_attribute("aria-valuetext", "Good")
    press(page, "Turn it off")
    expect(page.locator("#meter-word")).to_have_text("The microphone is off.")
    assert held_tracks(page, "microphone") == 0


def test_the_peak_stays_for_a_moment(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Test the microphone")
    page.wait_for_function(
        """() => {
            const valueOf = (part, name) =>
                Number(document.querySelector(part).style.getPropertyValue(name));
            const peak = valueOf(".meter-peak", "--at");
            return peak > 0.5 && peak > valueOf(".meter-bar", "--level");
        }"""
    )


def test_loudness_is_put_into_words(visit: Visits, tmp_path: Path) -> None:
    samples = np.tile(speech_16k("question_1"), 4) * np.float32(FAINT)
    page = visit("", devices=Devices(speech=write_speech(tmp_path / "voice.wav", samples)))
    # The browser's own gain control would make all voices equally loud.
    page.add_init_script(
        """const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
        navigator.mediaDevices.getUserMedia = (wanted) => ask({ ...wanted, audio: wanted.audio && {
            ...wanted.audio, autoGainControl: false, noiseSuppression: false } });"""
    )
    page.goto("/check")
    wait_until_ready(page)
    press(page, "Test the microphone")
    expect(page.locator("#meter-word")).to_have_text("Too quiet")
    finding(page, "microphone", "caution", "Your voice is faint")


def test_a_muted_microphone_is_told_from_a_quiet_one(visit: Visits, tmp_path: Path) -> None:
    silence = write_speech(tmp_path / "silence.wav", silence_16k(4))
    page = visit("/check", devices=Devices(speech=silence))
    press(page, "Test the microphone")
    finding(page, "microphone", "bad", "No sound comes from the microphone.")
    finding(page, "microphone", "bad", "mute switch")
    expect(page.locator("#verdict-text")).to_have_text("Something needs fixing.")


def test_a_microphone_that_is_mended_works_on_the_next_press(visit: Visits) -> None:
    page = visit("/check", devices=Devices(microphone="busy"))
    press(page, "Test the microphone")
    finding(page, "microphone", "bad", "used by another program")
    become(page, "microphone", "file")
    press(page, "Test the microphone")
    finding(page, "microphone", "good", "Your microphone works well.")


def test_a_microphone_turned_off_before_it_was_judged_is_not_checked(visit: Visits) -> None:
    page = visit("/check")
    page.evaluate("performance.now = () => 0")  # no speech is ever long enough to be judged
    for turn_off in ("Turn it off", "Measure the echo"):
        press(page, "Test the microphone")
        finding(page, "microphone", "running", "Say a few words.")
        press(page, turn_off)
        expect(page.locator("#microphone")).to_have_attribute("data-state", "pending")
        expect(page.locator("#microphone .check-result")).to_be_empty()


def test_the_keyboard_stays_with_the_camera(visit: Visits) -> None:
    page = visit("/check")
    page.get_by_role("button", name="Test the camera").press("Enter")
    expect(page.locator("#camera-stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#camera-start")).to_be_focused()


def test_an_unplugged_microphone_is_noticed(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Test the microphone")
    finding(page, "microphone", "good", "Your microphone works well.")
    unplug(page, "microphone")
    finding(page, "microphone", "bad", "The microphone was unplugged.")
    expect(page.get_by_role("button", name="Test the microphone")).to_be_visible()


def test_an_insecure_page_says_what_to_do(visit: Visits, problems: Problems) -> None:
    problems.allow("Cross-Origin-Opener-Policy header has been ignored")
    page = visit("/check", is_secure=False)
    finding(page, "browser", "bad", "Browsers allow the microphone on secure pages only.")
    press(page, "Test the microphone")
    finding(page, "microphone", "bad", "https://")
    press(page, "Test the camera")
    finding(page, "camera", "caution", "https://")


def test_one_hears_oneself(visit: Visits) -> None:
    page = visit("/check", devices=Devices(has_tap=True))
    expect(page.get_by_role("button", name="Record 3 seconds")).to_be_disabled()
    press(page, "Test the microphone")
    press(page, "Record 3 seconds")
    expect(page.locator("#mic-record")).to_have_text("Recording… speak")
    player = page.locator("#mic-clip")
    expect(player).to_contain_text("/ 0:03", timeout=RECORD_LIMIT_MS)
    expect(player.get_by_role("button")).to_be_focused()
    expect(page.get_by_role("button", name="Record 3 seconds")).to_be_enabled()


def test_the_melody_plays_left_and_right(visit: Visits) -> None:
    page = visit("/check", devices=Devices(has_tap=True))
    press(page, "Play the melody")
    expect(page.locator(".sides")).to_have_attribute("data-side", "left")
    expect(page.locator(".sides")).to_have_attribute("data-side", "right")
    expect(page.get_by_role("button", name="Yes, I heard it")).to_be_focused()
    assert page.evaluate("__tap.frames.some((frame) => frame.rms > 0.02)")
    page.keyboard.press("Enter")
    finding(page, "speaker", "good", "The speaker works.")


def test_a_melody_nobody_heard(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Play the melody")
    press(page, "No")
    finding(page, "speaker", "bad", "Turn up the volume")
    expect(page.locator("#verdict-next")).to_contain_text("Speaker")


def test_a_camera_is_not_needed(visit: Visits) -> None:
    page = visit("/check", devices=Devices(permission="denied"))
    press(page, "Test the camera")
    finding(page, "camera", "caution", "The camera is not allowed.")


def test_blocked_sockets_are_told_from_a_lost_server(visit: Visits, problems: Problems) -> None:
    problems.allow("ERR_FAILED")
    page = visit("")
    page.add_init_script(
        """window.WebSocket = class extends EventTarget {
            constructor() { super(); queueMicrotask(() => this.dispatchEvent(
                Object.assign(new Event("close"), { code: 1006, reason: "" }))); }
            close() {}
        };"""
    )
    page.goto("/check")
    finding(page, "server", "bad", "live connections are blocked")
    page.route("**/health", lambda route: route.abort())
    press(page, "Test again")
    finding(page, "server", "bad", "The server could not be reached.")


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        (
            {"idle_workers": 0, "free_slots": 0, "loading_workers": 1},
            "caution",
            "The model is still loading.",
        ),
        ({"idle_workers": 0, "free_slots": 0, "error_workers": 1}, "bad", "No worker is running."),
    ],
    ids=["loading", "no-worker"],
)
def test_the_workers_are_part_of_the_way(
    visit: Visits, changes: dict[str, int], state: str, text: str
) -> None:
    page = visit("")

    def handle(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | changes)

    page.route("**/status", handle)
    page.goto("/check")
    finding(page, "server", state, text)


def test_a_browser_without_recording_still_talks(visit: Visits) -> None:
    page = visit("")
    page.add_init_script("delete window.MediaRecorder")
    page.goto("/check")
    finding(page, "browser", "caution", "lacks some extras")
    expect(page.locator("#abilities")).to_contain_text("calls cannot be recorded here")


def test_ready_and_on_to_the_conversation(visit: Visits) -> None:
    page = near(visit)
    press(page, "Start the check")
    finding(page, "microphone", "good", "Your microphone works well.")
    press(page, "Next: Speaker")
    press(page, "Yes, I heard it")
    expect(page.locator("#verdict-text")).to_have_text("You are ready.")
    page.get_by_role("link", name="Start talking").click()
    page.wait_for_url("**/audio_duplex*")


def test_the_report_is_plain_text(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Test the microphone")
    finding(page, "microphone", "good", "Your microphone works well.")
    press(page, "Copy the report")
    expect(page.locator(".toast")).to_have_text("Copied.")
    text = page.evaluate("navigator.clipboard.readText()")
    assert "Microphone: Fine" in text
    assert re.search(r"context_hz: \d+", text)
    assert re.search(r"median_ms: \d+", text)
    assert "Chrome" in text


def test_where_copying_is_refused_the_report_is_marked(visit: Visits) -> None:
    page = visit("")
    page.add_init_script(
        """navigator.clipboard.writeText = async () => {
            throw new DOMException("no", "NotAllowedError");
        };"""
    )
    page.goto("/check")
    wait_until_ready(page)
    press(page, "Copy the report")
    expect(page.locator("#report")).to_be_visible()
    marked = "() => getSelection().toString()"
    wait_until("marked", lambda: "Microphone" in page.evaluate(marked), LIMIT_S)


def test_the_chosen_microphone_is_opened(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Test the microphone")
    chooser = page.get_by_role("combobox", name="Microphone")
    label = chooser.locator("option").nth(1).inner_text()
    chooser.select_option(label=label)
    finding(page, "microphone", "good", "Your microphone works well.")
    page.locator("#report-panel summary").click()
    expect(page.locator("#report")).to_contain_text(f"device: {label}")
    assert held_tracks(page, "microphone") == 1


def test_the_language_changes_while_it_runs(visit: Visits) -> None:
    page = visit("/check")
    press(page, "Test the microphone")
    finding(page, "microphone", "good", "Your microphone works well.")
    page.locator("#report-panel summary").click()
    page.locator("#language").click()
    finding(page, "microphone", "good", "麦克风工作正常。")
    expect(page.locator("#steps a").first).to_contain_text("浏览器")
    expect(page.locator("#report")).to_contain_text("麦克风: 正常")
    assert held_tracks(page, "microphone") == 1


def test_leaving_lets_the_devices_go(visit: Visits) -> None:
    page = visit("/check", look=Look(width_px=360))
    press(page, "Test the microphone")
    finding(page, "microphone", "good", "Your microphone works well.")
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    page.wait_for_function("() => __devices.held('microphone') === 0")


def test_no_echo_is_heard(visit: Visits, tmp_path: Path) -> None:
    silence = write_speech(tmp_path / "silence.wav", silence_16k(4))
    page = visit("/check", devices=Devices(speech=silence))
    press(page, "Measure the echo")
    finding(page, "echo", "good", "The microphone does not pick up the speaker.")
    assert held_tracks(page, "microphone") == 0


@pytest.mark.parametrize(
    ("echo", "state", "text"),
    [
        ({"plain": 0.5, "cancelled": 0.5}, "caution", "Use headphones"),
        ({"plain": 0.5, "cancelled": 0.0}, "good", "the browser cancels the echo"),
    ],
    ids=["loud", "removed"],
)
def test_an_echo_is_measured(visit: Visits, echo: dict[str, float], state: str, text: str) -> None:
    page = visit("")
    page.add_init_script(ECHO_SCRIPT.read_text().replace("ECHO;", f"{json.dumps(echo)};", 1))
    page.goto("/check")
    wait_until_ready(page)
    press(page, "Measure the echo")
    finding(page, "echo", state, text)
    found = page.locator("#echo .check-result").inner_text()
    measured = re.search(r"(\d+) dB below the output, after (\d+) ms", found)
    assert measured
    assert int(measured[2]) > 0
    if state == "caution":
        assert abs(int(measured[1]) - HALF_DB) <= 1


def test_the_echo_needs_the_microphone(visit: Visits) -> None:
    page = visit("/check", devices=Devices(permission="denied"))
    press(page, "Measure the echo")
    finding(page, "echo", "bad", "The microphone is not allowed.")


def test_no_rule_is_broken_while_it_runs(visit: Visits) -> None:
    page = visit("/check", look=Look(theme="dark"), devices=Devices(camera="busy"))
    press(page, "Test the microphone")
    finding(page, "microphone", "good", "Your microphone works well.")
    press(page, "Test the camera")
    finding(page, "camera", "caution", "used by another program")
    press(page, "Play the melody")
    expect(page.locator("#speaker-question")).to_be_visible()
    page.locator("#report-panel summary").click()
    assert axe_violations(page) == []
