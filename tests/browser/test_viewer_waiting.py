"""The replay of a recording that is still being written."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from recording.folder import RecordingLock
from tests.browser import kept
from tests.browser.problems import Problems
from tests.browser.visits import Visits
from tests.system.running import RunningSystem

pytestmark = pytest.mark.matrix

UNFINISHED = "HTTP 409 .*/recording"


def open_unfinished(
    visit: Visits, site: RunningSystem, recording_id: str
) -> tuple[Page, RecordingLock]:
    """Open the replay of a recording that is written until the lock is released."""
    lock = kept.keep_unfinished(site, recording_id)
    page = visit(f"/s/{recording_id}")
    expect(page.locator("#waiting")).to_contain_text("still being written")
    return page, lock


def test_one_still_being_written_appears_by_itself(
    visit: Visits, site: RunningSystem, problems: Problems
) -> None:
    problems.allow(UNFINISHED)
    page, lock = open_unfinished(visit, site, "viewer_unfinished")
    lock.release()
    kept.keep_call(site, "viewer_unfinished")
    expect(page.locator(".player")).to_be_visible()
    expect(page.locator("#waiting")).to_be_hidden()


def test_who_comes_back_to_one_still_being_written_sees_it_in_the_end(
    visit: Visits, site: RunningSystem, problems: Problems
) -> None:
    problems.allow(UNFINISHED)
    page, lock = open_unfinished(visit, site, "viewer_come_back")
    # The browser keeps a page that is left, and shows it again on "back".
    move = "(type) => void dispatchEvent(new PageTransitionEvent(type, { persisted: true }))"
    page.evaluate(move, "pagehide")
    expect(page.locator("#waiting")).to_be_hidden()
    lock.release()
    kept.keep_call(site, "viewer_come_back")
    page.evaluate(move, "pageshow")
    expect(page.locator(".player")).to_be_visible()
