"""Queues, faults and reloads: nothing is lost without a word, and one press goes on."""

from __future__ import annotations

import os
import re
import signal

import pytest
from playwright.sync_api import expect

from tests.browser import calls
from tests.browser.chats import (
    PATH,
    PICTURE,
    SLOW,
    ask,
    box,
    messages,
    wait_until_answered,
    wait_until_draft_kept,
)
from tests.browser.conftest import SiteMaker
from tests.browser.devices import Devices, held_tracks, wait_until_playing
from tests.browser.problems import Problems
from tests.browser.sites import taken_place
from tests.browser.test_audio_duplex_problems import HASTY, expect_problem
from tests.browser.test_omni import NO_VOICE
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem


@pytest.fixture(autouse=True)
def _no_default_voice(problems: Problems) -> None:
    """The fake backend comes without a voice of its own."""
    problems.allow(NO_VOICE)


def test_the_place_in_the_line_and_the_turn(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=1)
    second = visit("/audio_duplex", at=system, devices=Devices(has_tap=True))
    third = visit("/audio_duplex", at=system)
    with taken_place(system):
        calls.press(second, "start")
        calls.wait_for_phase(second, "queued")
        expect(second.locator(".queue-place")).to_have_text("You are next")
        expect(second).to_have_title(re.compile(r"^\(1\) Voice call"))
        icon = second.locator("link[rel=icon]")
        expect(icon).to_have_attribute("href", re.compile("favicon-queued"))
        wait_until_playing(second)  # the sound of who is next
        calls.press(third, "start")
        calls.wait_for_phase(third, "queued")
        expect(third.locator(".queue-place")).to_have_text("Position 2 of 2 in the queue")
        third.get_by_role("button", name="Leave the queue").click()
        calls.wait_for_phase(third, "ended")
        expect(third.locator("#notice")).to_be_hidden()
        assert held_tracks(third, "microphone") == 0
    calls.wait_for_phase(second, "running")
    expect(second.locator("#queue")).to_be_hidden()
    expect(second.locator("link[rel=icon]")).not_to_have_attribute(
        "href", re.compile("favicon-queued")
    )


def test_the_line_is_full(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=1, config={"service": {"max_queue_size": 1}})
    waiting, refused = (visit("/audio_duplex", at=system) for _ in range(2))
    with taken_place(system):
        calls.press(waiting, "start")
        calls.wait_for_phase(waiting, "queued")
        calls.press(refused, "start")
        expect_problem(refused, "queue_full", "The queue is full.", "Try again in a minute.")
        assert held_tracks(refused, "microphone") == 0


def test_after_a_worker_died_the_call_is_started_again(
    visit: Visits, shared_site: SiteMaker
) -> None:
    system = shared_site(workers=1, slots=1)
    page = visit("/audio_duplex", at=system)
    calls.start(page)
    os.kill(system.pid("worker_0"), signal.SIGKILL)
    title = "The worker that served your conversation stopped."
    expect_problem(page, "worker_lost", title, "Start again")
    calls.wait_for_phase(page, "ended")
    assert held_tracks(page, "microphone") == 0
    page.locator("#notice").get_by_role("button", name="Start again").click()
    calls.wait_for_phase(page, "running")
    expect(page.locator("#notice")).to_be_hidden()


def test_the_network_is_lost(visit: Visits, shared_site: SiteMaker, problems: Problems) -> None:
    system = shared_site(workers=1, slots=1, config=HASTY)
    page = visit("/audio_duplex", at=system)
    calls.start(page)
    problems.allow_cut()
    page.context.set_offline(True)
    os.kill(system.pid("gateway"), signal.SIGKILL)  # a socket that is open outlives the switch
    expect_problem(page, "network_lost", "The connection was lost.", "Check your network")
    calls.wait_for_phase(page, "ended")


def test_a_call_goes_on_after_the_gateway_was_killed(
    visit: Visits, shared_site: SiteMaker, problems: Problems
) -> None:
    system = shared_site(workers=1, slots=1)
    page = visit("/audio_duplex", at=system)
    calls.start(page)
    problems.allow_cut()
    os.kill(system.pid("gateway"), signal.SIGKILL)  # the launcher starts another one
    expect(page.locator(".toast", has_text="Connection lost, reconnecting")).to_be_visible()
    expect(page.locator(".toast", has_text="The connection is back.")).to_be_visible(
        timeout=calls.CALL_LIMIT_MS
    )
    calls.wait_for_phase(page, "running")


def test_an_answer_can_be_stopped(visit: Visits, shared_site: SiteMaker) -> None:
    site = shared_site(workers=1, slots=1, delays=SLOW)
    page = visit(PATH, at=site)
    box(page).fill("Tell me a long story")
    box(page).press("Enter")
    expect(messages(page, "assistant").locator(".message-text")).not_to_be_empty()
    page.get_by_role("button", name="Stop the answer").click()
    answer = wait_until_answered(page)
    expect(answer).to_have_attribute("data-status", "stopped")
    expect(answer).to_contain_text("You stopped this answer.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_a_lost_worker_costs_no_words(
    visit: Visits, problems: Problems, shared_site: SiteMaker
) -> None:
    site = shared_site(workers=1, slots=1, delays=SLOW)
    page = visit(PATH, at=site)
    box(page).fill("Do not lose this")
    box(page).press("Enter")
    expect(messages(page, "assistant").locator(".message-text")).not_to_be_empty()
    os.kill(site.pid("worker_0"), signal.SIGKILL)
    answer = wait_until_answered(page)
    expect(answer).to_have_attribute("data-status", "failed")
    expect(answer).to_contain_text("The worker that served your conversation stopped.")
    expect(messages(page, "user")).to_contain_text("Do not lose this")
    answer.get_by_role("button", name="Try again").click()
    expect(wait_until_answered(page)).to_have_attribute("data-status", "done")


def test_a_conversation_that_the_browser_cannot_read_can_be_deleted(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit(PATH, at=fake_site)
    ask(page, "The first conversation")
    page.evaluate(
        """() => {
            const { get } = IDBObjectStore.prototype;
            IDBObjectStore.prototype.get = function (key) {
                if (this.name === "bodies") throw new DOMException("It is damaged.", "DataError");
                return get.call(this, key);
            };
        }"""
    )
    rows = page.locator(".history-row")
    rows.hover()
    page.get_by_role("button", name="Delete “The first conversation”").click()
    expect(rows).to_have_count(0)
    expect(page.locator(".toast")).to_be_visible()
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)


def test_conversations_are_kept_in_the_browser(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(PATH, at=fake_site)
    ask(page, "The first conversation")
    page.locator("#history").get_by_role("button", name="New conversation").click()
    expect(messages(page, "user")).to_have_count(0)
    ask(page, "The second conversation")
    box(page).fill("Not sent yet")
    page.locator("#file").set_input_files(PICTURE)
    expect(page.locator('.chip[data-kind="image"]')).to_be_visible()
    wait_until_draft_kept(page)
    page.reload()
    wait_until_ready(page)
    expect(messages(page, "user")).to_contain_text("The second conversation")
    expect(messages(page, "assistant")).to_have_count(1)
    expect(box(page)).to_have_value("Not sent yet")
    expect(page.locator(".chip")).to_contain_text("frame_0.png")
    rows = page.locator(".history-row")
    expect(rows).to_have_count(2)
    rows.filter(has_text="The first conversation").locator(".history-open").click()
    expect(messages(page, "user")).to_contain_text("The first conversation")
    rows.filter(has_text="The first conversation").hover()
    page.get_by_role("button", name="Rename “The first conversation”").click()
    page.get_by_role("textbox", name="New name").fill("Renamed")
    page.get_by_role("textbox", name="New name").press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Renamed")
    page.get_by_role("button", name="Delete “Renamed”").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(rows).to_have_count(2)
    page.get_by_role("button", name="Delete all").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete all").click()
    expect(rows).to_have_count(0)
