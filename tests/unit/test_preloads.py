"""Pages name at once all that they need to open."""

from __future__ import annotations

import pytest

from scripts import preloads
from tests.page_tree import STATIC, Html, html_files


@pytest.mark.parametrize("page", html_files(), ids=lambda page: page.path.name)
def test_a_page_names_the_modules_it_opens_with(page: Html) -> None:
    text = page.path.read_text(encoding="utf8")
    is_true = preloads.rewritten(page, text) == text
    assert is_true, f"the modulepreload lines of {page.name} are out of date: make preloads"


def test_lines_are_renewed_where_the_first_stood() -> None:
    page = Html(STATIC / "index.html")
    right = page.path.read_text(encoding="utf8")
    lines = preloads.LINE.findall(right)
    wrong = right.replace("".join(lines), '<link rel="modulepreload" href="/static/gone.js">\n')
    assert preloads.rewritten(page, wrong) == right
