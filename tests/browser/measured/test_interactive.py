"""How soon a page can be used on a slow computer."""

from __future__ import annotations

from statistics import median

import pytest

from tests.browser.looks import Look, PageKind, present_pages
from tests.browser.visits import Visits, wait_until_ready

SLOWDOWN = 4
LIMIT_MS = 1_000  # source: what was asked of the pages
VISITS = 3


def interactive_ms(visit: Visits, path: str) -> float:
    """Open a page for the first time and return when it could be used, counted from the click."""
    page = visit("", look=Look(draws_rarely=False))
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": SLOWDOWN})
    page.goto(path)
    wait_until_ready(page)
    at_ms: float = page.evaluate("performance.getEntriesByName('page-interactive')[0].startTime")
    page.context.close()
    return at_ms


@pytest.mark.nightly  # a figure of the machine as much as of the pages
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_page_can_be_used_within_a_second(visit: Visits, recording: str, kind: PageKind) -> None:
    path = kind.path.format(recording=recording)
    times_ms = [interactive_ms(visit, path) for _ in range(VISITS)]
    print(f"{kind}: usable after {median(times_ms):.0f} ms at a {SLOWDOWN} times slower CPU")
    assert median(times_ms) <= LIMIT_MS, times_ms
