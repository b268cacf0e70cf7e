"""Who may ask a worker for what."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from core.serving.gate import SecretGate

SECRET = "open sesame"
HERE, ELSEWHERE = "127.0.0.1", "203.0.113.5"


def status_of(secret: str | None, path: str, address: str, shown: str | None = None) -> int:
    """Return what one request is answered with."""
    headers = [] if shown is None else [(b"x-worker-secret", shown.encode())]
    scope = {"type": "http", "path": path, "headers": headers, "client": (address, 1), "method": ""}
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    asyncio.run(SecretGate(PlainTextResponse("in"), secret)(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("secret", "path", "address", "shown", "expected"),
    [
        (None, "/chat", ELSEWHERE, None, 200),
        (None, "/restart", HERE, None, 200),
        (None, "/restart", "::1", None, 200),
        (None, "/restart", ELSEWHERE, None, 401),
        (None, "/restart", ELSEWHERE, "anything", 401),
        (None, "/restart", "no address", None, 401),
        (SECRET, "/restart", ELSEWHERE, SECRET, 200),
        (SECRET, "/restart", HERE, None, 401),
        (SECRET, "/restart", HERE, "wrong", 401),
        (SECRET, "/health", ELSEWHERE, None, 200),
        (SECRET, "/chat", HERE, None, 401),
    ],
)
def test_who_may_ask(
    secret: str | None, path: str, address: str, shown: str | None, expected: int
) -> None:
    assert status_of(secret, path, address, shown) == expected
