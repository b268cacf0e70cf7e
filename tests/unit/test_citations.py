"""A comment that cites one of the specifications leads to a section that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.source_tree import ROOT

SPECIFICATIONS = ROOT / "docs" / "specification"
SECTION = r"#[\d.]*\d"
# As in "docs/specification/model.md#5.6, #5.7 and #6.4".
SECTIONS = rf"(?P<sections>(?:{SECTION}(?:(?:,| and| to) {SECTION})*)?)"
CITATION = re.compile(r"docs/specification/(?P<page>[\w-]+)\.md" + SECTIONS)
# A citation in words cannot be clicked, and no test can follow it.
IN_WORDS = re.compile(r"\b(?:model|service) specification\b|\bspecification, (?:sections? )?\d")
DEFECT = re.compile(r"\bD\d{1,2}\b")
FILE = re.compile(r"`([\w-]+(?:/[\w-]+)+\.(?:py|js|sh|json|toml))`")
OTHERS = {
    "MiniCPMO45/utils.py": "a file of the published documents",
    "core/factory.py": "a file of the published documents",
    "core/schemas/MODE.py": "stands for a file of each mode",
    "static/i18n/CODE.json": "stands for a file of each language",
    "static/pages/X.js": "stands for a file of each page",
}
"""Paths in the documents that name no file of ours, and why."""

SUFFIXES = {".py", ".js", ".css", ".html", ".md", ".sh", ".toml"}
FOLDERS = [
    *("MiniCPMO45", "benchmarks", "core", "deploy", "docs", "gateway_modules", "launcher"),
    *("recording", "scripts", "settings", "static", "tests", "training"),
]


def _sources() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(path for path in [*files, *ROOT.glob("*")] if path.suffix in SUFFIXES)


def _text(page: str) -> str:
    return (SPECIFICATIONS / f"{page}.md").read_text(encoding="utf-8")


def _anchors(page: str) -> list[str]:
    return re.findall(r'<a id="([\d.]+)"></a>', _text(page))


PAGES = {path.stem: set(_anchors(path.stem)) for path in SPECIFICATIONS.glob("*.md")}


def test_every_citation_leads_to_a_section() -> None:
    lost, found = [], 0
    for path in _sources():
        for line in path.read_text(encoding="utf-8").splitlines():
            for citation in CITATION.finditer(line):
                found += 1
                sections = set(re.findall(r"#([\d.]*\d)", citation["sections"]))
                if not sections <= PAGES.get(citation["page"], set()):
                    lost.append(f"{path.relative_to(ROOT)}: {citation[0]}")
    assert not lost, lost
    assert found > 100, "the comments that cite the specifications were not found"


def test_no_citation_is_made_in_words() -> None:
    own = Path(__file__).resolve()
    lost = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _sources()
        if path.resolve() != own
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if IN_WORDS.search(line)
    ]
    assert not lost, lost


def test_every_file_that_a_document_names_exists() -> None:
    named = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in _sources()
        if path.suffix == ".md"
        for name in FILE.findall(path.read_text(encoding="utf-8"))
        if name not in OTHERS
        and not any((folder / name).exists() for folder in (ROOT, path.parent))
    }
    assert not named, sorted(named)


def test_every_numbered_defect_of_the_reference_is_described() -> None:
    listed = set(re.findall(r"^\| (D\d+) \|", _text("model"), flags=re.M))
    cited = {
        number
        for folder in ("MiniCPMO45", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for number in DEFECT.findall(path.read_text(encoding="utf-8"))
    }
    assert cited and cited <= listed, sorted(cited - listed)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_sections_of_a_specification_cite_each_other_rightly(page: str) -> None:
    headings = re.findall(r"^#{2,4} (\d+(?:\.\d+)*)\.? ", _text(page), flags=re.M)
    assert _anchors(page) == headings, "each numbered heading has its own anchor, in order"
    links = set(re.findall(r"\]\(#([\d.]+)\)", _text(page)))
    assert links <= PAGES[page], sorted(links - PAGES[page])
