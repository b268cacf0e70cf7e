"""Reads the pages' own source for the tests that guard its shape. Knows just enough JavaScript."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

from tests.source_tree import ROOT

STATIC = ROOT / "static"
GENERATED = {"static/shared/protocol.js"}

Kind = Literal["pure", "device", "view"]

# After one of these a slash begins a regular expression; after anything else it divides.
BEFORE_REGEX = re.compile(
    r"(?:^|[(,=:\[!&|?{};+\-*%<>~^\n]|\b(?:return|typeof|case|in|of|delete|void|throw|await|yield))"
    r"\s*$"
)
REGEX_LITERAL = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n\[])+/[a-z]*")
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
HEADER = re.compile(r"\A// @ts-check\n/\*\*(.*?)\*/", re.DOTALL)
IMPORT = re.compile(r'\b(?:import|export)\b[^;"\']*?\bfrom\s*["\']([^"\']+)["\']')
BARE_IMPORT = re.compile(r'\bimport\s*["\']([^"\']+)["\']')
LATE_IMPORT = re.compile(r'\bimport\(\s*["\']([^"\']+)["\']\s*\)')


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


@dataclass
class _Split:
    """A script taken apart.

    Attributes:
        code: without comments.
        bare: without comments and without what stands in strings and regular expressions.
        strings: the plain strings.
        templates: the texts of template literals, each gap written as `${}`.
    """

    code: list[str]
    bare: list[str]
    strings: list[str]
    templates: list[str]


def _split(text: str) -> _Split:
    parts = _Split([], [], [], [])
    _scan(text, 0, parts, is_gap=False)
    return parts


def _keep(parts: _Split, literal: str, bare: str) -> None:
    parts.code.append(literal)
    parts.bare.append(bare)


def _scan(text: str, at: int, parts: _Split, *, is_gap: bool) -> int:
    """Take apart from `at` to the end, or to the brace that closes a template's gap."""
    depth = 0
    while at < len(text):
        found = COMMENT.match(text, at)
        if found:
            _keep(parts, _blank(found.group()), _blank(found.group()))
        elif found := STRING.match(text, at):
            parts.strings.append(found.group()[1:-1])
            _keep(parts, found.group(), '"' + _blank(found.group()[1:-1]) + '"')
        elif text[at] == "/" and BEFORE_REGEX.search("".join(parts.bare[-12:])):
            found = REGEX_LITERAL.match(text, at)
            if found:
                _keep(parts, found.group(), _blank(found.group()))
        if found:
            at = found.end()
            continue
        if text[at] == "`":
            at = _scan_template(text, at + 1, parts)
            continue
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if is_gap and depth < 0:
            return at
        _keep(parts, text[at], text[at])
        at += 1
    return at


def _scan_template(text: str, at: int, parts: _Split) -> int:
    words = ""
    _keep(parts, "`", '"')
    while at < len(text) and text[at] != "`":
        if text.startswith("${", at):
            words += "${}"
            _keep(parts, "${", "${")
            at = _scan(text, at + 2, parts, is_gap=True)
            _keep(parts, "}", "}")
            at += 1
            continue
        length = 2 if text[at] == "\\" else 1
        words += text[at : at + length]
        _keep(parts, text[at : at + length], _blank(text[at : at + length]))
        at += length
    _keep(parts, "`", '"')
    parts.templates.append(words)
    return at + 1


@dataclass(frozen=True)
class Script:
    """One JavaScript file."""

    path: Path

    @cached_property
    def name(self) -> str:
        """Path from the repository's root, with slashes."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """The file's text."""
        return self.path.read_text(encoding="utf8")

    @cached_property
    def _parts(self) -> _Split:
        return _split(self.text)

    @cached_property
    def code(self) -> str:
        """Without comments, lines as they are."""
        return "".join(self._parts.code)

    @cached_property
    def bare(self) -> str:
        """Without comments and without what stands in strings, lines as they are."""
        return "".join(self._parts.bare)

    @property
    def strings(self) -> list[str]:
        """What stands in plain strings."""
        _ = self.code
        return self._parts.strings

    @property
    def templates(self) -> list[str]:
        """What stands in template literals; a gap is `${}`."""
        return self._parts.templates

    @cached_property
    def header(self) -> str | None:
        """What the file says it is for; None if it does not say so where it should."""
        found = HEADER.match(self.text)
        return found.group(1) if found else None

    @property
    def kind(self) -> Kind:
        """As the header says; what says nothing may touch the page."""
        if self.name in GENERATED or re.search(r"\bPure\.", self.header or ""):
            return "pure"
        return "device" if re.search(r"\bDevice\.", self.header or "") else "view"

    def imports(self, *, with_late: bool = False) -> list[Script]:
        """Return our own files that this one imports."""
        names = IMPORT.findall(self.code) + BARE_IMPORT.findall(self.code)
        if with_late:
            names += LATE_IMPORT.findall(self.code)
        paths = [
            STATIC / name.removeprefix("/static/")
            if name.startswith("/static/")
            else (self.path.parent / name).resolve()
            for name in names
            if name.startswith((".", "/static/")) and not name.startswith("/static/vendor/")
        ]
        return [Script(path) for path in paths]


def scripts() -> list[Script]:
    """Every script of the pages."""
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
        """Read a file."""
        super().__init__()
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.tags: list[Tag] = []
        self.inline: list[str] = []
        self._within = ""
        self.feed(path.read_text(encoding="utf8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        values = {name: value or "" for name, value in attrs}
        self.tags.append(Tag(tag, values, self.getpos()[0]))
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        """Leave a tag."""
        self._within = ""

    def handle_data(self, data: str) -> None:
        """Note text that is a script or a style."""
        if self._within in {"script", "style"} and data.strip():
            self.inline.append(f"<{self._within}> {data.strip()[:40]}")

    def scripts(self) -> list[Script]:
        """Return the scripts the page starts."""
        sources = [tag.attributes.get("src", "") for tag in self.tags if tag.name == "script"]
        return [Script(STATIC / source.removeprefix("/static/")) for source in sources if source]


def html_files() -> list[Html]:
    """Every page."""
    return [Html(path) for path in sorted(STATIC.rglob("*.html"))]
