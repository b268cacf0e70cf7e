"""What a page could load at the very most, libraries included, stays small on its way.

The browser tests weigh what a page does load when it opens; this follows every import there is.
"""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

import pytest

from gateway_modules.web.files import LEVEL, compact
from gateway_modules.web.vendor_files import NODE_FILES
from tests.browser.looks import PageKind, present_pages
from tests.page_tree import STATIC, Html, Script
from tests.source_tree import ROOT

MAX_BYTES = 150_000  # source: what was asked of the pages; compressed
VENDOR = STATIC / "shared" / "vendor.js"
LOADER = re.compile(r"export (?:async )?function (load\w+)\(.*?\n}", re.DOTALL)
LOADED = re.compile(r"""\bload\("([\w-]+)", "([\w.-]+)"\)""")
OPTIONS = {"loadOnnxRuntime": "a second voice detector, for those who choose it"}
"""Loaders of what nobody gets without asking for it: name -> what it is."""

BY_ITSELF = {"onnxruntime": ("ort-wasm-simd-threaded.mjs",)}
"""Files that a library loads without being told to."""


@cache
def loaders() -> dict[str, list[str]]:
    """Return what each function of vendor.js loads, as paths below node_modules."""
    found = {}
    for match in LOADER.finditer(VENDOR.read_text(encoding="utf8")):
        files = LOADED.findall(match.group())
        files += [(lib, name) for lib, _ in files for name in BY_ITSELF.get(lib, ())]
        found[match.group(1)] = [NODE_FILES[lib][name] for lib, name in files]
    return found


def reachable(html: Html) -> dict[str, Script]:
    """Return every script of ours that a page may load, by name."""
    found: dict[str, Script] = {}
    waiting = html.scripts()
    while waiting:
        script = waiting.pop()
        if script.name not in found:
            found[script.name] = script
            waiting += script.imports(with_late=True) + worklets(script)
    return found


def worklets(script: Script) -> list[Script]:
    """Return the scripts that a script starts beside the page: named in full, or beside itself."""
    names = [
        text for text in script.strings if re.fullmatch(r"[\w./-]+-(?:processor|worker)\.js", text)
    ]
    paths = [
        STATIC / name.removeprefix("/static/")
        if name.startswith("/static/")
        else (script.path.parent / name).resolve()
        for name in names
    ]
    return [Script(path) for path in paths]


def libraries(scripts: dict[str, Script]) -> set[str]:
    """Return the library files that some scripts ask for, as paths below node_modules."""
    others = [script for script in scripts.values() if script.path != VENDOR]
    return {
        path
        for name, paths in loaders().items()
        if name not in OPTIONS
        for path in paths
        if any(re.search(rf"\b{name}\b", script.bare) for script in others)
    }


def bytes_sent(path: Path) -> int:
    """Return how much of a script goes over the network."""
    return len(gzip.compress(compact(path, path.read_bytes()), LEVEL))


def test_every_library_has_a_known_loader() -> None:
    assert set(loaders()) and all(loaders().values())


@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_all_a_page_could_load_is_small(kind: PageKind) -> None:
    scripts = reachable(Html(STATIC / kind.file))
    sizes = {name: bytes_sent(script.path) for name, script in scripts.items()}
    for path in libraries(scripts):
        sizes[path] = bytes_sent(ROOT / "node_modules" / path)
    largest = sorted(sizes.items(), key=lambda item: -item[1])
    print(f"{kind}: {sum(sizes.values())} bytes in {len(sizes)} files")
    assert sum(sizes.values()) <= MAX_BYTES, largest
