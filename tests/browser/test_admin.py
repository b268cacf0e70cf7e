"""Administration as a whole: who gets in, the overview, and what holds for every section."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Page, Response, expect

from tests.browser.admin_desk import (
    SECTIONS,
    TOKEN,
    add_voice,
    answer_dialog,
    call,
    expect_toast,
    give_history,
    hold_call,
    look_again,
    section,
    talking,
)
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.conftest import SiteMaker
from tests.browser.looks import Look
from tests.browser.media_files import speech_16k, write_speech
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem

REFUSED = r"HTTP 40[13] .*/api/"


@pytest.fixture
def guarded(shared_site: SiteMaker) -> RunningSystem:
    """Return a system that wants a token."""
    return shared_site(workers=1, config={"security": {"admin_token": TOKEN}})


# --- signing in ---


def test_the_token_opens_the_page_and_signing_out_closes_it(
    visit: Visits, problems: Problems, guarded: RunningSystem
) -> None:
    page = visit("/admin", at=guarded)
    expect(page.locator("#board")).to_be_hidden()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.type(TOKEN)
    page.keyboard.press("Enter")
    expect(section(page, "overview")).to_contain_text("Conversations now")
    expect(page.locator("#login")).to_be_hidden()
    # The cookie is remembered; scripts cannot read it.
    page.reload()
    wait_until_ready(page)
    section(page, "overview")
    assert "admin" not in page.evaluate("document.cookie")
    page.get_by_role("button", name="Sign out").click()
    expect(page.locator("#board")).to_be_hidden()
    expect(page.locator("#token")).to_be_visible()
    page.reload()
    wait_until_ready(page)
    expect(page.locator("#token")).to_be_visible()
    problems.allow(REFUSED)


def test_the_link_of_the_start_signs_in_and_its_token_leaves_the_address_bar(
    visit: Visits, problems: Problems, guarded: RunningSystem
) -> None:
    page = visit(f"/admin#token={quote(TOKEN)}", at=guarded)
    section(page, "overview")
    assert page.url == f"{guarded.url}/admin"
    other = visit("/admin#token=wrong", at=guarded)
    expect(other.locator("#token")).to_be_visible()
    expect(other.locator("#token-problem")).to_have_text(
        "This token is wrong. Check it and try again."
    )
    broken = visit("/admin#token=%", at=guarded)
    expect(broken.locator("#token")).to_be_visible()
    problems.allow(r"HTTP 401 POST .*/api/admin/login")


def test_a_session_that_ends_asks_for_the_token_again(
    visit: Visits, problems: Problems, guarded: RunningSystem
) -> None:
    problems.allow(REFUSED)
    page = visit("/admin#apps", at=guarded)
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(section(page, "apps").locator("[data-app]")).to_have_count(4)
    page.context.clear_cookies()
    look_again(page)
    expect(page.locator("#login")).to_contain_text("You were signed out.")
    expect(page.locator("#board")).to_be_hidden()
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    section(page, "apps")


def answer_of_login(page: Page) -> Response:
    # While one request is on its way, the form sends no second one.
    sign_in = page.get_by_role("button", name="Sign in")
    expect(sign_in).to_have_attribute("aria-busy", "false")
    with page.expect_response("**/api/admin/login") as answered:
        page.keyboard.press("Enter")
    return answered.value


def test_a_wrong_token_says_so_and_too_many_have_to_wait(
    visit: Visits, problems: Problems, guarded: RunningSystem
) -> None:
    """The last of `guarded`: nobody may be wrong there for a minute."""
    problems.allow(r"HTTP 4(01|29) POST .*/api/admin/login")
    page = visit("/admin", at=guarded)
    problem = page.locator("#token-problem")
    page.get_by_role("button", name="Sign in").click()
    expect(problem).to_have_text("Enter the token first.")
    page.locator("#token").fill("not the token")
    page.keyboard.press("Enter")
    expect(problem).to_have_text("This token is wrong. Check it and try again.")
    expect(page.locator("#board")).to_be_hidden()
    while answer_of_login(page).status != httpx.codes.TOO_MANY_REQUESTS:
        pass  # one try more is granted every six seconds
    expect(problem).to_have_text("Too many wrong tokens. Wait a minute, then try again.")


# --- overview ---


def test_the_overview_counts_what_is_there(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/admin", at=fake_site)
    figure = "[data-figure={}] .admin-figure-value"
    expect(page.locator(figure.format("workers"))).to_have_text("2")
    expect(page.locator(figure.format("idle"))).to_have_text("2")
    with talking(fake_site):
        look_again(page)
        expect(page.locator(figure.format("conversations"))).to_have_text("1")
        expect(page.locator(figure.format("busy"))).to_have_text("1")
        expect(page.locator(figure.format("idle"))).to_have_text("1")
        expect(page.locator("[data-figure=conversations]")).to_contain_text("1 of 2 slots free")


def test_intake_is_closed_only_after_a_yes_and_opened_at_once(
    visit: Visits, shared_site: SiteMaker
) -> None:
    system = shared_site(workers=1)
    page = visit("/admin", at=system)
    switch = page.get_by_role("switch", name="Accept new conversations")
    expect(switch).to_be_checked()
    switch.click()
    answer_dialog(page, "Stop accepting new conversations?", confirm=None)
    expect(switch).to_be_checked()
    assert call(system, "GET", "/api/admin/intake") == {"paused": False}
    switch.click()
    answer_dialog(page, "Stop accepting new conversations?", confirm="Stop accepting")
    expect_toast(page, "New conversations are now refused.")
    expect(switch).not_to_be_checked()
    assert call(system, "GET", "/api/admin/intake") == {"paused": True}
    expect(page.locator(".health-badge")).to_contain_text("Not accepting new conversations")
    switch.click()
    expect_toast(page, "accepted again")
    assert call(system, "GET", "/api/admin/intake") == {"paused": False}


@pytest.mark.matrix
def test_charts_show_the_last_hour(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("", at=fake_site)
    give_history(page)
    page.goto("/admin")
    expect(page.locator(".admin-chart canvas")).to_have_count(4)
    legend = page.locator("[data-chart=units] .admin-legend")
    expect(legend).to_contain_text("200 ms")
    expect(legend).to_contain_text("640 ms")
    expect(page.locator("[data-chart=memory]")).to_contain_text("20 GiB")
    picture = page.locator("[data-chart=sessions] .admin-plot")
    expect(picture).to_have_attribute("aria-label", re.compile("Voice call 4.*Video call 2"))
    expect(page.locator("#chart-numbers table")).to_be_hidden()
    page.locator("#chart-numbers summary").click()
    rows = page.locator("#chart-numbers tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("640 ms")


def test_without_the_library_the_numbers_stand_in_the_table(
    visit: Visits, problems: Problems, fake_site: RunningSystem
) -> None:
    problems.allow(r"HTTP 404 GET .*/vendor/")
    page = visit("", at=fake_site)
    give_history(page)
    page.route("**/vendor/**", lambda route: route.fulfill(status=404))
    page.goto("/admin")
    expect(page.locator("#section-overview [role=alert]")).to_contain_text("scripts/setup.sh pages")
    expect(page.locator("#chart-numbers tbody tr")).to_have_count(2)
    expect(page.locator("#chart-numbers tbody tr").first).to_be_visible()
    expect(page.locator(".admin-charts")).to_be_hidden()
    expect(page.locator("[data-figure=workers]")).to_contain_text("2")


def test_a_server_that_is_gone_is_said_and_the_figures_stay(
    visit: Visits, problems: Problems, fake_site: RunningSystem
) -> None:
    problems.allow("ERR_FAILED")
    page = visit("/admin#workers", at=fake_site)
    expect(page.locator("[data-worker]")).to_have_count(2)
    page.route("**/workers", lambda route: route.abort())
    look_again(page)
    expect(page.locator("#notice")).to_contain_text("The server could not be reached.")
    expect(page.locator("[data-worker]")).to_have_count(2)
    page.unroute("**/workers")
    look_again(page)
    expect(page.locator("#notice")).to_be_hidden()


# --- all of it ---


def test_every_section_has_an_address_of_its_own(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/admin", at=fake_site)
    section(page, "overview")
    for name in SECTIONS:
        page.locator(f"[data-goto={name}]").click()
        section(page, name)
        assert page.url.endswith(f"#{name}")
        expect(page.locator(".admin-section:visible")).to_have_count(1)
    page.go_back()
    section(page, SECTIONS[-2])
    page.reload()
    wait_until_ready(page)
    section(page, SECTIONS[-2])
    expect(page.locator(f"[data-goto={SECTIONS[-2]}]")).to_have_attribute("aria-current", "page")


def test_only_the_section_that_is_seen_asks_and_only_while_it_is_seen(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit("", at=fake_site)
    page.clock.install()
    page.goto("/admin#apps")
    expect(page.locator("[data-app]")).to_have_count(4)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(httpx.URL(request.url).path))
    with page.expect_response("**/api/admin/apps"):
        page.clock.run_for(6_000)
    assert not {"/workers", "/api/queue", "/api/admin/history"} & set(asked)
    page.evaluate(
        "Object.defineProperty(document, 'visibilityState',"
        " { get: () => 'hidden', configurable: true })"
    )
    look_again(page)
    page.clock.run_for(1)
    asked.clear()
    page.clock.run_for(60_000)
    assert asked == []


def test_a_refresh_keeps_the_focus_and_the_rows(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/admin#workers", at=fake_site)
    button = page.locator("[data-worker=worker_1]").get_by_role("button", name="Restart")
    button.focus()
    page.evaluate("window.card = document.querySelector('[data-worker=worker_1]')")
    with talking(fake_site), page.expect_response("**/workers"):
        look_again(page)
    expect(button).to_be_focused()
    assert page.evaluate("window.card === document.querySelector('[data-worker=worker_1]')")


def test_the_language_changes_at_once_in_every_section(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit("/admin#workers", at=fake_site)
    card = page.locator("[data-worker=worker_0]")
    expect(card).to_contain_text("Free slots")
    page.locator("#language").click()
    expect(page.locator("h1")).to_have_text("管理")
    expect(card).to_contain_text("空闲槽位")
    expect(page.locator("[data-goto=audit]")).to_have_text("审计日志")
    for name in SECTIONS:
        page.locator(f"[data-goto={name}]").click()
        expect(section(page, name).locator("h2")).to_have_text(re.compile("[\u4e00-\u9fff]"))


@pytest.mark.matrix
@pytest.mark.parametrize("look", [Look("zh", 360, "light"), Look("en", 1_280, "dark")], ids=str)
def test_every_section_fits_and_breaks_no_rule(
    visit: Visits, fake_site: RunningSystem, look: Look, tmp_path: Path
) -> None:
    voice_id = add_voice(
        fake_site, "A voice with a rather long name", write_speech(tmp_path / "a.wav", speech_16k())
    )
    hold_call(fake_site)
    page = visit("", at=fake_site, look=look)
    give_history(page)
    page.goto("/admin")
    wait_until_ready(page)
    faults: list[str] = []
    for name in SECTIONS:
        page.locator(f"[data-goto={name}]").click()
        section(page, name)
        page.wait_for_load_state("networkidle")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        faults += [f"{name}: {fault}" for fault in layout_faults(page)]
        faults += [f"{name}: {fault}" for fault in axe_violations(page)]
    call(fake_site, "DELETE", f"/api/assets/ref_audio/{voice_id}")
    assert faults == []
