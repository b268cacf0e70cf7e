"""Chat turn by turn: what is asked and answered, changed, kept, and what goes wrong."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.audits import axe_violations, layout_faults
from tests.browser.chats import (
    PATH,
    PICTURE,
    SLOW,
    ask,
    box,
    conversation_with_everything,
    figure,
    messages,
    open_file,
    sent_texts,
    wait_until_answered,
    wait_until_draft_kept,
)
from tests.browser.conftest import SiteMaker
from tests.browser.looks import Look, looks
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready


def test_an_answer_streams_in_and_tells_its_figures(visit: Visits) -> None:
    page = visit(PATH)
    answer = ask(page, "Hello there")
    expect(answer.locator(".message-text")).not_to_be_empty()
    assert figure(answer, "mode") == "WebSocket, streaming"
    assert figure(answer, "ttft").endswith(" s")
    assert figure(answer, "tokens_in").startswith("0 remembered + ")
    assert int(figure(answer, "tokens_out")) > 0
    answer.get_by_role("button", name="Copy: Request").click()
    assert page.evaluate("navigator.clipboard.readText()").startswith("stream_")
    expect(answer.locator('[data-figure="recording"] a')).to_have_attribute(
        "href", re.compile("^/s/stm_")
    )
    expect(page.locator("#spoken")).to_contain_text("Answer: ")


def test_a_second_turn_is_remembered_by_the_server(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "My name is Ada")
    answer = ask(page, "What is my name?", count=2)
    remembered = re.match(r"(\d+) remembered", figure(answer, "tokens_in"))
    assert remembered and int(remembered[1]) > 0


def test_the_instructions_go_along(visit: Visits) -> None:
    page = visit(PATH)
    sent = sent_texts(page)
    expect(page.get_by_role("radio", name="Talk in English")).to_be_checked()
    page.get_by_role("button", name="Edit").click()
    page.locator("#system-content textarea").last.fill("Answer like a pirate.")
    ask(page, "Hello")
    prefill = json.loads(sent[0])
    system, question = prefill["messages"]
    assert system["role"] == "system"
    assert [item["type"] for item in system["content"]] == ["text", "audio", "text"]
    assert system["content"][2]["text"] == "Answer like a pirate."
    assert question == {"role": "user", "content": "Hello"}
    assert prefill["enable_thinking"] is False
    assert prefill["max_slice_nums"] == 1


def test_an_answer_can_be_stopped(visit: Visits, make_site: SiteMaker) -> None:
    site = make_site(workers=1, slots=1, delays=SLOW)
    page = visit(PATH, at=site)
    box(page).fill("Tell me a long story")
    box(page).press("Enter")
    expect(messages(page, "assistant").locator(".message-text")).not_to_be_empty()
    page.get_by_role("button", name="Stop the answer").click()
    answer = wait_until_answered(page)
    expect(answer).to_have_attribute("data-status", "stopped")
    expect(answer).to_contain_text("You stopped this answer.")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_an_earlier_question_can_be_changed(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "First question")
    ask(page, "Second question", count=2)
    messages(page, "user").first.get_by_role("button", name="Edit and ask again").click()
    editor = messages(page, "user").first.get_by_role("textbox")
    expect(editor).to_be_focused()
    editor.fill("Another first question")
    editor.press("Enter")
    expect(messages(page, "user")).to_have_count(1)
    expect(messages(page, "user")).to_contain_text("Another first question")
    wait_until_answered(page)
    page.get_by_role("button", name="Undo").click()
    expect(messages(page, "user")).to_have_count(2)
    expect(messages(page, "user").first).to_contain_text("First question")
    expect(messages(page, "assistant")).to_have_count(2)


def test_a_question_goes_with_its_answer(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "Keep me")
    ask(page, "Delete me", count=2)
    messages(page, "user").last.get_by_role("button", name="Delete").click()
    expect(messages(page, "user")).to_have_count(1)
    expect(messages(page, "assistant")).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(messages(page, "user")).to_have_text([re.compile("Keep me"), re.compile("Delete me")])


def test_a_question_can_be_answered_again(visit: Visits) -> None:
    page = visit(PATH)
    answer = ask(page, "Say it again")
    answer.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("This question has no answer yet.")).to_be_visible()
    page.get_by_role("button", name="Answer it").click()
    answer = wait_until_answered(page)
    request = figure(answer, "recording")
    answer.get_by_role("button", name="Answer again").click()
    answer = wait_until_answered(page)
    assert figure(answer, "recording")
    assert request
    expect(messages(page, "user")).to_have_count(1)


def test_conversations_are_kept_in_the_browser(visit: Visits) -> None:
    page = visit(PATH)
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


def test_the_place_in_line_is_shown_and_can_be_left(visit: Visits, make_site: SiteMaker) -> None:
    site = make_site(workers=1, slots=1, delays="piece=1500")
    first = visit(PATH, at=site)
    box(first).fill("Take your time")
    box(first).press("Enter")
    expect(messages(first, "assistant").locator(".message-text")).not_to_be_empty()
    second = visit(PATH, at=site)
    expect(second.locator("#wait")).to_contain_text("All places are taken")
    box(second).fill("Me too")
    box(second).press("Enter")
    banner = second.locator("#queue")
    expect(banner).to_contain_text("You are next")
    expect(second).to_have_title(re.compile(r"^\(1\) "))
    banner.get_by_role("button", name="Leave the line").click()
    expect(banner).to_be_hidden()
    expect(messages(second, "user")).to_contain_text("Me too")
    second.get_by_role("button", name="Answer again").click()
    answer = wait_until_answered(second)
    assert "expected" in figure(answer, "queue")


def test_a_lost_worker_costs_no_words(
    visit: Visits, problems: Problems, make_site: SiteMaker
) -> None:
    site = make_site(workers=1, slots=1, delays=SLOW)
    page = visit(PATH, at=site)
    box(page).fill("Do not lose this")
    box(page).press("Enter")
    expect(messages(page, "assistant").locator(".message-text")).not_to_be_empty()
    os.kill(site.pid("worker_0"), signal.SIGKILL)
    answer = wait_until_answered(page)
    expect(answer).to_have_attribute("data-status", "failed")
    expect(answer).to_contain_text("The worker that held your conversation stopped.")
    expect(messages(page, "user")).to_contain_text("Do not lose this")
    answer.get_by_role("button", name="Try again").click()
    expect(wait_until_answered(page)).to_have_attribute("data-status", "done")


def test_another_language_keeps_the_conversation(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "Hello")
    box(page).fill("A draft")
    page.locator("#language").click()
    expect(page.get_by_role("button", name="新对话").first).to_be_visible()
    expect(messages(page, "user")).to_contain_text("Hello")
    expect(messages(page, "assistant")).to_have_count(1)
    expect(page.get_by_role("textbox", name="消息")).to_have_value("A draft")


def test_settings_reach_the_server(visit: Visits) -> None:
    page = visit(PATH)
    sent = sent_texts(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Longest answer, tokens").fill("16")
    page.get_by_label("Length", exact=True).fill("1.5")
    page.get_by_label("Fine pictures (HD)").check()
    page.get_by_label("Think before answering").check()
    page.keyboard.press("Escape")
    ask(page, "Short, please")
    prefill, generate = map(json.loads, sent)
    assert prefill["max_slice_nums"] == 2
    assert prefill["enable_thinking"] is True
    assert generate["max_new_tokens"] == 16
    assert generate["length_penalty"] == 1.5
    page.reload()
    wait_until_ready(page)
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Longest answer, tokens")).to_have_value("16")


def test_everything_can_be_reached_on_a_phone(visit: Visits) -> None:
    page = visit(PATH, look=Look(width_px=360))
    ask(page, "A line\nand another")
    expect(page.locator("#history")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(page.locator("#history")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#history")).to_be_hidden()
    expect(page.get_by_role("button", name="Conversations")).to_be_focused()
    box(page).press("Shift+Enter")
    expect(box(page)).to_have_value("\n")


def test_two_hundred_messages_stay_quick_to_read(visit: Visits, tmp_path: Path) -> None:
    conversation = {
        "messages": [
            {"role": role, "content": f"{role} {number}: " + "many words " * 40}
            for number in range(100)
            for role in ("user", "assistant")
        ]
    }
    file = tmp_path / "long.json"
    file.write_text(json.dumps(conversation))
    page = visit(PATH)
    open_file(page, file)
    expect(page.locator(".message")).to_have_count(200)
    expect(messages(page, "assistant").last).to_be_in_viewport()
    page.locator("#scroll").evaluate("(scroll) => scroll.scrollTo(0, 0)")
    expect(messages(page, "user").first).to_be_in_viewport()
    # Who reads above is not pulled down by a new answer, and can go there.
    page.get_by_role("button", name="To the latest message").click()
    expect(messages(page, "assistant").last).to_be_in_viewport()


@pytest.mark.parametrize(
    "look", looks(("en", "zh"), (360, 1_280), ("light", "dark")), ids=lambda look: str(look)
)
def test_a_conversation_with_everything_fits_and_is_accessible(
    visit: Visits, tmp_path: Path, look: Look
) -> None:
    page = visit(PATH, look=look)
    open_file(page, conversation_with_everything(tmp_path))
    expect(page.locator(".message")).to_have_count(3)
    expect(page.locator(".message-text table")).to_have_count(1)
    page.locator("details.figures > summary").click()
    page.locator(".message").first.scroll_into_view_if_needed()
    assert layout_faults(page) == []
    assert axe_violations(page) == []
    page.locator("#open-settings").click()
    assert axe_violations(page) == []


def test_an_answer_loads_nothing_from_elsewhere(visit: Visits, tmp_path: Path) -> None:
    page = visit(PATH)
    open_file(page, conversation_with_everything(tmp_path))
    answer = messages(page, "assistant").locator(".message-text")
    expect(answer.locator("table")).to_have_count(1)
    expect(answer.locator("img, h1")).to_have_count(0)
    expect(answer).to_contain_text("a picture")
    expect(answer.get_by_role("link", name="a link")).to_have_attribute(
        "rel", "noopener noreferrer"
    )


def test_answers_are_plain_text_without_the_library(visit: Visits, problems: Problems) -> None:
    page = visit(PATH)
    page.route("**/static/vendor/**", lambda route: route.fulfill(status=404))
    problems.allow(r"HTTP 404 GET .*/static/vendor/", r"console: .*/static/vendor/")
    answer = ask(page, "Hello")
    expect(answer.locator(".message-text")).not_to_be_empty()
    expect(page.get_by_text("A part of this page is not installed")).to_be_visible()
