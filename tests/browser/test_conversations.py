"""A whole conversation in each mode: the real programs, the embedded model, a spoken question."""

from __future__ import annotations

import re

import numpy as np
from playwright.sync_api import Page, expect

from tests.browser import calls, chats, half_call
from tests.browser.calls import Wire
from tests.browser.devices import Devices, held_tracks, keep_voice, say, wait_until_playing
from tests.browser.media_files import question_16k, silence_16k
from tests.browser.visits import Visits

SCRIPTED = Devices(microphone="scripted", has_tap=True)
SUM = "Seven plus five is twelve."
LIMIT_MS = calls.CALL_LIMIT_MS


def start_listening(page: Page, question: str) -> None:
    """Start a call in which `say(page, "question")` asks a question."""
    keep_voice(page, "question", np.concatenate([question_16k(question), silence_16k(2)]))
    calls.start(page)
    calls.wait_for_units(page, 1)


def expect_recorded(page: Page, wire: Wire) -> None:
    """End the call; its devices are let go, and its replay is offered and there."""
    calls.stop(page)
    recording_id = wire.got("prepared")[0]["recording_session_id"]
    # It is offered once the devices are closed.
    expect(page.locator("[data-action=replay]")).to_have_attribute("href", f"/s/{recording_id}")
    assert held_tracks(page, "microphone") == held_tracks(page, "camera") == 0
    assert page.request.get(f"/api/sessions/{recording_id}").ok


def test_a_chat_is_answered_and_remembered(visit: Visits) -> None:
    page = visit(chats.PATH)
    chats.ask(page, "My name is Anna.")
    answer = chats.ask(page, "What is my name?", count=2)
    expect(answer.locator(".message-text")).to_contain_text("Anna")
    assert chats.figure(answer, "mode") == "WebSocket, streaming"
    remembered = re.match(r"(\d+) cached", chats.figure(answer, "tokens_in"))
    assert remembered and int(remembered[1]) > 0
    recorded = answer.locator('[data-figure="recording"] a')
    expect(recorded).to_have_attribute("href", re.compile("^/s/stm_"))
    expect(page.locator("#spoken")).to_contain_text("Answer: ")


def test_a_question_in_voice_turns_is_answered_aloud(visit: Visits) -> None:
    page = visit(half_call.PATH, devices=SCRIPTED)
    wire = half_call.Wire.of(page)
    keep_voice(page, "question", np.concatenate([question_16k("name"), silence_16k(2)]))
    half_call.click_start(page)
    half_call.ask(page)
    half_call.hear_answer(page)
    answer = half_call.exchanges(page, done=True).first
    expect(answer).to_contain_text("My name is Nano.", timeout=LIMIT_MS)
    expect(answer).to_contain_text(re.compile(r"spoke for \d\.\d s"))
    half_call.expect_activity(page, "listening")
    page.locator("[data-action=stop]").click()
    half_call.expect_activity(page, "ended")
    assert held_tracks(page, "microphone") == 0
    stopped = wire.first("stopped")["recording_session_id"]
    expect(page.get_by_role("link", name="Replay")).to_have_attribute("href", f"/s/{stopped}")


def test_a_question_in_a_voice_call_is_answered_aloud(visit: Visits) -> None:
    page = visit("/audio_duplex", devices=SCRIPTED)
    wire = Wire(page)
    start_listening(page, "sum")
    say(page, "question")
    expect(page.locator("#transcript")).to_contain_text(SUM, timeout=LIMIT_MS)
    wait_until_playing(page)
    expect(page.locator(".turn[data-who=user]").first).to_contain_text("you spoke for")
    expect(calls.metric(page, "kv")).to_have_text(re.compile(r"^\d[\d,]* / 8,192 \(\d+ %\)$"))
    expect_recorded(page, wire)


def test_in_a_video_call_the_model_says_what_it_sees(visit: Visits) -> None:
    page = visit("/omni", devices=SCRIPTED)
    wire = Wire(page)
    start_listening(page, "sight")
    wire.wait_until_said("video_frame")  # a busy machine encodes the first ones too late
    say(page, "question")
    expect(page.locator("#screen")).to_have_attribute("data-picture", "camera")
    expect(page.locator("#transcript")).to_contain_text("red circle", timeout=LIMIT_MS)
    results = wire.got("result")
    assert sum(one["vision_slices"] for one in results) <= len(wire.said("video_frame"))
    assert all(one["vision_tokens"] == 64 * one["vision_slices"] for one in results)
    expect_recorded(page, wire)
