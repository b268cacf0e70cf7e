"""Keeps the `modulepreload` lines of the pages true: `python -m scripts.preloads`.

A page names every module that it needs to open, so that the browser asks for all of them at once
and not for one after the other.
"""

from __future__ import annotations

import re

from tests.page_tree import STATIC, Html, Script, html_files

LINE = re.compile(r'^<link rel="modulepreload" href="[^"]*">\n', re.MULTILINE)


def needed(page: Html) -> list[str]:
    """Return the addresses of what a page's modules import at once, themselves left out."""
    starts = [
        Script(STATIC / tag.attributes["src"].removeprefix("/static/"))
        for tag in page.tags
        if tag.name == "script" and tag.attributes.get("type") == "module"
    ]
    found: dict[str, Script] = {}
    waiting = list(starts)
    while waiting:
        for script in waiting.pop().imports():
            if script.name not in found:
                found[script.name] = script
                waiting.append(script)
    return sorted(f"/{name}" for name in found)


def rewritten(page: Html, text: str) -> str:
    """Return a page's text with the lines it should have, where the first of them stood."""
    first = LINE.search(text)
    if first is None:
        return text
    lines = "".join(f'<link rel="modulepreload" href="{address}">\n' for address in needed(page))
    rest = LINE.sub("", text[first.start() :])
    return text[: first.start()] + lines + rest


def main() -> None:
    """Write the pages that have changed."""
    for page in html_files():
        before = page.path.read_text(encoding="utf8")
        after = rewritten(page, before)
        if after != before:
            page.path.write_text(after, encoding="utf8")
            print(page.name)


if __name__ == "__main__":
    main()
