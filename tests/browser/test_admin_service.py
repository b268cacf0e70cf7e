"""Administration of the service: workers, queue, conversations, durations, apps."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from benchmarks.launched import wait_until
from tests.browser.admin_desk import (
    LIMIT_S,
    answer_dialog,
    answer_workers,
    call,
    expect_toast,
    hold_call,
    look_again,
    section,
    talking,
    worker_of,
)
from tests.browser.conftest import SiteMaker
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix


def test_a_worker_is_taken_out_of_service_and_put_back(
    visit: Visits, shared_site: SiteMaker
) -> None:
    system = shared_site(workers=2)
    page = visit("/admin#workers", at=system)
    card = page.locator("[data-worker=worker_1]")
    expect(card).to_contain_text("Free")
    card.get_by_role("button", name="Drain").click()
    expect_toast(page, "worker_1 is draining")
    expect(card).to_contain_text("Draining")
    assert worker_of(system, "worker_1")["is_draining"] is True
    assert worker_of(system, "worker_0")["is_draining"] is False
    card.get_by_role("button", name="Resume").click()
    expect(card).to_have_attribute("data-state", "idle")
    assert worker_of(system, "worker_1")["is_draining"] is False


def is_back(system: RunningSystem) -> bool:
    """Whether the worker serves again and nobody waits for its restart any more."""
    worker = worker_of(system)
    return worker["status"] == "idle" and not worker["is_restarting"] and worker["free_slots"] > 0


def test_a_worker_is_restarted_after_a_yes_and_comes_back(
    visit: Visits, shared_site: SiteMaker
) -> None:
    system = shared_site(workers=1, slots=2)
    before = system.pid("worker_0")
    page = visit("/admin#workers", at=system)
    card = page.locator("[data-worker=worker_0]")
    restart = card.get_by_role("button", name="Restart")
    with talking(system):
        look_again(page)
        expect(card).to_contain_text("Voice call, started")
        restart.click()
        answer_dialog(page, "Restart worker_0?", confirm=None)
        assert worker_of(system)["is_restarting"] is False
        restart.click()
        expect(page.locator("dialog[open]")).to_contain_text("finishes its conversation first")
        answer_dialog(page, "Restart worker_0?", confirm="Restart")
        expect_toast(page, "worker_0 restarts as soon as it is free.")
        expect(card).to_contain_text("when its last conversation has ended")
        expect(card).to_contain_text("It is already being restarted.")
        expect(restart).to_have_attribute("aria-disabled", "true")
    wait_until("it is back", lambda: is_back(system), LIMIT_S * 2)
    assert system.pid("worker_0") != before
    look_again(page)
    expect(card).to_have_attribute("data-state", "idle")
    expect(restart).to_have_attribute("aria-disabled", "false")


def test_a_worker_that_loads_tells_how_far_it_is(visit: Visits, fake_site: RunningSystem) -> None:
    page = visit("", at=fake_site)
    answer_workers(page, status="loading", loading={"stage": "weights", "progress": 0.4})
    page.goto("/admin#workers")
    card = page.locator("[data-worker=worker_0]")
    expect(card).to_contain_text("Loading: weights")
    expect(card.locator("progress")).to_have_attribute("value", "0.4")


def test_memory_errors_and_kept_histories_of_a_worker_are_told(
    visit: Visits, fake_site: RunningSystem
) -> None:
    page = visit("", at=fake_site)
    answer_workers(
        page,
        status="error",
        can_restart=False,
        error="CUDA out of memory",
        vram_used_mb=71_680,
        vram_total_mb=81_920,
        cached_hash="0123456789abcdef",
        total_requests=1_234,
        avg_inference_time_ms=321.0,
        uptime_s=93_784,
    )
    page.goto("/admin#workers")
    card = page.locator("[data-worker=worker_0]")
    for words in (
        "Failed: CUDA out of memory",
        "70 GiB of 80 GiB",
        "0123456789ab…",
        "1,234",
        "321 ms",
        "1 d 2 h",
        "it was not started by the launcher",
    ):
        expect(card).to_contain_text(words)
    button = card.get_by_role("button", name="Restart")
    expect(button).to_have_attribute("aria-disabled", "true")
    button.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)


# --- queue and conversations ---


def test_somebody_in_line_is_taken_out_after_a_yes(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=1)
    with talking(system), talking(system, is_served=False) as waiting:
        page = visit("/admin#queue", at=system)
        row = section(page, "queue").locator("tbody tr")
        expect(row).to_contain_text(waiting)
        expect(row).to_contain_text("Voice call")
        expect(page.locator("[data-goto=queue] .admin-count")).to_have_text("1")
        take_out = row.get_by_role("button", name="Remove")
        take_out.click()
        answer_dialog(page, "Remove position 1, Voice call from the queue?", confirm=None)
        assert call(system, "GET", "/api/queue")["queue_length"] == 1
        take_out.click()
        dialog = page.locator("dialog[open]")
        expect(dialog).to_contain_text("told that they were removed from the queue")
        dialog.locator("button[value=yes]").click()
        expect_toast(page, "Removed: position 1, Voice call.")
        expect(section(page, "queue")).to_contain_text("Nobody is waiting.")
        assert call(system, "GET", "/api/queue")["queue_length"] == 0


def test_somebody_whose_turn_came_meanwhile_is_not_cancelled(
    visit: Visits, shared_site: SiteMaker
) -> None:
    system = shared_site(workers=1, slots=1)
    with talking(system), talking(system, is_served=False):
        page = visit("/admin#queue", at=system)
        section(page, "queue").get_by_role("button", name="Remove").click()
        (item,) = call(system, "GET", "/api/queue")["items"]
        call(system, "DELETE", f"/api/queue/{item['ticket_id']}")
        page.locator("dialog[open] button[value=yes]").click()
        expect_toast(page, "No longer in the queue")


def test_a_conversation_is_stopped_after_a_yes(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1, slots=2)
    with talking(system) as session_id:
        page = visit("/admin#conversations", at=system)
        row = section(page, "conversations").locator("tbody tr")
        expect(row).to_contain_text(session_id)
        expect(row).to_contain_text("worker_0")
        stop = row.get_by_role("button", name="Stop")
        stop.click()
        answer_dialog(page, session_id, confirm=None)
        assert len(call(system, "GET", "/api/queue")["running_tasks"]) == 1
        stop.click()
        answer_dialog(page, session_id, confirm="Stop")
        expect_toast(page, f"Stopped: Voice call {session_id}.")
        wait_until(
            "nobody is served",
            lambda: not call(system, "GET", "/api/queue")["running_tasks"],
            LIMIT_S,
        )
        look_again(page)
        expect(section(page, "conversations")).to_contain_text("Nobody is connected.")


# --- settings ---


def test_expected_durations_are_checked_saved_and_kept_while_typing(
    visit: Visits, make_site: SiteMaker
) -> None:
    system = make_site(workers=1)
    page = visit("/admin#durations", at=system)
    state = page.locator("#eta-state")
    expect(state).to_have_text("Saved.")
    chat, alpha = page.locator("#eta-chat"), page.locator("#eta-alpha")
    expect(chat).to_have_value("15")
    chat.fill("0")
    alpha.fill("2")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#eta-chat-problem")).to_have_text("Enter a number greater than zero.")
    expect(page.locator("#eta-alpha-problem")).to_have_text("Enter at most 1.")
    expect(chat).to_be_focused()
    chat.fill("7.5")
    alpha.fill("0.5")
    expect(state).to_have_text("2 unsaved changes.")
    look_again(page)
    with page.expect_response("**/api/config/eta"):
        look_again(page)
    expect(chat).to_have_value("7.5")
    assert call(system, "GET", "/api/config/eta")["config"]["eta_chat_s"] == 15
    page.get_by_role("button", name="Save").click()
    expect_toast(page, "Saved.")
    expect(state).to_have_text("Saved.")
    told = call(system, "GET", "/api/config/eta")
    assert (told["config"]["eta_chat_s"], told["ema_alpha"]) == (7.5, 0.5)
    chat.fill("99")
    page.get_by_role("button", name="Discard changes").click()
    expect(chat).to_have_value("7.5")


def test_measured_durations_stand_beside_the_expected_ones(
    visit: Visits, make_site: SiteMaker
) -> None:
    system = make_site(workers=1)
    hold_call(system)
    page = visit("/admin#durations", at=system)
    expect(page.locator("[data-eta=audio_duplex] .hint")).to_contain_text("in 1 conversation")
    expect(page.locator("[data-eta=chat] .hint")).to_have_text("Not measured yet.")


def test_an_app_is_switched_off_and_back_by_undo(visit: Visits, shared_site: SiteMaker) -> None:
    system = shared_site(workers=1)

    def is_on() -> bool:
        apps = call(system, "GET", "/api/admin/apps")["apps"]
        return next(bool(one["enabled"]) for one in apps if one["app_id"] == "omni")

    page = visit("/admin#apps", at=system)
    switch = page.get_by_role("switch", name="Video call")
    expect(switch).to_be_checked()
    switch.click()
    expect_toast(page, "Video call is switched off.")
    expect(page.locator("[data-app=omni]")).to_contain_text("off")
    assert not is_on()
    page.get_by_role("button", name="Undo").click()
    expect(switch).to_be_checked()
    assert is_on()
