"""Chinese text shows where the machine has no font for it, and costs English pages nothing."""

from __future__ import annotations

import subprocess

import pytest
from playwright.sync_api import Page, expect

from tests.browser.looks import Look
from tests.browser.visits import Visits

FONT = "/vendor/noto-sans-sc/"
MAX_PARTS = 20  # of 101: the words of a page lie in the parts of common characters
MARK_SCRIPT = """() => [...document.querySelectorAll("body *")]
    .filter((el) => el.checkVisibility() && [...el.childNodes].some(
        (node) => node.nodeType === Node.TEXT_NODE && /\\p{Script=Han}/u.test(node.data)))
    .map((el, index) => (el.dataset.chinese = index, el.textContent))"""


def fetched(page: Page) -> list[str]:
    """Return the names of the font's files that the page has asked for."""
    names: list[str] = page.evaluate(
        """(font) => performance.getEntriesByType("resource").map((one) => one.name)
            .filter((name) => name.includes(font))""",
        FONT,
    )
    return names


def drawn_without_font(page: Page) -> list[str]:
    """Return the Chinese texts of a page that were drawn without a Chinese font.

    The page's scripts rest meanwhile: what they replace has no font that could be asked for.
    """
    browser = page.context.new_cdp_session(page)
    browser.send("DOM.enable")
    browser.send("CSS.enable")
    texts: list[str] = page.evaluate(MARK_SCRIPT)
    browser.send("Emulation.setScriptExecutionDisabled", {"value": True})
    root = browser.send("DOM.getDocument")["root"]["nodeId"]
    found = []
    for index, text in enumerate(texts):
        query = {"nodeId": root, "selector": f'[data-chinese="{index}"]'}
        node = browser.send("DOM.querySelector", query)
        if not node["nodeId"]:  # replaced before the scripts came to rest
            continue
        fonts = browser.send("CSS.getPlatformFontsForNode", {"nodeId": node["nodeId"]})["fonts"]
        if not any(font["familyName"].startswith("Noto Sans SC") for font in fonts):
            found.append(text)
    browser.send("Emulation.setScriptExecutionDisabled", {"value": False})
    assert texts
    return found


@pytest.fixture
def bare_machine() -> None:
    """Leave the test out where the system has a Chinese font of its own."""
    listed = subprocess.run(
        ["fc-list", ":lang=zh-cn", "family"], capture_output=True, text=True, check=False
    )
    if listed.stdout.strip():
        pytest.skip("this machine has a Chinese font: the pages do not fetch theirs")


def test_an_english_page_fetches_no_chinese_font(visit: Visits) -> None:
    page = visit("/")
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("button", name="中文")).to_be_visible()
    assert fetched(page) == []


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("path", ["/", "/audio_duplex"])
def test_chinese_is_drawn_with_the_parts_it_needs(visit: Visits, path: str) -> None:
    page = visit(path, look=Look("zh"))
    page.wait_for_function("() => document.fonts.size > 0")
    page.wait_for_load_state("networkidle")
    page.evaluate("document.fonts.ready")
    parts = [name for name in fetched(page) if name.endswith(".woff2")]
    assert 0 < len(parts) <= MAX_PARTS
    assert drawn_without_font(page) == []
    # A rare character is fetched when it appears.
    page.evaluate("document.querySelector('h1').textContent = '龘'")
    page.wait_for_function(
        "(count) => performance.getEntriesByType('resource')"
        ".filter((one) => one.name.endsWith('.woff2')).length > count",
        arg=len(parts),
    )
