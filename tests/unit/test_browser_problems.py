"""What a browser test must announce, and what a cut network excuses."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from playwright.sync_api import BrowserContext

from tests.browser.problems import Problems

SOCKET_LOST = "WebSocket connection to 'ws://127.0.0.1/ws' failed: Error in connection"


class FakeContext:
    """Lets things go wrong in a browser that is none."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[object], None]] = {}

    def on(self, event: str, handler: Callable[[object], None]) -> None:
        self._handlers[event] = handler

    def fail(self, failure: str) -> None:
        url = "http://127.0.0.1/icon.svg"
        self._handlers["requestfailed"](SimpleNamespace(failure=failure, method="GET", url=url))

    def say(self, text: str) -> None:
        place = {"url": "page.js", "lineNumber": 1}
        self._handlers["console"](SimpleNamespace(type="error", text=text, location=place))


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def context(problems: Problems) -> FakeContext:
    fake = FakeContext()
    problems.watch(cast(BrowserContext, fake))
    return fake


@pytest.mark.parametrize(
    "failure", ["net::ERR_CONTENT_LENGTH_MISMATCH", "net::ERR_INTERNET_DISCONNECTED"]
)
def test_a_cut_excuses_whatever_it_does_to_requests(
    problems: Problems, context: FakeContext, failure: str
) -> None:
    problems.allow_cut()
    context.fail(failure)
    context.say(SOCKET_LOST)
    assert problems.unexpected == []


def test_what_failed_before_the_cut_is_told(problems: Problems, context: FakeContext) -> None:
    context.fail("net::ERR_CONNECTION_RESET")
    problems.allow_cut()
    assert len(problems.unexpected) == 1


def test_a_cut_excuses_no_fault_of_the_page(problems: Problems, context: FakeContext) -> None:
    problems.allow_cut()
    context.fail("net::ERR_BLOCKED_BY_CSP")
    context.say("Uncaught TypeError: nothing is no function")
    assert len(problems.unexpected) == 2
