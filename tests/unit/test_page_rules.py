"""The countable part of the house rules for the pages: shape of files, kinds of modules, origins.

Exemptions stand here, each with its reason; an exemption nobody needs any more fails too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser.looks import PAGES
from tests.page_tree import GENERATED, STATIC, Html, Script, html_files, scripts
from tests.source_tree import ROOT

MAX_FILE_LINES = 400
MAX_WIRING_LINES = 200
# Without those of functions inside: a component's function is what a class is elsewhere.
MAX_FUNCTION_LINES = 60
MAX_COMPONENT_LINES = 120  # with them
MAX_NESTING = 4
MAX_HEADER_LINES = 5

SCRIPTS = [script for script in scripts() if script.name not in GENERATED]
PAGE_TESTS = [Script(path) for path in sorted((ROOT / "tests" / "js").rglob("*.js"))]
HTML = html_files()

# What is exempt: file -> reason.
BLOCKING_SCRIPTS = {
    "/static/shared/early-theme.js": "the theme must be there before the first paint"
}
ENVIRONMENT_READERS: dict[str, str] = {}
DOCUMENT_READERS: dict[str, str] = {
    "static/shared/page-visibility.js": "whether a page is seen is asked of the document alone",
    "static/duplex/lib/camera.js": "a camera is decoded by a video element, which no page shows",
    "static/duplex/lib/session-video-recorder.js": "recordings are painted on a canvas of no page",
}

ENVIRONMENT = (
    "AudioContext|OfflineAudioContext|WebSocket|document|fetch|localStorage|navigator|"
    "sessionStorage|window"
)
# A name of its own: no property, no key of an object.
GLOBAL_NAME = r"(?<![\w$.])(?:{names})\b(?!\s*:)"
RAW_HTML = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|createContextualFragment)\b|"
    r"\bdocument\s*\.\s*write|(?<![\w.])eval\s*\(|\bnew\s+Function\b|javascript:"
)
SILENCED = re.compile(r"@ts-(?:ignore|nocheck|expect-error)|eslint-disable|istanbul ignore")
FOREIGN = re.compile(r"""(?:https?:|wss?:|["'(=])//[\w[]""")
NAMESPACES = re.compile(r"http://www\.w3\.org/(?:1998/Math/MathML|1999/xlink|2000/svg)")
CHATTER = re.compile(r"\bconsole\.(?:log|debug|dir|table)\b|\bdebugger\b")

FUNCTION_START = re.compile(r"(?:\)|=>)\s*$")
BLOCK_WORD = re.compile(r"\b(if|for|while|switch|catch|with)\s*(?:await\s*)?$")
LOOSE_BLOCK = re.compile(r"\b(?:else|try|do|finally)\s*$")

Finder = Callable[[Script], Iterator[tuple[str, str]]]


def long_files(script: Script) -> Iterator[tuple[str, str]]:
    limit = MAX_WIRING_LINES if script.path.parent.name == "pages" else MAX_FILE_LINES
    lines = script.text.count("\n")
    if lines > limit:
        yield script.name, f"{lines} lines, at most {limit}"


def headers(script: Script) -> Iterator[tuple[str, str]]:
    if script.header is None:
        yield script.name, "begins without // @ts-check and what it is for"
        return
    lines = [line for line in script.header.splitlines() if line.strip(" *")]
    if len(lines) > MAX_HEADER_LINES:
        yield script.name, f"says in {len(lines)} lines what it is for, at most {MAX_HEADER_LINES}"


def _before(bare: str, at: int) -> str:
    """Return what stands before a brace: the text before the parentheses, if there are any."""
    text = bare[:at].rstrip()
    if not text.endswith(")"):
        return text
    depth = 0
    for index in range(len(text) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[index], 0)
        if depth == 0:
            return text[:index].rstrip()
    return text


def blocks(script: Script) -> Iterator[tuple[str, int, int, int]]:
    """(what, first line, last line, blocks around it within its function) of every brace."""
    bare = script.bare
    open_blocks: list[tuple[str, int, int]] = []
    line = 1
    for at, letter in enumerate(bare):
        line += letter == "\n"
        if letter == "{":
            what = "other"
            head = bare[:at].rstrip()[-200:]
            if LOOSE_BLOCK.search(head):
                what = "block"
            elif FUNCTION_START.search(head):
                is_block = head.endswith(")") and BLOCK_WORD.search(_before(bare, at)[-20:])
                what = "block" if is_block else "function"
            depth = 0
            for around, _, _ in reversed(open_blocks):
                if around == "function":
                    break
                depth += around == "block"
            open_blocks.append((what, line, depth))
        elif letter == "}" and open_blocks:
            what, first, depth = open_blocks.pop()
            yield what, first, line, depth + 1


def long_functions(script: Script) -> Iterator[tuple[str, str]]:
    functions = [(first, last) for what, first, last, _ in blocks(script) if what == "function"]
    for first, last in functions:
        lines = last - first + 1
        inside = {
            line
            for start, end in functions
            if first <= start and end <= last and (start, end) != (first, last)
            for line in range(start + 1, end + 1)  # the first line stays: something calls it
        }
        if lines - len(inside) > MAX_FUNCTION_LINES:
            own = lines - len(inside)
            yield script.name, f"line {first}: {own} lines of its own, at most {MAX_FUNCTION_LINES}"
        elif lines > MAX_COMPONENT_LINES:
            yield script.name, f"line {first}: {lines} lines, at most {MAX_COMPONENT_LINES}"


def deep_functions(script: Script) -> Iterator[tuple[str, str]]:
    for what, first, _, depth in blocks(script):
        if what == "block" and depth > MAX_NESTING:
            yield script.name, f"line {first}: nested {depth} deep, at most {MAX_NESTING}"


def _lines(pattern: re.Pattern[str], script: Script, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        found = pattern.search(line)
        if found:
            yield script.name, f"line {number}: {found.group().strip()}"


def environment(script: Script) -> Iterator[tuple[str, str]]:
    """Pure modules run anywhere."""
    if script.kind == "pure":
        pattern = re.compile(GLOBAL_NAME.format(names=ENVIRONMENT))
        yield from _lines(pattern, script, script.bare)


def documents(script: Script) -> Iterator[tuple[str, str]]:
    """Device modules leave the page to views."""
    if script.kind == "device":
        yield from _lines(re.compile(GLOBAL_NAME.format(names="document")), script, script.bare)


def upward_imports(script: Script) -> Iterator[tuple[str, str]]:
    """Pure modules import pure ones, device modules pure and device ones."""
    allowed = {"pure": {"pure"}, "device": {"pure", "device"}}.get(script.kind)
    for target in script.imports():
        if not target.path.is_file():
            yield script.name, f"imports {target.name}, which is not there"
        elif allowed and target.kind not in allowed:
            yield script.name, f"is {script.kind} and imports {target.name}, which is {target.kind}"


def raw_html(script: Script) -> Iterator[tuple[str, str]]:
    yield from _lines(RAW_HTML, script, script.code)


def silenced(script: Script) -> Iterator[tuple[str, str]]:
    yield from _lines(SILENCED, script, script.text)


def chatter(script: Script) -> Iterator[tuple[str, str]]:
    yield from _lines(CHATTER, script, script.bare)


def foreign(script: Script) -> Iterator[tuple[str, str]]:
    yield from _lines(FOREIGN, script, NAMESPACES.sub("", script.code))


RULES: tuple[tuple[str, Finder, list[Script], dict[str, str]], ...] = (
    ("file length", long_files, SCRIPTS + PAGE_TESTS, {}),
    ("header", headers, SCRIPTS, {}),
    ("function length", long_functions, SCRIPTS, {}),
    ("nesting", deep_functions, SCRIPTS, {}),
    ("pure modules", environment, SCRIPTS, ENVIRONMENT_READERS),
    ("device modules", documents, SCRIPTS, DOCUMENT_READERS),
    ("imports", upward_imports, SCRIPTS, {}),
    ("raw HTML", raw_html, SCRIPTS, {}),
    ("silenced checks", silenced, SCRIPTS, {}),
    ("chatter", chatter, SCRIPTS, {}),
    ("other origins", foreign, SCRIPTS, {}),
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule[0])
def test_rule_of_the_pages(rule: tuple[str, Finder, list[Script], dict[str, str]]) -> None:
    _, finder, files, exempt = rule
    found = [offence for script in files for offence in finder(script)]
    faults = [f"{where}: {what}" for where, what in found if where not in exempt]
    assert not faults, "\n".join(["", *faults])
    unused = set(exempt) - {where for where, _ in found}
    assert not unused, "exemptions nobody needs any more"


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


def test_the_rules_find_what_they_forbid() -> None:
    """Each finder on a small file that breaks its rule."""
    nested = "\n".join("if (a) {" for _ in range(MAX_NESTING + 1)) + "}" * (MAX_NESTING + 1)
    body = f"""
import {{ h }} from "./nowhere.js";
const place = `${{window.name}}`; // window in a comment is nothing, nor is "window" in a string
document.body.innerHTML = "https://elsewhere.example/";
// @ts-ignore
console.log(1);
function long(a) {{
{nested}
{"  a();" + chr(10)}
}}
const other = () => {{
{("  a();" + chr(10)) * MAX_FUNCTION_LINES}
}};
{chr(10) * MAX_FILE_LINES}
"""
    folder = STATIC / "shared"
    lengthy = "// @ts-check\n/**\n" + " * one\n" * (MAX_HEADER_LINES + 1) + " * {}.\n */\n"
    for name, finder, _, _ in RULES:
        bad = Script(folder / "bad.js")
        text = lengthy.format("Device" if finder is documents else "Pure") + body
        vars(bad)["text"] = text
        assert list(finder(bad)), name
        if finder is environment:
            assert len(list(finder(bad))) == 2
    assert [what for what, *_ in blocks(bad)].count("function") == 2
