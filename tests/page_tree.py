"""Reads the pages' own source for the tests that guard its texts and its HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path

from tests.source_tree import ROOT

STATIC = ROOT / "static"

# Keys have no spaces, so strings that might be keys are found without reading JavaScript.
STRING = re.compile(r'"([^"\\\s]+)"')
TEMPLATE = re.compile(r"`([a-z][a-z0-9_]*\.(?:[\w.]|\$\{[^}`]*\})*)`")
TEMPLATE_GAP = re.compile(r"\$\{[^}]*\}")


@dataclass(frozen=True)
class Script:
    """One JavaScript file."""

    path: Path

    @cached_property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf8")

    @property
    def strings(self) -> list[str]:
        """What stands in plain strings without spaces."""
        return STRING.findall(self.text)

    @property
    def templates(self) -> list[str]:
        """What stands in template literals that begin as keys do; a gap is `${}`."""
        return [TEMPLATE_GAP.sub("${}", text) for text in TEMPLATE.findall(self.text)]


def scripts() -> list[Script]:
    return [Script(path) for path in sorted(STATIC.rglob("*.js"))]


@dataclass(frozen=True)
class Tag:
    """One opening tag of a page."""

    name: str
    attributes: dict[str, str]
    line: int


class Html(HTMLParser):
    """One page: its tags, and the text inside of `script` and `style`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.tags: list[Tag] = []
        self.inline: list[str] = []
        self._within = ""
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(Tag(tag, values, self.getpos()[0]))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within in {"script", "style"} and data.strip():
            self.inline.append(f"<{self._within}> {data.strip()[:40]}")

    def scripts(self) -> list[Script]:
        sources = [tag.attributes.get("src", "") for tag in self.tags if tag.name == "script"]
        return [Script(STATIC / source.removeprefix("/static/")) for source in sources if source]


def html_files() -> list[Html]:
    return [Html(path) for path in sorted(STATIC.rglob("*.html"))]
