"""The pictures of pages in docs/screenshots: written on demand, and compared with today's pages.

Machines differ in their fonts, and so in where lines end: a picture is taken in a font of its own.
Rasters differ as well, so pixels are compared from afar only. What a picture must have in common
with the page is its size, its broad shapes and colours, and the words of its controls and headings,
which are kept inside the file.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
from pathlib import Path

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from playwright.sync_api import Page

from tests.source_tree import ROOT

FOLDER = ROOT / "docs" / "screenshots"
WRITE = "MINICPMO_WRITE_SCREENSHOTS"
WORDS = "Interface words"  # name of the text inside the file
FAR_AWAY = (32, 20)  # px; a cell is 40 px of the page wide, so that no letter is left
FONT = ROOT / "node_modules/@fontsource-variable/noto-sans/files/noto-sans-latin-wght-normal.woff2"
MAX_DIFFERENCE = 2.0  # of 255, mean over the cells
MAX_DIFFERENCE_OF_A_CALL = 6.0  # what is said and heard, and when, is another each time
MIN_COMMON_WORDS = 0.85
INTERFACE = "h1, h2, h3, button, label, summary, legend, th, dt, [role=tab], nav a"


def interface_words(page: Page) -> list[str]:
    """Return the words of what is fixed on a page: headings, controls, names of values."""
    texts: list[str] = page.evaluate(
        """(selector) => [...document.querySelectorAll(selector)]
            .filter((el) => el.checkVisibility() && el.innerText.trim())
            .map((el) => el.innerText.trim().replace(/\\s+/g, " "))""",
        INTERFACE,
    )
    return sorted({re.sub(r"\d+", "0", text) for text in texts})


def picture(page: Page) -> Image.Image:
    """Take a picture of what the window shows, its text in `FONT`."""
    page.evaluate(
        """async (font) => {
            const bytes = Uint8Array.from(atob(font), (letter) => letter.charCodeAt(0));
            const face = new FontFace("Picture", bytes, { weight: "100 900" });
            document.fonts.add(await face.load());
            const { style } = document.documentElement;
            const own = getComputedStyle(document.documentElement).getPropertyValue("--font");
            style.setProperty("--font", `Picture, ${own}`);
            await document.fonts.ready;
        }""",
        base64.b64encode(FONT.read_bytes()).decode(),
    )
    taken = page.screenshot(animations="disabled", caret="hide")
    return Image.open(io.BytesIO(taken)).convert("RGB")


def is_writing() -> bool:
    """The pictures are to be written anew."""
    return os.environ.get(WRITE) == "1"


def write(path: Path, image: Image.Image, words: list[str]) -> None:
    """Write a picture with the words it shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = PngInfo()
    notes.add_itxt(WORDS, json.dumps(words, ensure_ascii=False))
    image.save(path, optimize=True, pnginfo=notes)


def differences(
    path: Path, image: Image.Image, words: list[str], at_most: float = MAX_DIFFERENCE
) -> list[str]:
    """Compare a picture on the disk with what the page shows.

    Args:
        path: of the picture on the disk.
        image: what the page shows.
        words: of the page's interface.
        at_most: by how much the two may differ, of 255.

    Returns:
        What differs, in sentences.
    """
    if not path.is_file():
        return ["it is not there"]
    with Image.open(path) as kept:
        told = str(kept.info.get(WORDS, "[]"))
        before = kept.convert("RGB")
    if before.size != image.size:
        return [f"it measures {before.size}, the page {image.size}"]
    faults = []
    far = [
        np.asarray(each.resize(FAR_AWAY, Image.Resampling.BOX), float) for each in (before, image)
    ]
    difference = float(np.abs(far[0] - far[1]).mean())
    if difference > at_most:
        faults.append(f"seen from afar it differs by {difference:.1f}, at most {at_most}")
    known, shown = set(json.loads(told)), set(words)
    common = len(known & shown) / max(1, len(known | shown))
    if common < MIN_COMMON_WORDS:
        faults.append(f"new words: {sorted(shown - known)}, words gone: {sorted(known - shown)}")
    return faults
