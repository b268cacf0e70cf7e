"""What pages load: little, from here alone, and nothing they could not do without."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.browser.audits import Loaded, catalogue
from tests.browser.looks import PageKind, present_pages
from tests.browser.problems import Problems
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem

MAX_SCRIPT_BYTES = 150_000  # source: what was asked of the pages
VENDOR = "**/static/vendor/**"
OWN_SCHEMES = {"data", "blob"}


@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_page_is_light_and_asks_nobody_else(
    visit: Visits, site: RunningSystem, recording: str, kind: PageKind
) -> None:
    page = visit("")
    loaded = Loaded.watching(page)
    page.goto(kind.path.format(recording=recording))
    wait_until_ready(page)
    page.wait_for_load_state("networkidle")

    addresses = [urlsplit(url) for url in loaded.urls]
    home = urlsplit(site.url).netloc
    assert [
        each.geturl()
        for each in addresses
        if each.scheme not in OWN_SCHEMES and each.netloc != home
    ] == []
    weight = loaded.weigh(page)
    print(f"{kind}: {weight} bytes of scripts, compressed")
    assert weight <= MAX_SCRIPT_BYTES, loaded.script_bytes


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
    problems.allow(r"HTTP 404 GET .*/static/vendor/", r"console: .*/static/vendor/")
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
