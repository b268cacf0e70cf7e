"""How a page is looked at, and which pages there are."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal

from tests.source_tree import ROOT

Language = Literal["en", "zh"]
Theme = Literal["light", "dark"]

WIDTHS_PX = (360, 1_280, 1_920)  # a telephone, a laptop, a wall display
HEIGHTS_PX = {360: 740, 1_280: 800, 1_920: 1_080}
LOCALES = {"en": "en-GB", "zh": "zh-CN"}


@dataclass(frozen=True)
class Look:
    """One way of looking.

    Attributes:
        lang: what the browser asks for.
        width_px: of the window.
        theme: what the browser asks for.
        likes_motion: animations run; off, so that states come at once.
        draws_rarely: pages draw ten times a second, not sixty; off where they are measured.
    """

    lang: Language = "en"
    width_px: int = 1_280
    theme: Theme = "light"
    likes_motion: bool = False
    draws_rarely: bool = True

    def __str__(self) -> str:
        """Name a case of a test."""
        return f"{self.lang}-{self.width_px}-{self.theme}"


@dataclass(frozen=True)
class PageKind:
    """One page.

    Attributes:
        name: of cases of tests and of pictures.
        path: where it is; `{recording}` stands for the id of a recording.
        file: in `static/`; a page whose file is not there yet is not tested.
    """

    name: str
    path: str
    file: str

    def __str__(self) -> str:
        """Name a case of a test."""
        return self.name


PAGES = (
    PageKind("home", "/", "index.html"),
    PageKind("check", "/check", "check.html"),
    PageKind("turnbased", "/turnbased", "turnbased.html"),
    PageKind("half_duplex", "/half_duplex", "half_duplex.html"),
    PageKind("audio_duplex", "/audio_duplex", "audio_duplex.html"),
    PageKind("omni", "/omni", "omni.html"),
    PageKind("admin", "/admin", "admin.html"),
    PageKind("viewer", "/s/{recording}", "session-viewer.html"),
)


def looks(
    langs: tuple[Language, ...] = ("en",),
    widths_px: tuple[int, ...] = (1_280,),
    themes: tuple[Theme, ...] = ("light",),
) -> list[Look]:
    """Return every combination."""
    return [Look(*each) for each in product(langs, widths_px, themes)]


def present_pages() -> list[PageKind]:
    """Return the pages whose files are there; `tests/unit/test_page_rules.py` misses the others."""
    return [page for page in PAGES if (ROOT / "static" / page.file).is_file()]
