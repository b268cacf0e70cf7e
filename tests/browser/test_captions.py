"""What the user says, as text: off unless asked for; on every page that hears, and in replays."""

from __future__ import annotations

import base64
import re

import pytest
from playwright.sync_api import Page, expect

from recording.records import TimelineEvent
from tests.browser import calls, chats, half_call, kept
from tests.browser.audits import axe_violations, layout_faults
from tests.browser.devices import Devices, keep_voice, say
from tests.browser.looks import Language, Look, Theme
from tests.browser.media_files import RECORDINGS
from tests.browser.problems import Problems
from tests.browser.sites import wait_until_recorded
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

SCRIPTED = Devices(microphone="scripted", has_tap=True)
JPEG_START = bytes.fromhex("ffd8ff")
SPOKEN = "I speak for"  # what the fake backend writes down


@pytest.fixture(autouse=True)
def _no_default_voice(problems: Problems) -> None:
    problems.allow("HTTP 404 GET .*/api/default_ref_audio")


def speak(page: Page) -> None:
    """Say the question with the silence that ends it."""
    keep_voice(page, "question", half_call.question())
    say(page, "question")


def open_replay(page: Page, site: RunningSystem, wire: calls.Wire) -> None:
    """Open the replay of the call that was held."""
    recording_id = wire.got("prepared")[0]["recording_session_id"]
    wait_until_recorded(site, recording_id)
    page.goto(f"{site.url}/s/{recording_id}")


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
    open_replay(page, fake_site, wire)
    expect(page.locator(".said[data-who=user]", has_text=SPOKEN).first).to_be_visible()


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
    page.get_by_role("button", name="Stop recording").first.click()
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


@pytest.mark.parametrize("path", ["audio_duplex", "omni"])
def test_what_is_typed_in_a_call_reaches_the_model_and_the_conversation(
    visit: Visits, fake_site: RunningSystem, path: str
) -> None:
    page = visit(f"/{path}", at=fake_site, devices=SCRIPTED)
    wire = calls.Wire(page)
    field = page.get_by_role("textbox", name="Type to the model")
    expect(field).to_be_hidden()
    calls.start(page)
    field.fill("My name is Ann.")
    field.press("Enter")
    expect(field).to_have_value("")
    expect(field).to_be_focused()
    expect(page.locator(".turn[data-who=user] .turn-text")).to_have_text("My name is Ann.")
    assert wire.said("text_input") == [{"type": "text_input", "text": "My name is Ann."}]
    calls.wait_for_state(page, "speaking")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Show a picture").click()
    before = len(wire.said("video_frame"))
    chooser.value.set_files(RECORDINGS / "frame_0.png")
    expect(page.locator(".turn[data-who=user] .turn-text").last).to_have_text(
        "Picture: frame_0.png"
    )
    shown = base64.b64decode(wire.said("video_frame")[before]["frame"])
    assert shown.startswith(JPEG_START)
    field.fill("  ")
    page.get_by_role("button", name="Send the text").click()
    assert len(wire.said("text_input")) == 1
    assert axe_violations(page) == []
    calls.stop(page)
    expect(field).to_be_hidden()
    open_replay(page, fake_site, wire)
    expect(page.locator(".said[data-who=user]")).to_contain_text("My name is Ann.")


@pytest.mark.parametrize("width_px", [360, 390, 1_280])
@pytest.mark.parametrize(("lang", "theme"), [("en", "light"), ("zh", "dark")])
def test_the_text_field_fits(
    visit: Visits, fake_site: RunningSystem, width_px: int, lang: Language, theme: Theme
) -> None:
    look = Look(lang, width_px, theme)
    page = visit("/audio_duplex", at=fake_site, look=look, devices=SCRIPTED)
    calls.start(page)
    page.locator(".text-line").fill("Hello?")
    page.locator(".text-line").press("Enter")
    expect(page.locator(".turn[data-who=user] .turn-text")).to_have_text("Hello?")
    assert axe_violations(page) == []
    assert layout_faults(page) == []
