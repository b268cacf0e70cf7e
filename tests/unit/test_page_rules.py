"""The countable part of the house rules for HTML and styles; eslint.config.mjs has the modules'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.looks import PAGES
from tests.page_tree import STATIC, Html, html_files
from tests.source_tree import ROOT

MAX_FILE_LINES = 400
HTML = html_files()

# What is exempt: file -> reason.
BLOCKING_SCRIPTS = {
    "/static/shared/early-theme.js": "the theme must be there before the first paint"
}
FOREIGN = re.compile(r"""(?:https?:|wss?:|["'(=])//[\w[]""")
NAMESPACES = re.compile(r"http://www\.w3\.org/(?:1998/Math/MathML|1999/xlink|2000/svg)")


def test_every_page_is_there() -> None:
    missing = [page.file for page in PAGES if not (STATIC / page.file).is_file()]
    assert missing == []


@pytest.mark.parametrize("html", HTML, ids=lambda html: html.name)
def test_html_holds_structure_alone(html: Html) -> None:
    faults = list(html.inline)
    for tag in html.tags:
        names = [name for name in tag.attributes if name.startswith("on") or name == "style"]
        faults += [f"line {tag.line}: <{tag.name} {name}=…>" for name in names]
        if tag.name == "style":
            faults.append(f"line {tag.line}: <style>")
        if tag.name == "script":
            is_module = tag.attributes.get("type") == "module"
            source = tag.attributes.get("src", "")
            if not (is_module and source) and source not in BLOCKING_SCRIPTS:
                faults.append(f"line {tag.line}: a script that is no module")
        for name in ("src", "href", "action", "poster"):
            if FOREIGN.search(f'"{tag.attributes.get(name, "")}'):
                faults.append(f"line {tag.line}: {name} leads elsewhere")
    ids = [tag.attributes["id"] for tag in html.tags if "id" in tag.attributes]
    faults += [f"the id {name} stands there twice" for name in set(ids) if ids.count(name) > 1]
    missing = [script.name for script in html.scripts() if not script.path.is_file()]
    assert faults + [f"starts {name}, which is not there" for name in missing] == []


@pytest.mark.parametrize(
    "path", sorted(STATIC.rglob("*.css")), ids=lambda path: path.relative_to(ROOT).as_posix()
)
def test_styles_come_from_here(path: Path) -> None:
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf8"), flags=re.DOTALL)
    assert FOREIGN.findall(NAMESPACES.sub("", text)) == []
    assert text.count("\n") <= MAX_FILE_LINES
