"""Every page as it opens, judged by axe-core: no rule is broken, in either theme."""

from __future__ import annotations

import pytest

from tests.browser.audits import axe_violations
from tests.browser.looks import Look, PageKind, looks, present_pages
from tests.browser.visits import Visits


@pytest.mark.parametrize(
    "look", looks(widths_px=(360, 1_280), themes=("light", "dark")), ids=lambda look: str(look)
)
@pytest.mark.parametrize("kind", present_pages(), ids=lambda kind: str(kind))
def test_no_rule_is_broken(visit: Visits, recording: str, kind: PageKind, look: Look) -> None:
    page = visit(kind.path.format(recording=recording), look=look)
    page.wait_for_load_state("networkidle")
    assert axe_violations(page) == []
