"""What a page is asked about itself: accessibility, layout, words, sizes."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Response

from tests.source_tree import ROOT

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
I18N = ROOT / "static" / "i18n"
INJECT = Path(__file__).with_name("inject")
LAYOUT_SCRIPT = INJECT / "layout.js"
WORDS_SCRIPT = INJECT / "words.js"
SCRIPT_TYPES = ("text/javascript", "application/javascript")
FILE_ENDING = re.compile(r"\.(css|html|jpe?g|js|json|mjs|mp4|msgpack|onnx|png|wav|webm|zip)$")
DOTTED_WORD = re.compile(r"(?<![\w./@-])[a-z]\w*(?:\.[a-z]\w*)+(?![\w/@(])")


@cache
def _axe() -> str:
    if not AXE.is_file():
        pytest.fail("axe-core is not installed: scripts/setup.sh pages --with-checks")
    return AXE.read_text(encoding="utf8")


def axe_violations(page: Page) -> list[str]:
    """Let axe-core look at the page as it is now.

    Returns:
        One line for each element that breaks a rule.
    """
    page.evaluate(_axe())
    # Style sheets are not read ahead: axe copies those of shadow trees, which the policy forbids.
    options = {"resultTypes": ["violations"], "preload": {"assets": ["media"]}}
    # Any: axe's answer as JSON.
    found: list[dict[str, Any]] = page.evaluate(
        "async (options) => (await axe.run(document, options)).violations", options
    )
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node['failureSummary']}"
        for rule in found
        for node in rule["nodes"]
    ]


def layout_faults(page: Page) -> list[str]:
    """Return what does not fit: scrolling sideways, controls outside or too small, text cut off."""
    faults: list[str] = page.evaluate(LAYOUT_SCRIPT.read_text(encoding="utf8"))
    return faults


@cache
def catalogue(lang: str) -> dict[str, str]:
    """Return the words of a language by key."""
    words: dict[str, str] = json.loads((I18N / f"{lang}.json").read_text(encoding="utf8"))
    return words


def visible_key_names(page: Page) -> list[str]:
    """Return what stands on the page and looks like the key of a text: `home.title`."""
    text: str = page.evaluate(WORDS_SCRIPT.read_text(encoding="utf8"))
    namespaces = {key.split(".")[0] for key in catalogue("en")}
    return [
        word
        for word in DOTTED_WORD.findall(text)
        if word.split(".")[0] in namespaces and not FILE_ENDING.search(word)
    ]


@dataclass
class Loaded:
    """What a page loads from the moment it is watched.

    Attributes:
        urls: of every request.
        script_bytes: of each script by path, compressed with gzip.
    """

    urls: list[str] = field(default_factory=list)
    script_bytes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def watching(cls, page: Page) -> Loaded:
        """Watch a blank page."""
        loaded = cls()
        page.on("request", lambda request: loaded.urls.append(request.url))
        page.on("response", loaded._on_response)
        page.on("websocket", lambda socket: loaded.urls.append(socket.url))
        return loaded

    def _on_response(self, response: Response) -> None:
        kind = response.headers.get("content-type", "").split(";")[0]
        if kind in SCRIPT_TYPES:
            # The page's own files; read from the disk, since a body may be gone by now.
            path = urlsplit(response.url).path
            self.script_bytes[path] = 0

    def weigh(self, page: Page) -> int:
        """Fetch every script once more and return the sum of their compressed sizes, bytes."""
        for path in self.script_bytes:
            self.script_bytes[path] = len(gzip.compress(page.request.get(path).body(), 6))
        return sum(self.script_bytes.values())
