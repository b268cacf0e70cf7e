"""Home: what works here is said in words, and one button leads to a conversation."""

from __future__ import annotations

import json
import re
from typing import Literal

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.devices import Devices, become, unplug
from tests.browser.looks import Look
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem

READY = "Everything is ready."
NOT_REACHED = "The server could not be reached."
CHECKED = re.compile(r"^(good|caution|bad)$")


def line_of(page: Page, name: str, state: str, text: str) -> None:
    """Expect a line of the card to be in a state and to say something."""
    line = page.locator(f'[data-line="{name}"]')
    expect(line).to_have_attribute("data-state", state)
    expect(line).to_contain_text(text)


def settled(page: Page) -> None:
    """Wait until nothing is being looked for any more."""
    expect(page.locator('[data-line][data-state="asking"]')).to_have_count(0)


def answer_status(page: Page, **changes: object) -> None:
    """Have the server say something else about itself from now on."""

    def handle(route: Route) -> None:
        status = route.fetch().json()
        route.fulfill(json=status | changes)

    page.route("**/status", handle)


def ask_again(page: Page) -> None:
    """Have the page look at the server at once, as when its tab is shown again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def set_app(system: RunningSystem, app_id: str, *, enabled: bool) -> None:
    """Turn an administrator's switch."""
    answer = system.ask("PUT", f"/api/admin/apps/{app_id}", json={"enabled": enabled})
    assert answer.status_code == httpx.codes.OK


def test_everything_works(visit: Visits) -> None:
    page = visit("/")
    settled(page)
    expect(page.locator("#hero-summary")).to_contain_text(READY)
    line_of(page, "secure", "good", "Secure")
    line_of(page, "microphone", "good", "Allowed")
    line_of(page, "camera", "good", "Allowed")
    line_of(page, "worker", "good", "room for")
    line_of(page, "queue", "good", "Nobody is waiting.")
    expect(page.locator("#recent")).to_be_hidden()  # without recordings there is no empty list


def test_the_published_model_needs_no_note(visit: Visits) -> None:
    page = visit("")
    answer_status(page, model={"name": "MiniCPM-o 4.5", "kind": "full", "is_demonstration": False})
    page.goto("/")
    line_of(page, "model", "good", "MiniCPM-o 4.5 is loaded.")
    expect(page.locator("#model-note")).to_be_hidden()


def test_a_suggestion_is_said_and_answered_without_a_microphone(visit: Visits) -> None:
    page = visit("/", devices=Devices(microphone="none"))
    page.locator("#model-note").get_by_role("link", name="What is seven plus five?").click()
    talk = page.locator("#transcript")
    expect(talk.locator("[data-who=user]")).to_contain_text("What is seven plus five?")
    expect(talk.locator("[data-who=model]")).to_contain_text("Seven plus five is twelve.")
    expect(page.locator(".state-hint")).to_contain_text("This call has no microphone.")
    # In the middle of a call a suggestion is typed.
    page.locator("#model-note").get_by_role("button", name="Hello.").click()
    expect(talk.locator("[data-who=user]")).to_have_count(2)
    expect(talk.locator("[data-who=model]")).to_have_count(2)
    page.get_by_role("button", name="End", exact=True).click()
    expect(page.get_by_role("button", name="Start again")).to_be_visible()


@pytest.mark.parametrize("microphone", ["file", "none"])
def test_a_suggestion_is_typed_where_the_server_gives_no_speech(
    visit: Visits, problems: Problems, microphone: Literal["file", "none"]
) -> None:
    problems.allow("503")
    page = visit("/audio_duplex", devices=Devices(microphone=microphone))
    page.route("**/v1/audio/speech", lambda route: route.fulfill(status=503))
    page.locator("#model-note").get_by_role("button", name="Hello.").click()
    talk = page.locator("#transcript")
    # The microphone may have been heard before.
    expect(talk.locator("[data-who=user]").filter(has_text="Hello.").first).to_be_visible()
    expect(talk.locator("[data-who=model]").first).to_be_visible()


def test_refused_microphone(visit: Visits) -> None:
    page = visit("/", devices=Devices(permission="denied"))
    line_of(page, "microphone", "bad", "The microphone is not allowed.")
    line_of(page, "microphone", "bad", "Click the icon next to the address")
    expect(page.locator("#hero-summary")).to_contain_text("The microphone is not allowed.")
    page.get_by_role("link", name="What to do").click()
    expect(page.locator("#works")).to_be_in_viewport()


def test_insecure_origin(visit: Visits, problems: Problems) -> None:
    problems.allow("Cross-Origin-Opener-Policy header has been ignored")
    page = visit("/", is_secure=False)
    line_of(page, "secure", "bad", "Browsers allow the microphone on secure pages only.")
    line_of(page, "secure", "bad", "https://")
    line_of(page, "microphone", "bad", "Unavailable")
    expect(page.locator("#hero-summary")).to_have_attribute("data-kind", "bad")
    # What needs no microphone is offered all the same.
    expect(page.get_by_role("main").get_by_role("link", name="Chat").first).to_be_visible()


def test_a_device_comes_and_goes(visit: Visits) -> None:
    page = visit("/")
    line_of(page, "microphone", "good", "Allowed")
    unplug(page, "microphone")
    line_of(page, "microphone", "bad", "No microphone was found.")
    expect(page.locator("#readiness-news")).to_contain_text("No microphone was found.")
    become(page, "microphone", "file")
    line_of(page, "microphone", "good", "Allowed")
    expect(page.locator("#hero-summary")).to_contain_text(READY)


def test_nothing_is_asked_for_before_somebody_wants_it(visit: Visits) -> None:
    page = visit("")
    # A browser without a window refuses where another would ask.
    page.add_init_script(
        """navigator.permissions.query = async () =>
            Object.assign(new EventTarget(), { state: "prompt" });"""
    )
    page.goto("/")
    settled(page)
    line_of(page, "microphone", "good", "the browser asks")
    assert page.evaluate("__devices.held('microphone')") == 0


NOBODY_FREE: dict[str, object] = {"idle_workers": 0, "free_slots": 0}
ALL_BUSY = NOBODY_FREE | {"busy_workers": 1}
LOADING = NOBODY_FREE | {"loading_workers": 1}
STATES: tuple[tuple[dict[str, object], str, str, str], ...] = (
    (LOADING | {"loading": None}, "worker", "caution", "The model is still loading."),
    (
        LOADING | {"loading": {"stage": "", "progress": 0.5}},
        "worker",
        "caution",
        "The model is loading: 50 %.",
    ),
    (NOBODY_FREE | {"error_workers": 1}, "worker", "bad", "No worker is running."),
    (ALL_BUSY, "queue", "caution", "you would be next"),
    (ALL_BUSY | {"queue_length": 4}, "queue", "caution", "4 people are waiting."),
    (ALL_BUSY | {"queue_length": 9, "max_queue_size": 9}, "queue", "bad", "The queue is full."),
    ({"is_intake_paused": True}, "queue", "caution", "is not accepting new conversations"),
    (ALL_BUSY | {"queue_length": 1}, "queue", "caution", "One person is waiting."),
)


def test_the_state_of_the_server_is_told(visit: Visits) -> None:
    page = visit("/")
    settled(page)
    waiting = {"items": [{"estimated_wait_s": 75}], "running_tasks": []}
    page.route("**/api/queue", lambda route: route.fulfill(json=waiting))
    for changes, line, state, text in STATES:
        page.unroute("**/status")
        answer_status(page, **changes)
        ask_again(page)
        line_of(page, line, state, text)
        # The sentence below the button says one of them, and never that all is well.
        expect(page.locator("#hero-summary")).to_have_attribute("data-kind", CHECKED)
        expect(page.locator("#hero-summary")).not_to_contain_text(READY)
    line_of(page, "queue", "caution", "Expected wait: about 1:15.")


def test_an_unreachable_server_is_said_and_noticed_when_it_is_back(
    visit: Visits, problems: Problems
) -> None:
    problems.allow("ERR_FAILED")
    page = visit("/")
    settled(page)
    page.route("**/status", lambda route: route.abort())
    ask_again(page)
    line_of(page, "worker", "bad", NOT_REACHED)
    expect(page.locator("#hero-summary")).to_contain_text(NOT_REACHED)
    page.unroute("**/status")
    ask_again(page)
    expect(page.locator("#hero-summary")).to_contain_text(READY)


def test_cards_follow_the_switches(visit: Visits, site: RunningSystem) -> None:
    page = visit("/")
    expect(page.locator("[data-app]")).to_have_count(4)
    set_app(site, "audio_duplex", enabled=False)
    ask_again(page)
    expect(page.locator('[data-app="audio_duplex"]')).to_have_count(0)
    expect(page.locator("#compare tbody tr")).to_have_count(3)
    # The next best way to talk takes the button.
    expect(page.locator("#start")).to_have_attribute("href", "/half_duplex")
    set_app(site, "audio_duplex", enabled=True)
    ask_again(page)
    expect(page.locator('[data-app="audio_duplex"]')).to_be_visible()


def test_with_everything_switched_off_the_page_says_so(visit: Visits) -> None:
    page = visit("")
    page.route("**/api/apps", lambda route: route.fulfill(json={"apps": []}))
    page.goto("/")
    expect(page.locator("#hero-buttons")).to_contain_text("switched off")
    expect(page.locator("#apps-empty")).to_be_visible()
    expect(page.locator("#comparison")).to_be_hidden()


def test_recent_conversations(visit: Visits, recording: str) -> None:
    sessions = [
        {"id": recording, "appType": "omni", "savedAt": "2026-03-01T12:00:00Z"},
        {"id": "adx_1", "appType": "audio_duplex", "savedAt": "no date"},
    ]
    page = visit("/")
    remember = "(text) => localStorage.setItem('minicpmo45_recent_sessions', text)"
    page.evaluate(remember, json.dumps(sessions))
    page.reload()
    links = page.locator("#recent-list a")
    expect(links).to_have_count(2)
    expect(links.first).to_contain_text("Video call")
    expect(links.first).to_contain_text("2026")
    expect(links.first).to_have_attribute("href", f"/s/{recording}")
    page.get_by_role("button", name="Clear the list").click()
    expect(page.locator("#recent")).to_be_hidden()
    page.reload()
    wait_until_ready(page)
    expect(page.locator("#recent")).to_be_hidden()


def test_the_language_changes_at_once_and_stays(visit: Visits) -> None:
    page = visit("/")
    settled(page)
    page.locator("#language").click()
    expect(page.locator("h1")).to_have_text("和边听边说的 AI 聊天")
    line_of(page, "queue", "good", "没有人排队。")
    expect(page.locator("#start")).to_have_text("开始说话")
    expect(page.locator("#compare th").first).to_have_text("对话方式")
    page.reload()
    wait_until_ready(page)
    expect(page.locator("#start")).to_have_text("开始说话")


def test_a_language_that_cannot_be_loaded_is_not_chosen(visit: Visits, problems: Problems) -> None:
    page = visit("/")
    settled(page)
    problems.allow_cut()
    page.route("**/i18n/zh*.json", lambda route: route.abort())
    page.locator("#language").click()
    expect(page.locator(".toast")).to_contain_text("The server could not be reached.")
    expect(page.locator("#start")).to_have_text("Start talking")
    page.reload()
    wait_until_ready(page)
    expect(page.locator("#start")).to_have_text("Start talking")


def test_the_theme_is_remembered(visit: Visits) -> None:
    page = visit("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button = page.get_by_role("button", name="Theme: system")
    button.click()  # light
    page.get_by_role("button", name="Theme: light").click()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    wait_until_ready(page)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_nothing_jumps_when_the_page_is_there(visit: Visits) -> None:
    page = visit("", look=Look(width_px=360))
    page.add_init_script(
        """window.__shift = 0;
        new PerformanceObserver((list) => {
            for (const { hadRecentInput, value } of list.getEntries()) {
                if (!hadRecentInput) __shift += value;
            }
        }).observe({ type: "layout-shift", buffered: true });"""
    )
    page.goto("/")
    wait_until_ready(page)
    settled(page)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("__shift") < 0.05
