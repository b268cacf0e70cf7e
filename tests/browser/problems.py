"""Everything that goes wrong inside a browser without a test asking for it."""

from __future__ import annotations

import re

from playwright.sync_api import BrowserContext, ConsoleMessage, Request, Response, WebError

NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"  # the machine has another interface than before
LEFT_BEHIND = "net::ERR_ABORTED"  # the page was left, or took its question back
HTTP_TWIN = "Failed to load resource: "  # the console repeats what request and answer tell
FIRST_ERROR_STATUS = 400

CUT = re.compile(r"failed: net::ERR_(?!BLOCKED_)|console: WebSocket connection to '[^']+' failed")
"""What a lost network does to a request or a socket. What the browser itself refuses (a breach of
the page's policy) is none of it."""


class Problems:
    """Console errors, uncaught errors, failed requests and breaches of the page's policy.

    A test that causes one on purpose says so: `problems.allow("HTTP 503 .*/api/queue")`.
    """

    def __init__(self) -> None:
        """Nothing has gone wrong."""
        self._found: list[str] = []
        self._allowed: list[re.Pattern[str]] = []
        self._found_before_cut: int | None = None

    def watch(self, context: BrowserContext) -> None:
        """Watch every page of a context."""
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)
        context.on("requestfailed", self._on_failure)
        context.on("response", self._on_response)

    def allow(self, *patterns: str) -> None:
        """Announce what may go wrong from now on or has gone wrong already.

        Args:
            patterns: regular expressions, looked for anywhere in the problem's line.
        """
        self._allowed += [re.compile(pattern) for pattern in patterns]

    def allow_cut(self) -> None:
        """Announce that the test takes network or server away now.

        Whatever the page asks for at that moment or later may fail, each in its own way; what
        failed before is told as ever.
        """
        self._found_before_cut = len(self._found)

    def drop_network_changes(self) -> bool:
        """Forget the requests that a change of the network cut off, and return if there are any."""
        kept = [line for line in self._found if NETWORK_CHANGED not in line]
        self._found, has_dropped = kept, len(kept) < len(self._found)
        return has_dropped

    @property
    def unexpected(self) -> list[str]:
        """What nobody announced."""
        return [
            line
            for index, line in enumerate(self._found)
            if not any(pattern.search(line) for pattern in self._allowed)
            and not self._is_of_cut(index, line)
        ]

    def _is_of_cut(self, index: int, line: str) -> bool:
        first = self._found_before_cut
        return first is not None and index >= first and CUT.match(line) is not None

    # A policy's breach is an error on the console as well.
    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(HTTP_TWIN):
            place = message.location
            self._found.append(f"console: {message.text} ({place['url']}:{place['lineNumber']})")

    def _on_error(self, error: WebError) -> None:
        self._found.append(f"uncaught: {error.error.stack or error.error.message}")

    def _on_failure(self, request: Request) -> None:
        if request.failure and LEFT_BEHIND not in request.failure:
            self._found.append(f"failed: {request.failure} {request.method} {request.url}")

    def _on_response(self, response: Response) -> None:
        if response.status >= FIRST_ERROR_STATUS:
            self._found.append(f"HTTP {response.status} {response.request.method} {response.url}")
