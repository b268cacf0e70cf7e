"""What is offered after a conversation: comment, upload of the browser's recording, link."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser import calls, chats, half_call
from tests.browser.conftest import SiteMaker
from tests.browser.devices import Devices
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

SETTINGS = "audio_duplex_settings"
UPLOAD = "**/upload-recording"


@pytest.fixture(autouse=True)
def _foreseen(problems: Problems) -> None:
    """The fake backend has no voice of its own; a recording looked at too soon is not complete."""
    problems.allow("HTTP 404 GET .*/api/default_ref_audio", "HTTP 409 GET .*/recording$")


def offer(page: Page) -> Locator:
    return page.locator(".save-share")


def share(page: Page) -> None:
    offer(page).locator("[data-action=share]").click()


def hold_call(visit: Visits, at: RunningSystem, *, records: bool = True) -> Page:
    """Hold a short voice call; return its page when it has ended."""
    storage = calls.eager_storage(SETTINGS, record=records)
    page = visit("/audio_duplex", at=at, storage=storage)
    calls.start(page)
    calls.wait_for_units(page, 2)
    calls.stop(page)
    expect(offer(page)).to_be_visible()
    return page


def test_a_call_is_shared_with_comment_and_recording(visit: Visits, site: RunningSystem) -> None:
    page = hold_call(visit, site)
    expect(offer(page)).to_contain_text("Include what this browser recorded")
    offer(page).get_by_role("textbox", name="Comment (optional)").fill("It <b>heard</b> me.")
    button = offer(page).locator("[data-action=share]")
    expect(button).to_have_text("Upload & share")
    button.click()
    expect(page.locator(".toast")).to_contain_text("The link is on your clipboard.")
    link: str = page.evaluate("navigator.clipboard.readText()")
    recording_id = link.rpartition("/s/")[2]
    expect(offer(page).get_by_role("textbox", name="Link")).to_have_value(link)
    recent = json.loads(page.evaluate("localStorage.minicpmo45_recent_sessions"))
    assert recent[0]["id"] == recording_id
    assert recent[0]["appType"] == "audio_duplex"

    page.goto(link)
    expect(page.locator(".comment-text")).to_have_text("It <b>heard</b> me.")
    expect(page.get_by_role("heading", level=1)).to_have_text("Voice call")
    page.locator("[data-panel=browser] summary").click()
    player = page.get_by_label("What the browser recorded", exact=True)
    assert player.evaluate("audio => audio.play().then(() => audio.duration > 1)")


def test_what_was_shared_can_be_changed(visit: Visits, fake_site: RunningSystem) -> None:
    page = hold_call(visit, fake_site, records=False)
    expect(offer(page).locator("[data-action=share]")).to_have_text("Share")
    share(page)
    expect(offer(page).locator("[data-action=share]")).to_have_text("Save changes")
    offer(page).get_by_role("textbox", name="Comment (optional)").fill("On second thoughts.")
    share(page)
    expect(page.locator(".toast")).to_have_count(2)
    page.goto(offer(page).get_by_role("textbox", name="Link").input_value())
    expect(page.locator(".comment-text")).to_have_text("On second thoughts.")


def test_an_upload_can_be_cancelled(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    problems.allow("failed: .*upload-recording")
    page = hold_call(visit, fake_site)
    waiting: list[Route] = []
    page.route(UPLOAD, lambda route: waiting.append(route))
    share(page)
    expect(offer(page).get_by_role("progressbar")).to_be_visible()
    expect(offer(page).locator("[data-action=share]")).to_be_disabled()
    offer(page).get_by_role("button", name="Cancel").click()
    expect(offer(page).get_by_role("progressbar")).to_be_hidden()
    expect(offer(page).get_by_role("alert")).to_be_hidden()
    expect(offer(page).locator("[data-action=share]")).to_be_enabled()
    page.unroute(UPLOAD)
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_visible()


def test_a_failed_upload_says_why_and_can_be_tried_again(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    problems.allow("HTTP 413 .*upload-recording")
    page = hold_call(visit, fake_site)
    answer = {"detail": "A recording has at most 9 bytes.", "code": "too_big"}
    page.route(UPLOAD, lambda route: route.fulfill(status=413, json=answer))
    share(page)
    expect(offer(page).get_by_role("alert")).to_contain_text("The message or file is too big.")
    offer(page).get_by_label("Include what this browser recorded").uncheck()
    expect(offer(page).locator("[data-action=share]")).to_have_text("Share")
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_visible()


def test_limits_are_named_before_anything_is_sent(visit: Visits, shared_site: SiteMaker) -> None:
    site = shared_site(config={"limits": {"recording_upload_bytes": 1_048_576 // 64}})
    page = hold_call(visit, site)
    expect(offer(page)).to_contain_text("the server accepts at most 16 KiB")
    expect(offer(page).get_by_label("Include what this browser recorded")).to_be_disabled()
    comment = offer(page).get_by_role("textbox", name="Comment (optional)")
    comment.fill("x" * 2_500)
    expect(offer(page).locator(".comment-count")).to_have_text("2,000 of 2,000")
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_visible()


def test_without_a_clipboard_the_link_is_marked(visit: Visits, fake_site: RunningSystem) -> None:
    page = hold_call(visit, fake_site, records=False)
    page.evaluate(
        """() => {
            navigator.clipboard.writeText = () => Promise.reject(new Error("not allowed"));
            document.execCommand = () => false;
        }"""
    )
    share(page)
    expect(page.locator(".toast")).to_contain_text("copy it manually")
    link = offer(page).get_by_role("textbox", name="Link")
    expect(link).to_be_focused()
    marked = link.evaluate("field => field.value.slice(field.selectionStart, field.selectionEnd)")
    assert re.search(r"/s/\w+", marked)


def test_where_nothing_is_recorded_it_says_so(visit: Visits, shared_site: SiteMaker) -> None:
    page = hold_call(visit, shared_site(config={"recording": {"enabled": False}}))
    expect(offer(page)).to_contain_text("The server did not record this conversation")
    expect(offer(page).locator("[data-action=share]")).to_be_hidden()
    expect(page.locator("[data-action=download]")).to_be_visible()
    expect(page.locator("[data-action=replay]")).to_have_count(0)


def test_the_device_is_asked_to_pass_the_link_on(visit: Visits, fake_site: RunningSystem) -> None:
    page = hold_call(visit, fake_site, records=False)
    page.evaluate(
        """() => {
            navigator.share = (what) => {
                window.passedOn = what;
                return Promise.reject(new DOMException("closed", "AbortError"));
            };
            document.getElementById("language").click();
        }"""
    )
    share(page)
    offer(page).locator("[data-action=pass-on]").click()
    passed = page.evaluate("window.passedOn.url")
    assert re.search(r"/s/\w+$", passed)


def test_the_next_call_takes_the_offer_back(visit: Visits, fake_site: RunningSystem) -> None:
    page = hold_call(visit, fake_site, records=False)
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_visible()
    first = offer(page).get_by_role("textbox", name="Link").input_value()
    calls.start(page)
    expect(offer(page)).to_be_hidden()
    calls.wait_for_units(page, 2)
    calls.stop(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_hidden()
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_visible()
    assert offer(page).get_by_role("textbox", name="Link").input_value() != first


def test_a_chat_is_shared_from_its_dialog(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(chats.PATH, at=fake_site)
    chats.ask(page, "Hello?")
    page.get_by_role("button", name="Save, open, share").click()
    share(page)
    link = offer(page).get_by_role("textbox", name="Link")
    expect(link).to_have_value(re.compile(r"/s/\w+$"))
    page.goto(link.input_value())
    expect(page.get_by_role("heading", level=1)).to_have_text("Chat")


def test_who_shares_again_without_a_comment_keeps_the_earlier_one(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit(chats.PATH, at=fake_site)
    chats.ask(page, "Hello?")
    page.get_by_role("button", name="Save, open, share").click()
    offer(page).get_by_role("textbox", name="Comment (optional)").fill("It greeted me.")
    share(page)
    link = offer(page).get_by_role("textbox", name="Link")
    expect(link).to_be_visible()
    page.reload()
    expect(chats.messages(page, "assistant")).to_have_count(1)
    page.get_by_role("button", name="Save, open, share").click()
    share(page)
    expect(link).to_be_visible()
    page.goto(link.input_value())
    expect(page.locator(".comment-text")).to_have_text("It greeted me.")


def test_a_conversation_in_turns_is_shared(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(half_call.PATH, at=fake_site, devices=Devices(has_tap=True))
    calls.start(page)
    calls.stop(page)
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_have_value(re.compile(r"/s/\w+$"))


def test_a_video_call_is_shared(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("/omni", at=fake_site, storage=calls.eager_storage("omni_settings", record=True))
    calls.start(page)
    calls.wait_for_units(page, 2)
    calls.stop(page)
    expect(offer(page)).to_contain_text("Include what this browser recorded")
    share(page)
    expect(offer(page).get_by_role("textbox", name="Link")).to_be_visible()
    page.goto(offer(page).get_by_role("textbox", name="Link").input_value())
    page.locator("[data-panel=browser] summary").click()
    player = page.get_by_label("What the browser recorded", exact=True)
    assert player.evaluate("film => film.play().then(() => film.videoWidth > 0)")
