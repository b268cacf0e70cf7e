"""Chat turn by turn: sound, pictures and videos, spoken answers, conversations as files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import FilePayload, expect

from tests.browser.chats import (
    PATH,
    PICTURE,
    SOUND,
    ask,
    box,
    drop,
    in_hand,
    messages,
    open_file,
    read_answer,
    sent_texts,
    wait_until_answered,
    write_video,
)
from tests.browser.conftest import SiteMaker
from tests.browser.devices import Devices, held_tracks, wait_until_playing, wait_until_quiet
from tests.browser.visits import Visits

pytestmark = pytest.mark.matrix


def test_a_recording_is_attached_and_asked(visit: Visits) -> None:
    page = visit(PATH)
    record = page.get_by_role("button", name="Record: tap or hold")
    record.click()
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^0:0[1-9] / 10:00$"))
    page.get_by_role("button", name="Stop recording").first.click()
    chip = page.locator('.chip[data-kind="audio"]')
    expect(chip).to_be_visible()
    assert held_tracks(page, "microphone") == 0
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    page.get_by_role("button", name="Send").click()
    answer = wait_until_answered(page)
    expect(answer).to_have_attribute("data-status", "done")
    expect(messages(page, "user").get_by_role("button", name="Play: Voice message")).to_be_visible()
    expect(chip).to_be_hidden()


def test_the_space_bar_records_while_it_is_held(visit: Visits) -> None:
    page = visit(PATH)
    page.locator("#scroll").focus()
    page.keyboard.down(" ")
    expect(page.get_by_role("timer")).to_have_text(re.compile(r"^0:0[1-9]"))
    page.keyboard.up(" ")
    expect(page.locator('.chip[data-kind="audio"]')).to_be_visible()
    # In the text box it is a space, and Escape drops a recording.
    box(page).press(" ")
    expect(page.get_by_role("timer")).to_be_hidden()
    page.locator("#scroll").focus()
    page.keyboard.press(" ")
    expect(page.get_by_role("timer")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("timer")).to_be_hidden()
    expect(page.locator('.chip[data-kind="audio"]')).to_have_count(1)


def test_a_refused_microphone_is_told_in_words(visit: Visits) -> None:
    page = visit(PATH, devices=Devices(permission="denied"))
    page.get_by_role("button", name="Record: tap or hold").click()
    expect(
        page.get_by_role("alert").filter(has_text="The microphone is not allowed.")
    ).to_be_visible()
    expect(page.get_by_role("timer")).to_be_hidden()


def test_sound_and_picture_files_go_along(visit: Visits) -> None:
    page = visit(PATH)
    page.locator("#file").set_input_files([SOUND, PICTURE])
    expect(page.locator(".chip")).to_have_count(2)
    page.get_by_role("button", name="Remove frame_0.png").click()
    expect(page.locator(".chip")).to_have_count(1)
    page.locator("#file").set_input_files(PICTURE)
    expect(page.locator(".chip")).to_have_count(2)
    answer = ask(page, "What is this?")
    expect(answer).to_have_attribute("data-status", "done")
    expect(messages(page, "user").get_by_role("img", name="frame_0.png")).to_be_visible()
    expect(
        messages(page, "user").get_by_role("button", name="Play: question_1.wav")
    ).to_be_visible()


def test_a_suggestion_keeps_the_files(visit: Visits) -> None:
    page = visit(PATH)
    page.locator("#file").set_input_files(PICTURE)
    expect(page.locator(".chip")).to_contain_text("frame_0.png")
    page.locator("#suggestions button").first.click()
    expect(box(page)).not_to_have_value("")
    expect(page.locator(".chip")).to_contain_text("frame_0.png")


def test_a_picture_is_pasted(visit: Visits) -> None:
    page = visit(PATH)
    hand = in_hand(page, PICTURE, "image/png")
    page.evaluate(
        """([box, clipboardData]) => box.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData, bubbles: true, cancelable: true }))""",
        [box(page).element_handle(), hand],
    )
    expect(page.locator('.chip[data-kind="image"]')).to_contain_text("frame_0.png")


def test_words_that_come_with_a_picture_of_themselves_are_pasted_as_words(visit: Visits) -> None:
    """Word processors and spreadsheets copy both."""
    page = visit(PATH)
    hand = in_hand(page, PICTURE, "image/png")
    is_left = page.evaluate(
        """([box, clipboardData]) => {
            clipboardData.setData("text/plain", "Seven");
            clipboardData.setData("text/html", "<td>Seven</td>");
            const how = { clipboardData, bubbles: true, cancelable: true };
            return box.dispatchEvent(new ClipboardEvent("paste", how));
        }""",
        [box(page).element_handle(), hand],
    )
    assert is_left, "the browser does not paste the words"
    expect(page.locator(".chip")).to_have_count(0)


def test_files_are_dropped(visit: Visits) -> None:
    page = visit(PATH)
    drop(page, PICTURE, "image/png")
    expect(page.locator('.chip[data-kind="image"]')).to_contain_text("frame_0.png")


def test_a_video_goes_along_with_its_sound(visit: Visits, tmp_path: Path) -> None:
    page = visit(PATH)
    sent = sent_texts(page)
    page.locator("#file").set_input_files(write_video(tmp_path / "film.webm", duration_s=3))
    chip = page.locator('.chip[data-kind="video"]')
    expect(chip).to_contain_text("0:03 · 4 pictures")
    answer = ask(page, "What happens?")
    expect(answer).to_have_attribute("data-status", "done")
    prefill = json.loads(sent[0])
    assert prefill["omni_mode"] is True
    assert [item["type"] for item in prefill["messages"][-1]["content"]] == ["video", "text"]
    expect(messages(page, "user").locator("video")).to_be_visible()


def test_the_sending_of_something_large_is_shown(visit: Visits) -> None:
    page = visit(PATH)
    # A network that takes no more than a little at a time.
    page.evaluate(
        """() => {
            let left = 8e6;
            const held = [];
            const send = WebSocket.prototype.send;
            WebSocket.prototype.send = function (data) {
                if (left === 0) send.call(this, data);
                else held.push(() => send.call(this, data));
            };
            Object.defineProperty(WebSocket.prototype, "bufferedAmount", { get: () => left });
            globalThis.finishSending = () => {
                left = 0;
                for (const go of held) go();
            };
        }"""
    )
    page.locator("#file").set_input_files(PICTURE)
    box(page).fill("Look")
    expect(page.locator(".chip")).to_be_visible()
    box(page).press("Enter")
    expect(page.locator("#upload")).to_contain_text("of 7.6 MiB")
    page.evaluate("finishSending()")
    expect(page.locator("#upload")).to_be_hidden()
    wait_until_answered(page)


def test_limits_are_named_before_anything_is_sent(visit: Visits, shared_site: SiteMaker) -> None:
    small = 1024 * 1024
    site = shared_site(workers=1, config={"limits": {"chat_message_bytes": small}})
    page = visit(PATH, at=site)
    expect(page.locator("#limits")).to_contain_text("960 KiB in total")
    large: FilePayload = {"name": "large.mp4", "mimeType": "video/mp4", "buffer": b"\0" * small}
    page.locator("#file").set_input_files(large)
    expect(
        page.get_by_role("alert").filter(
            has_text="“large.mp4” is too big. A video may have at most 720 KiB"
        )
    ).to_be_visible()
    note: FilePayload = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words"}
    page.locator("#file").set_input_files(note)
    expect(
        page.get_by_role("alert").filter(has_text="not an audio, picture or video file")
    ).to_be_visible()
    broken: FilePayload = {"name": "broken.mp3", "mimeType": "audio/mpeg", "buffer": b"no sound"}
    page.locator("#file").set_input_files(broken)
    expect(
        page.get_by_role("alert").filter(has_text="“broken.mp3” cannot be read here.")
    ).to_be_visible()
    expect(page.locator(".chip")).to_have_count(0)


def test_a_conversation_goes_out_and_comes_back(visit: Visits, tmp_path: Path) -> None:
    page = visit(PATH)
    page.locator(".voice-switch").click()
    page.locator("#file").set_input_files([SOUND, PICTURE])
    expect(page.locator(".chip")).to_have_count(2)
    answer = ask(page, "What do you hear and see?")
    words = answer.locator(".message-text").inner_text()
    page.get_by_role("button", name="Save, open, share").click()
    with page.expect_download() as download:
        page.locator("#export-msgpack").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert file.name == "What-do-you-hear-and-see-.msgpack"

    other = visit(PATH)
    open_file(other, file)
    expect(messages(other, "user")).to_contain_text("What do you hear and see?")
    expect(messages(other, "assistant").locator(".message-text")).to_have_text(words)
    expect(messages(other, "user").get_by_role("img", name="frame_0.png")).to_be_visible()
    expect(
        messages(other, "assistant").get_by_role("button", name="Play: Voice of the answer")
    ).to_be_visible()
    ask(other, "And now?", count=2)


def test_a_file_without_a_conversation_is_refused(visit: Visits) -> None:
    page = visit(PATH)
    open_file(page, PICTURE)
    expect(page.get_by_text("This file is not a conversation saved")).to_be_visible()


def test_an_answer_is_heard_and_taken_along(visit: Visits, tmp_path: Path) -> None:
    page = visit(PATH, devices=Devices(has_tap=True))
    page.locator(".voice-switch").click()
    answer = ask(page, "Say something")
    wait_until_playing(page)
    player = answer.locator(".answer-voice")
    expect(player).to_be_visible()
    wait_until_quiet(page)
    expect(page.get_by_role("button", name="Stop reading aloud")).to_be_hidden()
    with page.expect_download() as download:
        player.get_by_role("link", name="Download: Voice of the answer").click()
    file = tmp_path / "answer.wav"
    download.value.save_as(file)
    assert re.match(r"answer-.*\.wav$", download.value.suggested_filename)
    samples = read_answer(file)
    assert len(samples) > 0
    assert np.abs(samples).max() > 0
    player.get_by_role("slider").fill("0.1")
    player.get_by_role("button", name="Play: Voice of the answer").click()
    expect(player.get_by_role("button", name="Play: Voice of the answer")).to_be_visible()
