"""The pictures in docs/screenshots, which the README shows, look like the pages of today.

To write them anew: MINICPMO_WRITE_SCREENSHOTS=1 .venv/bin/python -m pytest THIS FILE
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.browser import shots
from tests.browser.calls import eager_storage, start, stop, wait_for_mood, wait_for_units
from tests.browser.looks import PAGES, Look, PageKind, Theme, present_pages
from tests.browser.visits import Visits
from tests.source_tree import ROOT

THEMES: tuple[Theme, ...] = ("light", "dark")
# Name of the picture, path, where the page keeps its settings, theme.
CALLS: tuple[tuple[str, str, str, Theme], ...] = (
    ("call", "/audio_duplex", "audio_duplex_settings", "light"),
    ("video_call", "/omni", "omni_settings", "dark"),
)
UNITS = 16  # seconds of a call before its picture is taken
COMMAND = f"{shots.WRITE}=1 .venv/bin/python -m pytest tests/browser/test_screenshots.py"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_picture_shows_the_page(
    visit: Visits, recording: str, kind: PageKind, theme: Theme
) -> None:
    page = visit(kind.path.format(recording=recording), look=Look(theme=theme))
    page.wait_for_load_state("networkidle")
    compare(page, f"{kind.name}.{theme}")


@pytest.mark.parametrize(("name", "path", "settings", "theme"), CALLS, ids=lambda each: str(each))
def test_a_picture_shows_a_call(
    visit: Visits, name: str, path: str, settings: str, theme: Theme
) -> None:
    page = visit(path, look=Look(theme=theme), storage=eager_storage(settings, barge_in=False))
    start(page)
    wait_for_units(page, UNITS)
    wait_for_mood(page, "speaking")
    compare(page, f"{name}.{theme}", shots.MAX_DIFFERENCE_OF_A_CALL)
    stop(page)


def compare(page: Page, name: str, at_most: float = shots.MAX_DIFFERENCE) -> None:
    """Compare a page with its picture, or take the picture anew."""
    image, words = shots.picture(page), shots.interface_words(page)
    path = shots.FOLDER / f"{name}.png"
    if shots.is_writing():
        shots.write(path, image, words)
    faults = shots.differences(path, image, words, at_most)
    assert not faults, f"{path.relative_to(ROOT)}: {'; '.join(faults)}. To write it anew: {COMMAND}"


def test_no_picture_is_of_a_page_that_is_gone() -> None:
    names = {f"{kind.name}.{theme}.png" for kind in PAGES for theme in THEMES}
    names |= {f"{name}.{theme}.png" for name, _, _, theme in CALLS}
    assert {path.name for path in shots.FOLDER.glob("*.png")} - names == set()
