"""No page names its modules one by one: the build does."""

from __future__ import annotations

from tests.page_tree import html_files


def test_a_page_starts_one_module_and_preloads_none() -> None:
    for page in html_files():
        starts = [tag for tag in page.tags if tag.attributes.get("type") == "module"]
        assert len([tag for tag in starts if "async" not in tag.attributes]) == 1, page.name
        assert [tag for tag in page.tags if tag.attributes.get("rel") == "modulepreload"] == []
