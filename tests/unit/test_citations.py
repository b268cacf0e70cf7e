"""A comment that cites one of the specifications leads to a section that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.source_tree import ROOT

SPECIFICATIONS = ROOT / "docs" / "specification"
CITATION = re.compile(r"docs/specification/(?P<page>[\w-]+)\.md(?:#(?P<section>[\d.]*\d))?")
# A citation in words leads nowhere: nobody can click it, and no test can follow it.
IN_WORDS = re.compile(r"\bspecification,?\s+(?:sections?\s+)?\d|\bspecification, sections?\b")
SUFFIXES = {".py", ".js", ".css", ".html", ".md", ".sh", ".toml"}
FOLDERS = [
    *("MiniCPMO45", "benchmarks", "core", "docs", "gateway_modules", "launcher", "recording"),
    *("scripts", "settings", "static", "tests", "training"),
]


def _sources() -> list[Path]:
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted(path for path in [*files, *ROOT.glob("*")] if path.suffix in SUFFIXES)


def _sections(page: Path) -> set[str]:
    return set(re.findall(r'<a id="([\d.]+)"></a>', page.read_text(encoding="utf-8")))


PAGES = {page.stem: _sections(page) for page in SPECIFICATIONS.glob("*.md")}


def test_every_citation_leads_to_a_section() -> None:
    lost, found = [], 0
    for path in _sources():
        for line in path.read_text(encoding="utf-8").splitlines():
            for citation in CITATION.finditer(line):
                found += 1
                page, section = citation["page"], citation["section"]
                if page not in PAGES or (section is not None and section not in PAGES[page]):
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


@pytest.mark.parametrize("page", sorted(PAGES))
def test_sections_of_a_specification_cite_each_other_rightly(page: str) -> None:
    text = (SPECIFICATIONS / f"{page}.md").read_text(encoding="utf-8")
    anchors = re.findall(r'<a id="([\d.]+)"></a>', text)
    headings = re.findall(r"^#{2,4} (\d+(?:\.\d+)*)\.? ", text, flags=re.M)
    assert anchors == headings, "each numbered heading has its own anchor, in order"
    links = set(re.findall(r"\]\(#([\d.]+)\)", text))
    assert links <= set(anchors), sorted(links - set(anchors))
