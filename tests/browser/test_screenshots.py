"""The pictures in docs/screenshots, which the README shows, look like the pages of today.

To write them anew: MINICPMO_WRITE_SCREENSHOTS=1 .venv/bin/python -m pytest THIS FILE
"""

from __future__ import annotations

import pytest

from tests.browser import shots
from tests.browser.looks import PAGES, Look, PageKind, Theme, present_pages
from tests.browser.visits import Visits
from tests.source_tree import ROOT

THEMES: tuple[Theme, ...] = ("light", "dark")
COMMAND = f"{shots.WRITE}=1 .venv/bin/python -m pytest tests/browser/test_screenshots.py"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_picture_shows_the_page(
    visit: Visits, recording: str, kind: PageKind, theme: Theme
) -> None:
    page = visit(kind.path.format(recording=recording), look=Look(theme=theme))
    page.wait_for_load_state("networkidle")
    image, words = shots.picture(page), shots.interface_words(page)
    path = shots.FOLDER / f"{kind.name}.{theme}.png"
    if shots.is_writing():
        shots.write(path, image, words)
    faults = shots.differences(path, image, words)
    assert not faults, f"{path.relative_to(ROOT)}: {'; '.join(faults)}. To write it anew: {COMMAND}"


def test_no_picture_is_of_a_page_that_is_gone() -> None:
    names = {f"{kind.name}.{theme}.png" for kind in PAGES for theme in THEMES}
    assert {path.name for path in shots.FOLDER.glob("*.png")} - names == set()
