"""Text in a script that is written from right to left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser import kept
from tests.browser.chats import PATH, ask, box, messages, open_file
from tests.browser.problems import Problems
from tests.browser.test_omni import NO_VOICE
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

WORDS = "مرحبا (1)."
IS_RIGHT_TO_LEFT = "(element) => element.matches(':dir(rtl)')"


def test_what_is_typed_and_its_title_follow_their_script(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit(PATH, at=fake_site)
    box(page).fill(WORDS)
    assert box(page).evaluate(IS_RIGHT_TO_LEFT)
    ask(page, WORDS)
    page.locator("[aria-current=true] .history-title").filter(has_text=WORDS).wait_for()
    assert page.locator("[aria-current=true] .history-title").evaluate(IS_RIGHT_TO_LEFT)
    page.get_by_role("button", name="Rename").first.click()
    assert page.locator("#history-list input").evaluate(IS_RIGHT_TO_LEFT)
    messages(page, "user").first.get_by_role("button", name="Edit and ask again").click()
    assert messages(page, "user").first.get_by_role("textbox").evaluate(IS_RIGHT_TO_LEFT)


def test_code_in_an_answer_is_written_from_left_to_right(
    visit: Visits, problems: Problems, fake_site: RunningSystem, tmp_path: Path
) -> None:
    problems.allow(NO_VOICE)
    answer = f"```\nlet a = 1; // {'x' * 300}\n```\n\n{WORDS} `f();`"
    file = tmp_path / "code.json"
    file.write_text(json.dumps({"messages": [{"role": "assistant", "content": answer}]}))
    page = visit(PATH, at=fake_site)
    open_file(page, file)
    expect(page.locator(".message code")).to_have_count(2)
    assert page.locator(".message-text").evaluate(IS_RIGHT_TO_LEFT)
    written = page.locator(".message code").all()
    assert [one.evaluate(IS_RIGHT_TO_LEFT) for one in written] == [False, False]
    left_px = "(el) => el.getBoundingClientRect().left"
    wide = page.locator(".markdown-wide")
    assert wide.locator("pre").evaluate(left_px) >= wide.evaluate(left_px)  # it begins in sight


def test_a_replay_follows_the_script_of_its_words(visit: Visits, site: RunningSystem) -> None:
    kept.keep_chat(site, "viewer_arabic_chat", question=WORDS, answer=WORDS)
    page = visit("/s/viewer_arabic_chat", is_admin=True)
    bubbles = page.locator(".bubble-text", has_text=WORDS)
    expect(bubbles).to_have_count(2)
    assert [one.evaluate(IS_RIGHT_TO_LEFT) for one in bubbles.all()] == [True, True]
    page.get_by_role("button", name="Add a comment").click()
    page.get_by_role("textbox", name="Comment").fill(WORDS)
    assert page.get_by_role("textbox", name="Comment").evaluate(IS_RIGHT_TO_LEFT)
    page.get_by_role("button", name="Save").click()
    assert page.locator(".comment-text", has_text=WORDS).evaluate(IS_RIGHT_TO_LEFT)
    talk = (kept.LISTENED, kept.LISTENED, kept.Said(WORDS, 300, is_end=True), kept.LISTENED)
    kept.keep_call(site, "viewer_arabic_call", talk)
    page = visit("/s/viewer_arabic_call")
    page.locator(".said").click()
    for shown in (".moment-words", ".segment span", ".said-text bdi"):
        assert page.locator(shown, has_text=WORDS).evaluate(IS_RIGHT_TO_LEFT)
