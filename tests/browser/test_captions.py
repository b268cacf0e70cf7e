"""What the user says, as text: off unless asked for; on every page that hears, and in replays."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from recording.records import TimelineEvent
from tests.browser import calls, chats, half_call, kept
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.devices import Devices, keep_voice, say
from tests.browser.looks import Look
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

SCRIPTED = Devices(microphone="scripted", has_tap=True)
SPOKEN = "I speak for"  # what the fake backend writes down


@pytest.fixture(autouse=True)
def _no_default_voice(problems: Problems) -> None:
    problems.allow("HTTP 404 GET .*/api/default_ref_audio")


def speak(page: Page) -> None:
    """Say the question with the silence that ends it."""
    keep_voice(page, "question", half_call.question())
    say(page, "question")


@pytest.mark.parametrize("path", ["audio_duplex", "omni"])
def test_a_call_shows_the_words_with_the_turn_that_was_heard(
    visit: Visits, fake_site: RunningSystem, path: str
) -> None:
    storage = calls.eager_storage(f"{path}_settings", captions=True)
    page = visit(f"/{path}", at=fake_site, storage=storage, devices=SCRIPTED)
    wire = calls.Wire(page)
    calls.start(page)
    assert wire.said("prepare")[0]["transcribe"] is True
    speak(page)
    turn = page.locator(".turn[data-who=user]", has_text=SPOKEN).first
    expect(turn).to_be_visible(timeout=calls.CALL_LIMIT_MS)
    expect(turn.locator(".turn-wave")).to_be_visible()
    assert axe_violations(page) == []
    assert layout_faults(page) == []
    calls.stop(page)


def test_captions_are_off_unless_asked_for_and_the_switch_is_remembered(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit("/audio_duplex", at=fake_site, devices=SCRIPTED)
    wire = calls.Wire(page)
    calls.start(page)
    assert wire.said("prepare")[0]["transcribe"] is False
    calls.stop(page)
    page.locator("#open-settings").click()
    switch = page.get_by_role("switch", name="Captions of what you say")
    switch.check()
    assert axe_violations(page) == []
    page.reload()
    page.locator("#open-settings").click()
    expect(switch).to_be_checked()


def test_voice_turns_show_the_words_above_the_answer(
    visit: Visits, fake_site: RunningSystem
) -> None:
    storage = half_call.storage(max_new_tokens=2, captions=True)
    page = visit(half_call.PATH, at=fake_site, devices=half_call.SCRIPTED, storage=storage)
    half_call.start(page)
    half_call.ask(page)
    expect(half_call.exchanges(page).first).to_contain_text(SPOKEN, timeout=calls.CALL_LIMIT_MS)
    assert axe_violations(page) == []


def test_a_recorded_question_shows_its_words(visit: Visits, fake_site: RunningSystem) -> None:
    storage = {"turnbased_settings": '{"hasCaptions": true, "sendsRecording": true}'}
    page = visit("/turnbased", at=fake_site, storage=storage, devices=Devices())
    record = page.get_by_role("button", name="Record: tap or hold")
    record.click()
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^0:0[1-9]"))
    page.get_by_role("button", name="End the recording").first.click()
    chats.wait_until_answered(page)
    expect(chats.messages(page, "user").locator(".message-transcript")).to_contain_text(SPOKEN)
    assert axe_violations(page) == []


@pytest.mark.parametrize("look", [Look(width_px=390), Look("zh", 1_280, "dark")], ids=str)
def test_replays_show_the_users_words(visit: Visits, fake_site: RunningSystem, look: Look) -> None:
    words = TimelineEvent(
        ts_ms=900, type="user_transcript", text="What did you see?", duration_ms=800
    )
    kept.keep_call(fake_site, f"adx_words_{look.lang}", events=[words])
    page = visit(f"/s/adx_words_{look.lang}", at=fake_site, look=look)
    said = page.locator(".said[data-who=user]")
    expect(said.first).to_contain_text("What did you see?")
    assert axe_violations(page) == []
