"""The pictures in docs/screenshots, which the README shows, look like the pages of today.

To write them anew set MINICPMO_WRITE_SCREENSHOTS=1, and run this file with -m "matrix or realtime".
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from tests.browser import chats, shots, sites
from tests.browser.calls import CALL_LIMIT_MS, start, stop
from tests.browser.devices import Devices
from tests.browser.looks import PAGES, Look, PageKind, Theme, present_pages
from tests.browser.media_files import INPUT_RATE_HZ, question_16k, write_speech
from tests.browser.visits import Visits
from tests.source_tree import ROOT
from tests.system.running import RunningSystem

ROOM_S = 16
ROOM_RMS = 0.0005

THEMES: tuple[Theme, ...] = ("light", "dark")
CALLS: tuple[tuple[str, str, Theme, str, str], ...] = (
    ("call", "/audio_duplex", "light", "sum", "Seven plus five is twelve."),
    ("video_call", "/omni", "dark", "sight", "I see a red circle."),
)
"""Name of the picture, path, theme, what is asked, what the embedded model answers."""
# As the page itself does when a call starts; the click of a test may scroll it elsewhere.
SHOW_CALL = """() => {
    scrollTo(0, 0);
    document.querySelector(".stage-card").scrollIntoView({ block: "nearest" });
}"""
COMMAND = (
    f"{shots.WRITE}=1 .venv/bin/python -m pytest -m 'matrix or realtime' "
    "tests/browser/test_screenshots.py"
)


@pytest.fixture(scope="session")
def conversation(site: RunningSystem) -> str:
    """Id of the recording that the picture of the replay shows."""
    return sites.record_omni(site, ("sight", "sum", "name"))


@pytest.mark.matrix
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_a_picture_shows_the_page(
    visit: Visits, conversation: str, kind: PageKind, theme: Theme
) -> None:
    page = visit(kind.path.format(recording=conversation), look=Look(theme=theme))
    page.wait_for_load_state("networkidle")
    if kind.name == "turnbased":
        for count, question in enumerate(("My name is Anna.", "What is my name?"), start=1):
            chats.ask(page, question, count)
    compare(page, f"{kind.name}.{theme}", shots.MAX_DIFFERENCE_OF_A_CALL)


@pytest.mark.realtime
@pytest.mark.parametrize(
    ("name", "path", "theme", "question", "answer"), CALLS, ids=lambda each: str(each)
)
def test_a_picture_shows_a_call(
    visit: Visits, tmp_path: Path, name: str, path: str, theme: Theme, question: str, answer: str
) -> None:
    # A quiet room: of complete silence the page would warn.
    room = np.random.default_rng(1).normal(0, ROOM_RMS, ROOM_S * INPUT_RATE_HZ).astype(np.float32)
    start_at = len(room) // 8
    spoken = question_16k(question)
    room[start_at : start_at + len(spoken)] += spoken
    microphone = Devices(speech=write_speech(tmp_path / "room.wav", room))
    page = visit(path, look=Look(theme=theme), devices=microphone)
    start(page)
    expect(page.locator("#transcript")).to_contain_text(answer, timeout=CALL_LIMIT_MS)
    page.evaluate(SHOW_CALL)
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
    names |= {f"{name}.{theme}.png" for name, _, theme, _, _ in CALLS}
    assert {path.name for path in shots.FOLDER.glob("*.png")} - names == set()
