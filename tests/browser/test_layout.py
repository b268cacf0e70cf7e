"""Every page at every width in both languages: everything fits, and every word is translated."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.browser.audits import layout_faults, visible_key_names
from tests.browser.looks import WIDTHS_PX, Look, PageKind, looks, present_pages
from tests.browser.visits import Visits

CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.mark.parametrize(
    "look", looks(langs=("en", "zh"), widths_px=WIDTHS_PX), ids=lambda look: str(look)
)
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_everything_fits(visit: Visits, recording: str, kind: PageKind, look: Look) -> None:
    page = visit(kind.path.format(recording=recording), look=look)
    page.wait_for_load_state("networkidle")
    expect(page.locator("html")).to_have_attribute("lang", re.compile(f"^{look.lang}"))
    heading = page.locator("h1").first.inner_text()
    assert bool(CHINESE.search(heading)) == (look.lang == "zh")
    assert visible_key_names(page) == []
    assert layout_faults(page) == []
