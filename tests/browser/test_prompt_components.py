"""What the model is told and how it sounds: presets, voices, content, devices; and the help."""

from __future__ import annotations

import base64
import re
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.audits import axe_violations, layout_faults, visible_key_names
from tests.browser.devices import Devices, become, played, unplug, wait_until_playing
from tests.browser.half_call import PATH, Wire, click_start, expect_activity
from tests.browser.looks import Look
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

RATE_HZ = 22_050
PROMPT = "You are a cheerful captain."


def tone(duration_s: float) -> bytes:
    """Return a stereo WAV file of a tone, at a rate that is not the server's."""
    times = np.arange(round(duration_s * RATE_HZ)) / RATE_HZ
    samples = (np.sin(2 * np.pi * 440 * times) * 8_000).astype("<i2")
    kept = BytesIO()
    with wave.open(kept, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(np.repeat(samples, 2).tobytes())
    return kept.getvalue()


def preset(page: Page, name: str) -> Locator:
    """Return the pill of a preset."""
    return page.get_by_role("radiogroup", name="Preset").get_by_role("radio", name=name)


def open_editors(page: Page) -> Locator:
    """Open the editors beside the presets and return the list of items."""
    page.locator(".preset-toggle").click()
    items = page.locator(".content-item")
    expect(items.first).to_be_visible()
    return items


def voice_box(page: Page) -> Locator:
    """Return the voice sample of the list."""
    return page.locator("#content .voice-box")


def upload(box: Locator, name: str, content: bytes) -> None:
    """Choose a file as a visitor does."""
    with box.page.expect_file_chooser() as chooser:
        box.get_by_role("button", name=re.compile("file")).click()
    chooser.value.set_files({"name": name, "mimeType": "audio/wav", "buffer": content})


def samples_of(item: dict[str, str]) -> int:
    """Return how many samples an audio item of a message carries."""
    return len(base64.b64decode(item["data"])) // 4


def test_a_preset_sets_content_and_is_remembered(visit: Visits) -> None:
    page = visit(PATH)
    expect(preset(page, "Phone call in English")).to_have_attribute("aria-checked", "true")
    items = open_editors(page)
    expect(items).to_have_count(3)
    expect(voice_box(page)).to_contain_text("Default voice · 2.9 s")
    page.keyboard.press("Escape")
    preset(page, "Phone call in Chinese").click()
    expect(page.locator(".content-item textarea").first).to_have_value(re.compile("请用"))
    page.reload()
    wait_until_ready(page)
    expect(preset(page, "Phone call in Chinese")).to_have_attribute("aria-checked", "true")


def test_presets_speak_the_language_of_the_page(visit: Visits) -> None:
    page = visit(PATH, look=Look("zh"))
    pills = page.get_by_role("radiogroup", name="预设").get_by_role("radio")
    expect(pills).to_have_text(["英语通话", "中文通话"])
    expect(pills.nth(1)).to_have_attribute("aria-checked", "true")  # theirs comes first
    page.get_by_role("button", name="English").first.click()
    expect(page.get_by_role("radio")).to_have_text(
        ["Phone call in English", "Phone call in Chinese"]
    )


def test_a_preset_that_cannot_be_fetched(visit: Visits, problems: Problems) -> None:
    page = visit(PATH)
    problems.allow("HTTP 500 .*/audio")
    page.route(re.compile("chinese_call/audio"), lambda route: route.fulfill(status=500, json={}))
    preset(page, "Phone call in Chinese").click()
    expect(page.locator(".presets [role=alert]")).to_contain_text("could not be loaded")
    expect(preset(page, "Phone call in English")).to_have_attribute("aria-checked", "true")
    page.unroute(re.compile("chinese_call/audio"))
    preset(page, "Phone call in Chinese").click()
    expect(page.locator(".presets [role=alert]")).to_be_empty()
    expect(preset(page, "Phone call in Chinese")).to_have_attribute("aria-checked", "true")


def test_a_preset_is_covered_while_its_voice_is_fetched(visit: Visits) -> None:
    page = visit(PATH)
    waiting: list[Route] = []
    page.route(re.compile("chinese_call/audio"), lambda route: waiting.append(route))
    preset(page, "Phone call in Chinese").click()
    expect(page.get_by_text("Fetching its voice…")).to_be_visible()
    waiting[0].continue_()
    expect(page.get_by_text("Fetching its voice…")).to_be_hidden()


def test_what_was_edited_is_sent(visit: Visits) -> None:
    page = visit(PATH)
    wire = Wire.of(page)
    open_editors(page)
    page.locator(".content-item textarea").last.fill(PROMPT)
    upload(voice_box(page), "My voice.wav", tone(2))
    expect(voice_box(page)).to_contain_text("My voice · 2.0 s")
    page.keyboard.press("Escape")
    expect(page.locator(".presets")).to_contain_text("You changed it.")
    click_start(page)
    expect_activity(page, "listening", "hearing")
    content = wire.first("prepare")["system_content"]
    assert [item["type"] for item in content] == ["text", "audio", "text"]
    assert samples_of(content[1]) == 32_000  # two seconds, mono, 16 kHz
    assert content[2]["text"] == PROMPT
    page.locator("[data-action=stop]").click()
    expect_activity(page, "ended")
    preset(page, "Phone call in English").click()
    expect(voice_box(page)).to_contain_text("Default voice")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (tone(0.3), "It is only 0.3 s long. Choose at least 0.5 s."),
        (b"This is no sound at all.", "The browser cannot read any audio in this file."),
    ],
    ids=["short", "text"],
)
def test_a_voice_that_cannot_be_used(visit: Visits, content: bytes, sentence: str) -> None:
    page = visit(PATH)
    open_editors(page)
    upload(voice_box(page), "voice.wav", content)
    expect(voice_box(page).get_by_role("alert")).to_contain_text(sentence)
    expect(voice_box(page)).to_contain_text("Default voice")  # the one before stays


def test_a_voice_is_played_and_sought(visit: Visits) -> None:
    page = visit(PATH)
    open_editors(page)
    box = voice_box(page)
    upload(box, "long.wav", tone(20))
    expect(box.locator(".sound-time")).to_have_text("0:00 / 0:20")
    box.get_by_role("slider").fill("15")
    expect(box.locator(".sound-time")).to_have_text("0:15 / 0:20")
    box.get_by_role("button", name=re.compile("^Play")).click()
    expect(box.locator(".sound-time")).to_have_text(re.compile("^0:1[6-9] / 0:20$"))
    box.get_by_role("button", name=re.compile("^Pause")).click()
    expect(box.get_by_role("button", name=re.compile("^Play"))).to_be_visible()


def test_a_voice_is_removed_and_the_servers_comes_back(visit: Visits) -> None:
    page = visit(PATH)
    open_editors(page)
    box = voice_box(page)
    box.get_by_role("button", name="Remove").click()
    expect(box.get_by_role("slider")).to_be_hidden()
    expect(box.get_by_role("button", name="Choose an audio file")).to_be_focused()
    box.get_by_role("button", name="Default voice").click()
    expect(box).to_contain_text("Default voice · 2.9 s")


def test_a_voice_is_dropped(visit: Visits) -> None:
    page = visit(PATH)
    open_editors(page)
    dropped = page.evaluate_handle(
        """(text) => {
            const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
            const transfer = new DataTransfer();
            transfer.items.add(new File([bytes], "Dropped.wav", { type: "audio/wav" }));
            return transfer;
        }""",
        base64.b64encode(tone(1)).decode(),
    )
    voice_box(page).dispatch_event("drop", {"dataTransfer": dropped})
    expect(voice_box(page)).to_contain_text("Dropped · 1.0 s")


def test_a_voice_of_the_library(visit: Visits, site: RunningSystem) -> None:
    body = {"name": "Captain", "audio_base64": base64.b64encode(tone(1.5)).decode()}
    kept = site.ask("POST", "/api/assets/ref_audio", json=body).json()
    try:
        page = visit(PATH)
        open_editors(page)
        voice_box(page).get_by_label("From the library…").select_option("Captain")
        expect(voice_box(page)).to_contain_text("Captain · 1.5 s")
    finally:
        site.ask("DELETE", f"/api/assets/ref_audio/{kept['id']}")


def test_another_voice_for_the_answers(visit: Visits) -> None:
    page = visit(PATH)
    wire = Wire.of(page)
    open_editors(page)
    box = page.locator("#tts-voice .voice-box")
    expect(box).to_be_hidden()
    page.get_by_role("radio", name="Another voice").check()
    upload(box, "other.wav", tone(1))
    expect(box).to_contain_text("other · 1.0 s")
    page.keyboard.press("Escape")
    click_start(page)
    expect_activity(page, "listening", "hearing")
    sent = wire.first("prepare")["tts_ref_audio_base64"]
    assert len(base64.b64decode(sent)) == 4 * 16_000


def test_items_are_added_moved_and_deleted_by_keyboard(visit: Visits) -> None:
    page = visit(PATH)
    items = open_editors(page)
    last = page.locator(".content-item textarea").last
    last.fill(PROMPT)
    page.keyboard.press("Alt+ArrowUp")
    moved = items.nth(1).locator("textarea")
    expect(moved).to_have_value(PROMPT)
    expect(moved).to_be_focused()
    items.nth(1).get_by_role("button", name="Move up").press("Enter")
    expect(items.nth(0).locator("textarea")).to_have_value(PROMPT)
    expect(items.nth(0).get_by_role("button", name="Move up")).to_be_disabled()
    items.nth(0).get_by_role("button", name="Delete").press("Enter")
    expect(items).to_have_count(2)
    expect(items.nth(0).get_by_role("button", name="Delete")).to_be_focused()
    page.locator("#content").get_by_role("button", name="Text", exact=True).press("Enter")
    expect(items).to_have_count(3)
    expect(items.nth(2).locator("textarea")).to_be_focused()


def test_a_picture_can_be_told_too(visit: Visits, tmp_path: Path) -> None:
    page = visit(PATH)
    items = open_editors(page)
    page.locator("#content").get_by_role("button", name="Picture", exact=True).click()
    picture = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    with page.expect_file_chooser() as chooser:
        items.last.get_by_role("button", name="Choose a picture").click()
    chooser.value.set_files({"name": "dot.png", "mimeType": "image/png", "buffer": picture})
    expect(page.get_by_alt_text("dot.png")).to_be_visible()
    items.last.get_by_role("button", name="Delete").click()
    expect(items).to_have_count(3)


def test_devices_are_listed_remembered_and_followed(visit: Visits) -> None:
    page = visit(PATH)
    page.get_by_role("button", name="Settings").click()
    microphone = page.get_by_label("Microphone")
    names = microphone.locator("option")
    expect(names.first).to_have_text("System default")
    expect(names.nth(1)).to_contain_text("Fake")
    chosen = names.nth(1).get_attribute("value") or ""
    microphone.select_option(chosen)
    expect(page.get_by_label("Speaker")).to_be_enabled()
    page.reload()
    wait_until_ready(page)
    page.get_by_role("button", name="Settings").click()
    expect(microphone).to_have_value(chosen)
    unplug(page, "microphone")
    expect(page.locator(".devices")).to_contain_text("None found.")
    expect(microphone).to_have_value("")
    become(page, "microphone", "file")
    expect(microphone).to_have_value(chosen)  # it is back, and so is the choice


def test_names_of_devices_come_with_the_permission(visit: Visits) -> None:
    page = visit(PATH, devices=Devices(permission="denied"))
    page.get_by_role("button", name="Settings").click()
    expect(page.locator(".devices")).to_contain_text("Names appear once")


def test_the_speaker_can_be_chosen_during_the_answer(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit(PATH, at=fake_site, devices=Devices(has_tap=True))
    click_start(page)
    expect_activity(page, "listening", "hearing")
    page.get_by_role("button", name="Settings").click()
    speaker = page.get_by_label("Speaker")
    speaker.select_option(index=1)
    wait_until_playing(page)
    assert played(page)
    expect(page.locator("#notice")).to_be_hidden()


@pytest.mark.parametrize("width_px", [360, 1_280])
def test_help_in_both_languages(visit: Visits, fake_site: RunningSystem, width_px: int) -> None:
    page = visit(PATH, at=fake_site, look=Look(width_px=width_px))
    opener = page.get_by_role("button", name="Help")
    expect(opener).to_have_attribute("aria-expanded", "false")
    opener.click()
    side = page.get_by_role("complementary", name="Questions and answers")
    expect(side.get_by_role("heading", name="Voice turns: help")).to_be_focused()
    answer = side.get_by_text("The server listens for speech.")
    expect(answer).to_be_hidden()
    side.get_by_text("How does it work?").click()
    expect(answer).to_be_visible()
    side.get_by_role("button", name="中文").click()
    expect(side.get_by_text("它是怎么工作的？")).to_be_visible()
    expect(page.locator("h1")).to_have_text("Voice turns")  # the page keeps its language
    expect(side.locator(".faq-body")).to_have_attribute("lang", "zh")
    page.keyboard.press("Escape")
    expect(side).to_be_hidden()
    expect(opener).to_be_focused()


def test_help_reads_without_its_library(
    visit: Visits, fake_site: RunningSystem, problems: Problems
) -> None:
    page = visit(PATH, at=fake_site)
    problems.allow("HTTP 404 .*/vendor/")
    page.route("**/vendor/**", lambda route: route.fulfill(status=404))
    page.get_by_role("button", name="Help").click()
    side = page.get_by_role("complementary")
    side.get_by_text("Can I stop an answer?").click()
    expect(side.get_by_text("Yes. Press Stop answer.")).to_be_visible()


@pytest.mark.parametrize("look", [Look("zh", 360, "light"), Look("en", 360, "dark")], ids=str)
def test_editors_and_help_fit_and_break_no_rule(visit: Visits, look: Look) -> None:
    page = visit(PATH, look=look)
    open_editors(page)
    page.locator("#tts-voice [value=own]").check()
    assert axe_violations(page) == []
    assert layout_faults(page) == []
    assert visible_key_names(page) == []
    page.keyboard.press("Escape")
    page.locator("#open-faq").click()
    page.locator(".faq-question summary").first.click()
    expect(page.locator(".faq-answer").first).to_be_visible()
    assert axe_violations(page) == []
    assert layout_faults(page) == []
