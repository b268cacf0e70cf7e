"""What pages load: little, from here alone, and nothing they could not do without."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.audits import catalogue
from tests.browser.looks import PageKind, present_pages
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready

pytestmark = pytest.mark.matrix

VENDOR = "**/vendor/**"


@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_page_works_without_the_libraries_and_says_so(
    visit: Visits, problems: Problems, recording: str, kind: PageKind
) -> None:
    page = visit("")
    missed: list[str] = []

    def refuse(route: object) -> None:
        missed.append(route.request.url)  # type: ignore[attr-defined]
        route.fulfill(status=404)  # type: ignore[attr-defined]

    page.route(VENDOR, refuse)
    problems.allow(r"HTTP 404 GET .*/vendor/", r"console: .*/vendor/")
    page.goto(kind.path.format(recording=recording))
    wait_until_ready(page)
    page.wait_for_load_state("networkidle")
    expect(page.locator("h1").first).to_be_visible()
    if missed:
        title = catalogue("en")["problem.missing_library.title"]
        expect(page.get_by_text(re.compile(_pattern(title))).first).to_be_visible()


def _pattern(words: str) -> str:
    """Return what finds a text whatever stands in its gaps."""
    return ".*".join(re.escape(part) for part in re.split(r"\{\w+\}", words))
