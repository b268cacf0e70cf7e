"""A live call on a page: what the user presses and sees."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Locator, Page, WebSocket, expect

CALL_LIMIT_MS = 120_000  # generous, for the machine may be busy
EAGER = {"listen_prob_scale": 0.1, "force_listen_count": 0}
"""Settings that have even an untrained model speak soon."""


def eager_storage(key: str, **settings: object) -> dict[str, str]:
    """Return what a browser remembers whose user likes talkative models."""
    return {key: json.dumps(EAGER | settings)}


def press(page: Page, action: str) -> None:
    """Press one of the call's buttons: "start", "stop", "pause", "interrupt", "force-listen"…"""
    page.locator(f"[data-action={action}]").click()


def wait_for_phase(page: Page, phase: str, limit_ms: float = CALL_LIMIT_MS) -> None:
    """Wait until the call is "queued", "running", "paused", "ended"…"""
    expect(page.locator("html")).to_have_attribute("data-call", phase, timeout=limit_ms)


def wait_for_state(page: Page, state: str) -> None:
    """Wait until the page shows what goes on: "listening", "speaking", "interrupted"…"""
    expect(page.locator("#stage")).to_have_attribute(
        "data-call-state", state, timeout=CALL_LIMIT_MS
    )


def start(page: Page) -> None:
    """Start a call and wait until the model listens."""
    press(page, "start")
    wait_for_phase(page, "running")


def stop(page: Page) -> None:
    """End the call."""
    press(page, "stop")
    wait_for_phase(page, "ended")


def metric(page: Page, row: str) -> Locator:
    """Return the value of a row of the figures."""
    return page.locator(f".metric[data-row={row}] .metric-value")


def units_sent(page: Page) -> int:
    """Return how many units were sent."""
    text = metric(page, "chunks").inner_text()
    return int(text.split()[0].replace(",", "")) if text[0].isdigit() else 0


def wait_for_units(page: Page, least: int) -> None:
    """Wait until so many units were answered."""
    page.wait_for_function(
        """(least) => {
            const plot = document.querySelector(".timeline-plot");
            return Number(plot.getAttribute("aria-valuemax")) + 1 >= least;
        }""",
        arg=least,
        timeout=CALL_LIMIT_MS,
    )


class Wire:
    """What a page says and hears on its sockets, in order."""

    def __init__(self, page: Page) -> None:
        """Listen from now on."""
        self._page = page
        self.sent: list[dict[str, Any]] = []  # Any: JSON
        self.heard: list[dict[str, Any]] = []
        page.on("websocket", self._on_socket)

    def _on_socket(self, socket: WebSocket) -> None:
        socket.on("framesent", lambda payload: self.sent.append(json.loads(payload)))
        socket.on("framereceived", lambda payload: self.heard.append(json.loads(payload)))

    def said(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages of a kind that the page sent."""
        return [message for message in self.sent if message["type"] == kind]

    def wait_until_said(self, kind: str) -> None:
        """Wait during a call until the page has sent a message of a kind."""
        while not self.said(kind):
            wait_for_units(self._page, units_sent(self._page) + 1)

    def got(self, kind: str) -> list[dict[str, Any]]:
        """Return the messages of a kind that the page received."""
        return [message for message in self.heard if message["type"] == kind]


def hide(page: Page, *, is_hidden: bool) -> None:
    """Have the page believe that its tab went to the background or came back."""
    page.evaluate(
        """(isHidden) => {
            const become = (name, value) =>
                Object.defineProperty(document, name, { get: () => value, configurable: true });
            become("visibilityState", isHidden ? "hidden" : "visible");
            become("hidden", isHidden);
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )
