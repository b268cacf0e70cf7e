"""The types of HTTP's answers that the pages are checked with."""

from __future__ import annotations

from scripts.http_types import FILE, http_types


def test_the_types_follow_the_openapi_document() -> None:
    assert FILE.read_text(encoding="utf8") == http_types(), "make protocol"
