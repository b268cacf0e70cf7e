"""Everything that can go wrong with a voice call: each has its own sentence and a next step."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import calls
from tests.browser.calls import Wire
from tests.browser.conftest import SiteMaker
from tests.browser.devices import Devices, become
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix


@pytest.fixture(autouse=True)
def _no_default_voice(problems: Problems) -> None:
    """The fake backend comes without a voice of its own."""
    problems.allow("HTTP 404 GET .*/api/default_ref_audio")


HASTY = {"limits": {"resume_grace_s": 0.5}}  # a lost call is given up soon


def expect_problem(
    page: Page,
    code: str,
    title: str,
    next_step: str = "",
    limit_ms: float = calls.CALL_LIMIT_MS,
) -> None:
    """Expect a sentence of its own and a next step."""
    notice = page.locator("#notice")
    expect(notice).to_have_attribute("data-code", code, timeout=limit_ms)
    expect(notice.locator(".notice-title")).to_have_text(title)
    expect(notice).to_contain_text(next_step)


def test_without_a_microphone_no_call_begins(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/audio_duplex", at=fake_site, devices=Devices(permission="denied"))
    wire = Wire(page)
    calls.press(page, "start")
    expect_problem(page, "permission_denied", "The microphone is not allowed.")
    expect(page.locator("#notice").get_by_role("link", name="Device check")).to_be_visible()
    expect(page.locator("[data-action=start]")).to_be_enabled()
    assert wire.sent == []  # nobody was kept waiting for nothing


def test_a_microphone_that_comes_back_is_tried_again(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit("/audio_duplex", at=fake_site, devices=Devices(microphone="busy"))
    calls.press(page, "start")
    expect_problem(page, "busy", "The microphone is used by another program.")
    become(page, "microphone", "file")
    page.locator("#notice").get_by_role("button", name="Try again").click()
    calls.wait_for_phase(page, "running")
    expect(page.locator("#notice")).to_be_hidden()


def test_a_page_without_tls_says_so_at_once(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    problems.allow("Cross-Origin-Opener-Policy header has been ignored")
    page = visit("/audio_duplex", at=fake_site, is_secure=False)
    title = "Browsers allow the microphone on secure pages only."
    expect_problem(page, "insecure_context", title, "https://")


def test_a_microphone_of_complete_silence_is_told(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/audio_duplex", at=fake_site, devices=Devices(microphone="scripted"))
    calls.start(page)
    expect_problem(page, "silent_microphone", "No sound comes from the microphone.")
    calls.wait_for_phase(page, "running")


def test_the_model_is_still_loading(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("", at=fake_site)

    def loading(route: Route) -> None:
        workers = {"idle_workers": 0, "free_slots": 0, "busy_workers": 0, "loading_workers": 1}
        route.fulfill(json=route.fetch().json() | workers)

    page.route("**/status", loading)
    page.goto("/audio_duplex")
    expect(page.locator("#service-note")).to_contain_text("The model is still loading.")
    calls.start(page)  # one may start already: the server has the call wait for a worker
    page.unroute_all(behavior="wait")


def test_the_server_goes_away(visit: Visits, shared_site: SiteMaker, problems: Problems) -> None:
    system = shared_site(workers=1, slots=1, config=HASTY)
    page = visit("/audio_duplex", at=system)
    calls.start(page)
    problems.allow_cut()
    assert system.stop() == 0
    expect_problem(page, "shutting_down", "The server is shutting down.")
    calls.wait_for_phase(page, "ended")


def test_an_administrator_ends_it(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/audio_duplex", at=fake_site)
    wire = Wire(page)
    calls.start(page)
    [session] = [one["session_id"] for one in wire.got("prepared")]
    stopped = fake_site.ask("POST", f"/api/admin/sessions/{session}/stop")
    assert stopped.status_code == httpx.codes.OK
    expect_problem(page, "ended_by_admin", "An administrator ended this conversation.")
    calls.wait_for_phase(page, "ended")


def test_the_app_is_switched_off_while_the_page_is_open(
    visit: Visits, make_site: SiteMaker, problems: Problems
) -> None:
    problems.allow("WebSocket connection to .* failed", "HTTP 403 ")
    system = make_site(workers=1, slots=1)
    page = visit("/audio_duplex", at=system)
    answer = system.ask("PUT", "/api/admin/apps/audio_duplex", json={"enabled": False})
    assert answer.status_code == httpx.codes.OK
    calls.press(page, "start")
    expect_problem(page, "app_disabled", "This page is switched off on this server.")
    home = page.locator("#notice").get_by_role("link", name="To the home page")
    expect(home).to_have_attribute("href", "/")


def test_the_memory_limit_of_the_page_ends_the_call(
    visit: Visits, fake_site: RunningSystem
) -> None:
    storage = calls.eager_storage("audio_duplex_settings", max_kv_tokens=256)
    page = visit("/audio_duplex", at=fake_site, storage=storage)
    calls.start(page)
    expect(calls.metric(page, "kv")).to_have_text(re.compile(r"/ 256 "))
    title = "The context limit of your settings is reached."
    expect_problem(page, "kv_limit", title, limit_ms=90_000)


def test_a_pause_that_is_too_long_gives_the_place_up(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=1, config={"duplex": {"pause_timeout": 2}})
    page = visit("/audio_duplex", at=system)
    calls.start(page)
    calls.press(page, "pause")
    title = "The pause was too long, so your slot was released."
    expect_problem(page, "pause_timeout", title, "Start again whenever you like.")
