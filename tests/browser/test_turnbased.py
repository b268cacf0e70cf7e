"""Chat turn by turn: what is asked and answered, changed, kept, and what goes wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.admin_desk import talking
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.chats import (
    PATH,
    SLOW,
    ask,
    box,
    compose,
    conversation_with_everything,
    figure,
    messages,
    open_file,
    sent_texts,
    wait_until_answered,
)
from tests.browser.conftest import SiteMaker
from tests.browser.looks import Look
from tests.browser.problems import Problems
from tests.browser.test_omni import NO_VOICE
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix


def test_a_second_turn_is_remembered_by_the_server(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "My name is Ada")
    answer = ask(page, "What is my name?", count=2)
    remembered = re.match(r"(\d+) cached", figure(answer, "tokens_in"))
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


def test_a_changed_question_waits_for_the_answer_that_comes(
    visit: Visits, shared_site: SiteMaker
) -> None:
    page = visit(PATH, at=shared_site(delays=SLOW))
    ask(page, "First question")
    messages(page, "user").first.get_by_role("button", name="Edit and ask again").click()
    editor = messages(page, "user").first.get_by_role("textbox")
    editor.fill("Another first question")
    box(page).fill("Second question")
    box(page).press("Enter")
    expect(messages(page, "assistant")).to_have_count(2)
    expect(page.get_by_role("button", name="Ask again", exact=True)).to_be_disabled()
    editor.press("Enter")
    expect(editor).to_have_value("Another first question")
    wait_until_answered(page, count=2)
    editor.press("Enter")
    expect(messages(page, "user")).to_have_count(1)
    expect(messages(page, "user")).to_contain_text("Another first question")


def test_escape_never_deletes_the_conversations(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "Delete me")
    page.get_by_role("button", name="Delete all").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Delete all").click()
    expect(page.locator(".history-row")).to_have_count(0)
    ask(page, "Keep me")
    expect(page.locator(".history-row")).to_have_count(1)
    page.get_by_role("button", name="Delete all").click()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(messages(page, "user")).to_have_text(re.compile("Keep me"))
    expect(page.locator(".history-row")).to_have_count(1)


def two_tabs(visit: Visits, text: str) -> tuple[Page, Page]:
    """Return a tab with a conversation, and another one with the same."""
    page = visit(PATH)
    ask(page, text)
    other = page.context.new_page()
    other.goto(page.url)
    expect(messages(other, "user")).to_have_count(1)
    return page, other


def test_two_tabs_with_the_same_conversation_keep_both(visit: Visits) -> None:
    page, other = two_tabs(visit, "Hello")
    ask(page, "In one tab", count=2)
    ask(other, "In the other", count=2)
    rows = other.locator(".history-open")
    expect(rows).to_have_count(2)
    for row, text in enumerate(["In the other", "In one tab"]):
        rows.nth(row).click()
        expect(messages(other, "user").last).to_contain_text(text)


def test_a_reloaded_tab_shows_its_own_conversation(visit: Visits) -> None:
    page, other = two_tabs(visit, "In one tab")
    other.get_by_role("button", name="New conversation").first.click()
    ask(other, "In the other")
    page.reload()
    expect(messages(page, "user")).to_have_text(re.compile("In one tab"))


def test_keys_of_an_input_method_end_no_edit(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "First question")
    page.get_by_role("button", name=re.compile("^Rename")).click()
    title = page.get_by_role("textbox", name="New name")
    title.fill("ni hao")
    compose(title, "Enter")
    compose(title, "Escape")
    expect(title).to_be_focused()
    title.press("Enter")
    expect(page.locator(".history-title")).to_have_text("ni hao")
    messages(page, "user").get_by_role("button", name="Edit and ask again").click()
    editor = messages(page, "user").get_by_role("textbox")
    editor.fill("ni hao")
    compose(editor, "Escape")
    expect(editor).to_have_value("ni hao")


def test_the_focus_stays_near_a_question_that_was_changed(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "First question")
    ask(page, "Second question", count=2)
    messages(page, "user").last.get_by_role("button", name="Edit and ask again").click()
    messages(page, "user").last.get_by_role("textbox").press("Enter")
    wait_until_answered(page, count=2)
    expect(messages(page, "user").last.locator(":focus")).to_have_count(1)


def test_only_the_last_change_is_offered_to_be_undone(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "First question")
    ask(page, "Second question", count=2)
    for count in (1, 0):
        messages(page, "user").last.get_by_role("button", name="Delete").click()
        expect(messages(page, "user")).to_have_count(count)
    expect(page.get_by_role("button", name="Undo")).to_have_count(1)
    page.get_by_role("button", name="Undo").click()
    expect(messages(page, "user")).to_have_text(re.compile("First question"))
    messages(page, "user").get_by_role("button", name="Delete").click()
    ask(page, "Third question")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)


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


def test_the_place_in_line_is_shown_and_can_be_left(visit: Visits, shared_site: SiteMaker) -> None:
    site = shared_site(workers=1, slots=1)
    with talking(site):
        page = visit(PATH, at=site)
        expect(page.locator("#wait")).to_contain_text("All slots are in use")
        box(page).fill("Me too")
        box(page).press("Enter")
        banner = page.locator("#queue")
        expect(banner).to_contain_text("You are next")
        expect(page).to_have_title(re.compile(r"^\(1\) "))
        banner.get_by_role("button", name="Leave the queue").click()
        expect(banner).to_be_hidden()
        expect(messages(page, "user")).to_contain_text("Me too")
        page.get_by_role("button", name="Answer again").click()
        # The list is drawn a little later than the banner: the stopped answer may still be there.
        expect(messages(page, "assistant")).to_have_attribute("data-status", "pending")
        expect(banner).to_contain_text("You are next")
    answer = wait_until_answered(page)
    assert "expected" in figure(answer, "queue")


def test_another_language_keeps_the_conversation(visit: Visits) -> None:
    page = visit(PATH)
    ask(page, "Hello")
    box(page).fill("A draft")
    page.locator("#language").click()
    expect(page.get_by_role("button", name="新对话").first).to_be_visible()
    expect(messages(page, "user")).to_contain_text("Hello")
    expect(messages(page, "assistant")).to_have_count(1)
    expect(page.get_by_role("textbox", name="消息")).to_have_value("A draft")


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


def test_a_printed_conversation_is_whole(
    visit: Visits, problems: Problems, fake_site: RunningSystem, tmp_path: Path
) -> None:
    problems.allow(NO_VOICE)
    file = tmp_path / "long.json"
    said = [{"role": "user", "content": f"{n}: " + "many words " * 40} for n in range(30)]
    said.append({"role": "assistant", "content": "```\n" + "code " * 500 + "\n```"})
    file.write_text(json.dumps({"messages": said}))
    page = visit(PATH, at=fake_site, look=Look("en", 1_280, "dark"))
    open_file(page, file)
    wide = page.locator(".markdown-wide")
    expect(wide).to_have_count(1)
    assert wide.evaluate("(el) => el.scrollWidth > el.clientWidth")  # on the screen it scrolls
    page.emulate_media(media="print")
    scroll = page.locator("#scroll")
    assert scroll.evaluate("(el) => el.scrollHeight - el.clientHeight") == 0  # nothing to scroll to
    height_px = scroll.evaluate("(el) => el.clientHeight")
    assert page.evaluate("document.documentElement.scrollHeight") >= height_px > 5_000
    assert wide.evaluate("(el) => el.scrollWidth <= el.clientWidth")
    for hidden in ("#nav", "#history", "#composer", ".message-actions"):
        expect(page.locator(hidden).first).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_on_a_low_screen_everything_can_be_scrolled_to(
    visit: Visits, problems: Problems, fake_site: RunningSystem
) -> None:
    problems.allow(NO_VOICE)
    page = visit(PATH, at=fake_site)
    page.set_viewport_size({"width": 740, "height": 150})  # a phone on its side, with a keyboard
    page.mouse.move(300, 90)
    page.mouse.wheel(0, 1_000)
    expect(page.locator("#send")).to_be_in_viewport(ratio=0.95)
    page.mouse.wheel(0, -1_000)
    expect(page.locator("#open-settings")).to_be_in_viewport(ratio=0.95)


def test_wide_tables_scroll_and_lists_keep_their_numbers(
    visit: Visits, problems: Problems, fake_site: RunningSystem, tmp_path: Path
) -> None:
    problems.allow(NO_VOICE)
    columns = ["Colour", "Temperature", "Description", "Manufacturer"]
    rows = ["| " + " | ".join(cells) + " |" for cells in (columns, ["---"] * 4, columns)]
    answer = "\n".join(["0. zero", "1. one", "", *rows])
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"messages": [{"role": "assistant", "content": answer}]}))
    page = visit(PATH, at=fake_site, look=Look("en", 360, "light"))
    open_file(page, file)
    expect(page.locator(".message-text table")).to_have_count(1)
    lines = page.locator("td, th").evaluate_all(
        """(cells) => cells.map((cell) => {
            const words = document.createRange();
            words.selectNodeContents(cell);
            return words.getClientRects().length;
        })"""
    )
    assert lines == [1] * 8  # one word, one line
    assert layout_faults(page) == []
    assert page.locator(".message-text ol").get_attribute("start") == "0"


def test_the_columns_of_a_table_are_aligned_as_the_answer_says(
    visit: Visits, problems: Problems, fake_site: RunningSystem, tmp_path: Path
) -> None:
    problems.allow(NO_VOICE)
    answer = "| a | b | c | d |\n| --- | :-- | :-: | --: |\n| 1 | 2 | 3 | 4 |"
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"messages": [{"role": "assistant", "content": answer}]}))
    page = visit(PATH, at=fake_site)
    open_file(page, file)
    expect(page.locator(".message-text table")).to_have_count(1)
    for cells in ("th", "td"):
        alignments = page.locator(cells).evaluate_all(
            "(cells) => cells.map((cell) => getComputedStyle(cell).textAlign)"
        )
        assert alignments == ["start", "left", "center", "right"]


@pytest.mark.parametrize("look", [Look("zh", 360, "dark"), Look("en", 1_280, "light")], ids=str)
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
    page.route("**/vendor/**", lambda route: route.fulfill(status=404))
    problems.allow(r"HTTP 404 GET .*/vendor/", r"console: .*/vendor/")
    answer = ask(page, "Hello")
    expect(answer.locator(".message-text")).not_to_be_empty()
    expect(page.get_by_text("A part of this page is not installed")).to_be_visible()
