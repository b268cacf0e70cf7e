"""Pieces of Markdown: tables whose cells cannot break them, links to headings, lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

NAME: Final = re.compile(r"\[(\w+)\]")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; nothing at all if it has no rows."""
    lines = [_line(row) for row in rows]
    if not lines:
        return ""
    return "\n".join([_line(head), "|" + "---|" * len(head), *lines]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") or " " for cell in cells) + " |"


def code(text: str) -> str:
    """Return a text set as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


def codes(texts: Iterable[str]) -> str:
    """Return texts set as code, one after the other."""
    return ", ".join(code(text) for text in texts)


def linked(text: str) -> str:
    """Turn each name in square brackets into a link to the heading of that name."""
    return NAME.sub(lambda match: f"[{match[1]}](#{match[1].lower()})", text)


def bullets(sentences: Iterable[str]) -> str:
    """Return a list."""
    return "".join(f"- {sentence}\n" for sentence in sentences)


def steps(sentences: Iterable[str]) -> str:
    """Return a numbered list."""
    return "".join(f"{number}. {sentence}\n" for number, sentence in enumerate(sentences, start=1))


def joined(parts: Iterable[str]) -> str:
    """Return blocks with an empty line between them; empty ones are left out."""
    return "\n".join(part.rstrip("\n") + "\n" for part in parts if part)
