"""Each page with the keyboard alone: one path, with the focus where a person expects it."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser import calls, kept
from tests.browser.admin_desk import expect_toast, section, worker_of
from tests.browser.chats import ask, box
from tests.browser.conftest import SiteMaker
from tests.browser.looks import Look
from tests.browser.problems import Problems
from tests.browser.test_home import settled
from tests.browser.test_omni import NO_VOICE
from tests.browser.test_prompt_components import preset
from tests.browser.test_viewer import expect_at
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem


def test_home(visit: Visits, fake_site: RunningSystem, problems: Problems) -> None:
    problems.allow(NO_VOICE)  # asked for by the page that follows
    page = visit("/", at=fake_site)
    settled(page)
    page.keyboard.press("Tab")
    expect(page.locator(".skip-link")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#start")).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**/audio_duplex*")
    wait_until_ready(page)


def test_device_check(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/check", at=fake_site, look=Look(width_px=360))
    step = page.locator("#steps").get_by_role("link", name="Camera")
    step.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#camera")).to_be_in_viewport()
    page.keyboard.press("Tab")
    expect(page.locator("#camera select")).to_be_focused()


def test_chat(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/turnbased", at=fake_site, look=Look(width_px=360))
    ask(page, "A line\nand another")
    expect(page.locator("#history")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(page.locator("#history")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#history")).to_be_hidden()
    expect(page.get_by_role("button", name="Conversations")).to_be_focused()
    box(page).press("Shift+Enter")
    expect(box(page)).to_have_value("\n")


def test_voice_turns(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/half_duplex", at=fake_site)
    english, chinese = preset(page, "Phone call in English"), preset(page, "Phone call in Chinese")
    english.focus()
    page.keyboard.press("ArrowRight")
    expect(chinese).to_be_focused()
    expect(chinese).to_have_attribute("aria-checked", "true")
    expect(english).to_have_attribute("tabindex", "-1")
    page.keyboard.press("ArrowDown")
    expect(english).to_be_focused()
    page.keyboard.press("End")
    expect(chinese).to_be_focused()


def test_voice_call(visit: Visits, fake_site: RunningSystem, problems: Problems) -> None:
    problems.allow(NO_VOICE)
    page = visit("/audio_duplex", at=fake_site)
    page.locator("[data-action=start]").focus()
    page.keyboard.press("Enter")
    calls.wait_for_phase(page, "running")
    assert page.evaluate("document.activeElement.closest('#controls') !== null")


def test_administration(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1)
    page = visit("/admin#workers", at=system)
    restart = page.get_by_role("button", name="Restart")
    restart.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog[open]")
    # The harmless answer is the one at hand.
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    expect(restart).to_be_focused()
    assert worker_of(system)["is_restarting"] is False
    page.locator("[data-goto=apps]").focus()
    page.keyboard.press("Enter")
    switch = section(page, "apps").get_by_role("switch", name="Voice call")
    switch.focus()
    page.keyboard.press("Space")
    expect_toast(page, "Voice call is switched off.")
    page.keyboard.press("Space")
    expect_toast(page, "Voice call is switched on.")


def test_replay(visit: Visits, fake_site: RunningSystem) -> None:
    kept.keep_call(fake_site, "keyboard_call")
    page = visit("/s/keyboard_call?t=4.5", at=fake_site)
    expect_at(page, 4.5)
    steps = [
        ("ArrowRight", 5.5),
        ("ArrowLeft", 4.5),
        ("Shift+ArrowRight", 9.5),
        ("Shift+ArrowLeft", 4.5),
        (".", 5.0),
        (".", 6.0),
        (",", 5.0),
        (",", 4.0),
        ("l", 12.0),
        ("j", 2.0),
        ("End", 12.0),
        ("Home", 0.0),
    ]
    for key, seconds in steps:
        page.keyboard.press(key)
        expect_at(page, seconds)


def test_video_call(visit: Visits, fake_site: RunningSystem, problems: Problems) -> None:
    problems.allow(NO_VOICE)
    page = visit("/omni", at=fake_site)
    page.locator("[data-action=start]").focus()
    page.keyboard.press("Enter")
    calls.wait_for_phase(page, "running")
    page.get_by_role("button", name="Fullscreen").focus()
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-full", "true")
    page.get_by_role("button", name="Leave fullscreen").focus()
    page.keyboard.press("Enter")
    expect(page.locator("html")).not_to_have_attribute("data-full", "true")
    stop = page.locator("[data-action=stop]")
    stop.focus()
    page.keyboard.press("Enter")
    calls.wait_for_phase(page, "ended")
