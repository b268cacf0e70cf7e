"""Voice turns: speak, pause, hear the answer; stop it, end it, run into its limits."""

from __future__ import annotations

import os
import re
import signal

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser import half_call as talk
from tests.browser.conftest import SiteMaker
from tests.browser.devices import (
    PIECE_MS,
    Devices,
    become,
    held_tracks,
    last_audible_ms,
    now_ms,
    played,
    unplug,
    wait_until_quiet,
)
from tests.browser.half_call import Wire, expect_activity, expect_problem
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

LONG_ANSWER = "prefill=100 piece=1000"  # of the fake backend: a second of sound for each word
SHORT = talk.storage(max_new_tokens=2)
MAX_STALE_MS = 2_000  # of an answer that is several seconds ahead of its playback


def end(page: Page) -> None:
    """Press End and wait for it."""
    page.locator("[data-action=stop]").click()
    expect_activity(page, "ended")


def test_the_microphone_is_closed_during_the_answer(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit(talk.PATH, at=fake_site, devices=talk.SCRIPTED, storage=SHORT)
    wire = Wire.of(page)
    talk.start(page)
    talk.ask(page)
    expect_activity(page, "speaking")
    expect(page.locator(".wave-lamp")).to_have_attribute("data-hears", "answer")
    expect_activity(page, "settling")
    expect_activity(page, "listening")
    quiet_since_ms = last_audible_ms(played(page))
    assert quiet_since_ms is not None
    assert now_ms(page) - quiet_since_ms > 700  # 800 ms after the last sound, less a meter's piece

    page.wait_for_function(
        "() => document.querySelectorAll('.exchange[data-open=false]').length === 1"
    )
    talk.ask(page)
    expect_activity(page, "hearing")
    kinds = wire.types()
    closed = kinds[kinds.index("generating") : kinds.index("turn_done")]
    assert "audio_chunk" not in closed
    assert "audio_chunk" in kinds[kinds.index("turn_done") :]


def test_stop_answer(visit: Visits, shared_site: SiteMaker) -> None:
    page = visit(talk.PATH, at=shared_site(workers=1, delays=LONG_ANSWER), devices=talk.SCRIPTED)
    talk.start(page)
    stop_answer = page.get_by_role("button", name="Stop answer")
    expect(stop_answer).to_be_disabled()
    talk.ask(page)
    clicked_ms = talk.stop_answer_once_heard(page)
    wait_until_quiet(page)
    expect(talk.exchanges(page, done=True).first).to_contain_text("Interrupted")
    expect_activity(page, "listening")
    stale = [piece for piece in played(page) if piece.is_audible and piece.at_ms > clicked_ms]
    assert len(stale) * PIECE_MS < MAX_STALE_MS
    talk.ask(page)
    talk.hear_answer(page)
    expect(talk.exchanges(page)).to_have_count(2)


def test_end_during_the_answer(visit: Visits, shared_site: SiteMaker) -> None:
    page = visit(talk.PATH, at=shared_site(workers=1, delays=LONG_ANSWER), devices=talk.SCRIPTED)
    talk.start(page)
    talk.ask(page)
    talk.hear_answer(page)
    end(page)
    wait_until_quiet(page)
    expect(page.get_by_role("button", name="Start again")).to_be_focused()
    talk.click_start(page)
    expect_activity(page, "listening")
    expect(talk.exchanges(page)).to_have_count(0)


def test_text_only(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(
        talk.PATH, at=fake_site, devices=talk.SCRIPTED, storage=talk.storage(has_voice=False)
    )
    wire = Wire.of(page)
    talk.start(page)
    talk.ask(page)
    answer = talk.exchanges(page, done=True).first
    expect(answer).to_contain_text(re.compile(r"I have heard \d+ ms of speech\."))
    expect(answer).not_to_contain_text("First audio")
    assert wire.first("prepare")["config"]["tts"] == {"enabled": False}
    assert not any(message.get("audio_data") for _, message in wire.log)


def test_a_hidden_page_sends_nothing(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(talk.PATH, at=fake_site, devices=talk.SCRIPTED, storage=SHORT)
    talk.start(page)
    show = """(state) => {
        Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, "hidden")
    expect(page.locator(".state-hint")).to_have_text("Your microphone is muted.")
    page.evaluate(show, "visible")
    expect(page.locator(".state-hint")).to_have_text("Your turn: just speak.")
    talk.ask(page)
    expect(talk.exchanges(page, done=True)).to_have_count(1)


def test_reset_brings_the_settings_back(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(talk.PATH, at=fake_site, storage=talk.storage(vad_threshold=0.3, temperature=1.5))
    page.get_by_role("button", name="Settings").click()
    threshold = page.locator("[data-setting=vad_threshold]")
    expect(threshold).to_have_value("0.3")
    page.get_by_role("button", name="Reset all settings").click()
    expect(threshold).to_have_value("0.8")


def test_try_again_when_the_microphone_is_free(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(talk.PATH, at=fake_site, devices=Devices(microphone="busy"))
    talk.click_start(page)
    expect_problem(page, "busy")
    become(page, "microphone", "file")
    page.get_by_role("button", name="Try again").click()
    expect_activity(page, "listening", "hearing")
    expect(page.locator("#notice")).to_be_hidden()


def test_unplugged_and_plugged_in_again(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(talk.PATH, at=fake_site, devices=talk.SCRIPTED, storage=SHORT)
    talk.start(page)
    unplug(page, "microphone")
    expect_problem(page, "unplugged")
    become(page, "microphone", "file")  # the call opens it by itself
    expect(page.locator("#notice")).to_be_hidden()
    talk.ask(page)
    expect(talk.exchanges(page, done=True)).to_have_count(1)


def test_a_microphone_that_gives_zeros(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(talk.PATH, at=fake_site, devices=talk.SCRIPTED, storage=SHORT)
    talk.start(page)
    expect_problem(page, "silent_microphone", place="#notice")
    talk.ask(page)
    expect(page.locator("#notice")).to_be_hidden()


def test_nothing_heard_for_too_long(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit(talk.PATH, at=fake_site, devices=talk.SCRIPTED)

    def shorten(text: str) -> str:
        return text.replace('"timeout_s":180', '"timeout_s":10')  # the page offers no less than 30

    def pass_on(socket: object) -> None:
        server = socket.connect_to_server()  # type: ignore[attr-defined]  # a WebSocketRoute
        socket.on_message(lambda text: server.send(shorten(text)))  # type: ignore[attr-defined]

    page.route_web_socket(re.compile(r"/ws/half_duplex/"), pass_on)
    talk.start(page)
    page.get_by_role("button", name="Mute").click()
    remaining = page.locator("[data-row=remaining]")
    expect(remaining).to_contain_text(re.compile("0:0[0-9]|0:10"))
    expect_problem(page, "timeout")
    expect_activity(page, "ended")
    page.locator("#notice").get_by_role("button", name="Start again").click()
    expect_activity(page, "listening")
    expect(page.locator("#notice")).to_be_hidden()


def test_the_longest_time_is_over(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, config={"half_duplex": {"max_session_s": 3}})
    page = visit(talk.PATH, at=system, devices=talk.SCRIPTED)
    talk.click_start(page)
    expect_problem(page, "max_session")


def test_waiting_in_line(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=1)
    first = visit(talk.PATH, at=system, devices=talk.SCRIPTED)
    talk.start(first)
    second = visit(talk.PATH, at=system, devices=talk.SCRIPTED)
    talk.click_start(second)
    expect_activity(second, "waiting")
    expect(second.locator("#queue")).to_contain_text("You are next")
    expect(second.locator("[data-row=queue]")).to_contain_text("position 1")
    expect(second).to_have_title(re.compile(r"^\(1\) "))
    second.get_by_role("button", name="Leave the queue").click()
    expect_activity(second, "ended")
    expect(second.locator("#queue")).to_be_hidden()
    # On a busy machine the silence of the scripted microphone is told meanwhile.
    expect(second.locator("#notice:not([data-code=silent_microphone])")).to_be_hidden()
    talk.click_start(second)
    expect_activity(second, "waiting")
    end(first)
    expect_activity(second, "listening")


def test_the_model_is_still_loading(visit: Visits, shared_site: SiteMaker) -> None:
    page = visit(talk.PATH, at=shared_site(workers=1), devices=talk.SCRIPTED)

    def loading(route: Route) -> None:
        workers = {"idle_workers": 0, "free_slots": 0, "busy_workers": 0, "loading_workers": 1}
        route.fulfill(json=route.fetch().json() | workers)

    page.route("**/status", loading)
    page.reload()
    wait_until_ready(page)
    expect_problem(page, "worker_loading", place="#service-note")
    page.unroute("**/status")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#service-note")).to_be_hidden()


def test_the_worker_dies(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1)
    page = visit(talk.PATH, at=system, devices=talk.SCRIPTED)
    talk.start(page)
    os.kill(system.pid("worker_0"), signal.SIGKILL)
    expect_problem(page, "worker_lost")
    expect_activity(page, "ended")
    assert held_tracks(page, "microphone") == 0
