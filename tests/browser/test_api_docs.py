"""The page that shows the HTTP interface: from its own description, nothing from elsewhere."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.audits import axe_violations, layout_faults
from tests.browser.looks import Look
from tests.browser.visits import Visits


def test_every_route_is_shown(visit: Visits) -> None:
    page = visit("/api/docs", look=Look(width_px=360))
    expect(page.get_by_role("heading", level=1)).to_have_text("HTTP interface")
    described = page.request.get("/api/openapi.json").json()["paths"]
    routes = sum(len(methods) for methods in described.values())
    assert page.locator("summary").count() == routes
    page.get_by_text("GET /status").click()
    expect(page.get_by_text("ServiceStatus application/json").first).to_be_visible()
    assert axe_violations(page) == []
    assert [fault for fault in layout_faults(page) if "hard to hit" not in fault] == []
