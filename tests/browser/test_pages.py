"""Every page in both languages: one visit that looks at all that holds for every page."""

from __future__ import annotations

import re
from io import BytesIO
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from tests.browser.audits import Loaded, axe_violations, layout_faults, visible_key_names
from tests.browser.looks import (
    HEIGHTS_PX,
    WIDTHS_PX,
    Language,
    Look,
    PageKind,
    Theme,
    present_pages,
)
from tests.browser.visits import Visits, wait_until_ready
from tests.system.running import RunningSystem

CHINESE = re.compile(r"[\u4e00-\u9fff]")
LANGUAGES: tuple[Language, ...] = ("en", "zh")
THEMES: tuple[Theme, ...] = ("light", "dark")
MAX_SCRIPT_BYTES = 150_000  # source: what was asked of the pages
OWN_SCHEMES = {"data", "blob"}
MAX_FIRST_FILES = 8
VISITS = 4  # a browser on a busy machine may still write a file to its cache at the next visit
# What the browser did not take from its cache, without the page itself.
SENT_AGAIN = """performance.getEntriesByType("resource")
    .filter(({ name, transferSize }) => name.includes("/static/") && transferSize > 0)
    .map(({ name }) => name)"""
WITHOUT_STORAGE = """Object.defineProperty(window, "localStorage", {
    get() { throw new DOMException("Access is denied.", "SecurityError"); } });"""
# What a page draws anew when its size changes, it draws before the second frame after that.
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def resize(page: Page, width_px: int) -> None:
    """Give a page another size, and wait until it has drawn itself for it."""
    page.set_viewport_size({"width": width_px, "height": HEIGHTS_PX[width_px]})
    page.wait_for_function(f"() => innerWidth === {width_px}")
    page.evaluate(TWO_FRAMES)


def filled(element: Locator) -> float:
    """Return the share of an element's pixels that have not the colour of its corner."""
    pixels = np.asarray(Image.open(BytesIO(element.screenshot())).convert("RGB"))
    return float((pixels != pixels[0, 0]).any(axis=-1).mean())


@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_page_is_light_fits_reads_well_and_breaks_no_rule(
    visit: Visits, site: RunningSystem, recording: str, kind: PageKind, lang: Language
) -> None:
    page = visit("", look=Look(lang))
    loaded = Loaded.watching(page)
    page.goto(kind.path.format(recording=recording))
    wait_until_ready(page)
    page.wait_for_load_state("networkidle")

    expect(page.locator("html")).to_have_attribute("lang", re.compile(f"^{lang}"))
    heading = page.locator("h1").first.inner_text()
    assert bool(CHINESE.search(heading)) == (lang == "zh")
    assert visible_key_names(page) == []
    for width_px in WIDTHS_PX:
        resize(page, width_px)
        assert layout_faults(page) == [], f"at {width_px} px"
    for theme, width_px in zip(THEMES, WIDTHS_PX, strict=False):
        page.emulate_media(color_scheme=theme)
        resize(page, width_px)
        assert axe_violations(page) == [], theme

    home = urlsplit(site.url).netloc
    addresses = [urlsplit(url) for url in loaded.urls]
    elsewhere = [one for one in addresses if one.netloc != home and one.scheme not in OWN_SCHEMES]
    assert elsewhere == []
    assert loaded.weigh(page) <= MAX_SCRIPT_BYTES, loaded.script_bytes


def test_high_contrast_shows_what_is_on(visit: Visits) -> None:
    page = visit("/turnbased")
    page.emulate_media(forced_colors="active")
    switch = page.get_by_role("switch").first
    off = filled(switch)
    switch.check()
    assert filled(switch) > off + 0.2


def test_a_page_opens_where_the_browser_blocks_storage(visit: Visits, recording: str) -> None:
    page = visit("")
    page.add_init_script(WITHOUT_STORAGE)
    for kind in present_pages():
        page.goto(kind.path.format(recording=recording))
        wait_until_ready(page)
        expect(page.locator("h1").first).to_be_visible()


def test_a_page_opens_with_few_files_and_keeps_them(visit: Visits) -> None:
    page = visit("")
    loaded = Loaded.watching(page)
    page.goto("/turnbased")
    wait_until_ready(page)
    paths = [urlsplit(url).path for url in loaded.urls]
    html = page.request.get("/turnbased").text()
    # What no address in the page names comes in spare time, once the page is ready.
    early = [path for path in paths if "/pages/" not in path or path in html]
    files = [path for path in early if path == "/turnbased" or path.startswith("/static/")]
    assert "/turnbased" in files and len(files) <= MAX_FIRST_FILES, files
    page.wait_for_load_state("networkidle")

    sent = paths
    for _ in range(VISITS):
        page.goto("/")
        page.goto("/turnbased")
        wait_until_ready(page)
        page.wait_for_load_state("networkidle")
        if not (sent := page.evaluate(SENT_AGAIN)):
            break
    assert sent == []
