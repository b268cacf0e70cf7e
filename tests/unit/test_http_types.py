"""What is written from the OpenAPI document is up to date."""

from __future__ import annotations

import pytest

from scripts.http_types import FILES
from tests.source_tree import ROOT


@pytest.mark.parametrize("path", FILES)
def test_a_file_follows_the_openapi_document(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf8") == FILES[path](), "make protocol"
