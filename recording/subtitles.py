"""Draws the words being spoken onto a picture, in whatever script they are."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

FONT_SIZE_PX: Final = 42  # source: service specification, section 5.5
LINE_HEIGHT_PX: Final = 54
OUTLINE_PX: Final = 3
MARGIN_PX: Final = 40
MAX_LINES: Final = 3  # older ones scroll away
MAX_LINE_CHARS: Final = 200  # a "word" without a break is broken here at the latest
FIRST_WIDE_CHAR: Final = 0x2E80  # CJK radicals; from here on scripts break between characters
WHITE: Final = (255, 255, 255)
BLACK: Final = (0, 0, 0)

# Faces that hold Chinese, Japanese and Korean, best first; then faces with most other scripts.
# Compared with file names in lower case.
FACES: Final = (
    "notosanscjk-regular",
    "notosanscjk",
    "notosanssc",
    "sourcehansans",
    "pingfang",
    "hiragino sans gb",
    "msyh",
    "wqy-microhei",
    "wqy-zenhei",
    "droidsansfallback",
    "arial unicode",
    "simhei",
    "notoserifcjk",
    "unifont",
    "dejavusans.ttf",
    "notosans-regular",
    "arial.ttf",
)
FONT_SUFFIXES: Final = (".ttf", ".ttc", ".otf")
UNIX_FOLDERS: Final = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.local/share/fonts",
    "~/.fonts",
    "/System/Library/Fonts",
    "/Library/Fonts",
)


def find_font_file() -> Path | None:
    """Return the installed face that shows most scripts; None if none of those known is there."""
    best: tuple[int, Path] | None = None
    for path in _font_files():
        rank = _rank(path.name.lower())
        if rank is not None and (best is None or rank < best[0]):
            best = (rank, path)
    return best[1] if best else None


def load_font(file: Path | None, size_px: int = FONT_SIZE_PX) -> Font:
    """Open a face; without a file, or when it is damaged, the one built into Pillow."""
    if file is not None:
        try:
            # The basic layout keeps hostile text away from the shaping library.
            return ImageFont.truetype(file, size_px, layout_engine=ImageFont.Layout.BASIC)
        except OSError:
            pass
    return ImageFont.load_default(size_px)


@dataclass
class Subtitle:
    """The text on screen: grows word by word, broken into lines that fit."""

    font: Font
    width_px: int  # of the picture
    lines: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Take all text away."""
        self.lines = []

    def add(self, text: str) -> None:
        """Add text; lines already full stay as they are."""
        visible = "".join(char if char.isprintable() else " " for char in text)
        open_line = self.lines.pop() if self.lines else ""
        self.lines += self._broken(open_line + visible)
        self.lines = self.lines[-MAX_LINES:]

    def draw_on(self, picture: Image.Image) -> None:
        """Draw the text at the bottom of a picture, centred, white with a black edge."""
        draw = ImageDraw.Draw(picture)
        top = picture.height - MARGIN_PX - LINE_HEIGHT_PX * len(self.lines)
        for line in self.lines:
            text = line.strip()
            left = (picture.width - self.font.getlength(text)) / 2
            draw.text(
                (left, top),
                text,
                fill=WHITE,
                font=self.font,
                stroke_width=OUTLINE_PX,
                stroke_fill=BLACK,
            )
            top += LINE_HEIGHT_PX

    @cached_property
    def _room_px(self) -> int:
        return self.width_px - 2 * MARGIN_PX

    def _broken(self, text: str) -> Iterator[str]:
        """Break text into lines: at a space, between wide characters, else anywhere."""
        rest = text
        while not self._fits(rest):
            count = self._fitting_chars(rest)
            cut = _break_before(rest, count)
            yield rest[:cut]
            rest = rest[cut:].lstrip(" ")
        yield rest

    def _fits(self, text: str) -> bool:
        return len(text) <= MAX_LINE_CHARS and self.font.getlength(text) <= self._room_px

    def _fitting_chars(self, text: str) -> int:
        """Return how many first characters fit into a line, at least one."""
        low, high = 1, min(len(text), MAX_LINE_CHARS)
        while low < high:
            middle = (low + high + 1) // 2
            if self.font.getlength(text[:middle]) <= self._room_px:
                low = middle
            else:
                high = middle - 1
        return low


def _break_before(text: str, count: int) -> int:
    """Return where to break so that at most `count` characters stand before."""
    for position in range(count, 0, -1):
        if position < len(text) and text[position] == " ":
            return position
        if ord(text[position - 1]) >= FIRST_WIDE_CHAR:
            return position
    return count


def _rank(name: str) -> int | None:
    return next((rank for rank, face in enumerate(FACES) if name.startswith(face)), None)


def _font_files() -> Iterator[Path]:
    folders = [os.path.expanduser(folder) for folder in UNIX_FOLDERS]
    if sys.platform == "win32":
        folders = [os.path.join(os.environ.get("WINDIR", r"C:\Windows"), "Fonts")]
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in sorted(names):
                if name.lower().endswith(FONT_SUFFIXES):
                    yield Path(root, name)
