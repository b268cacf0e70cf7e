"""Authentication at a worker."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Message

from core.serving.server import SecretGate, check_exposure
from settings.sections import SecuritySettings

SECRET = "open sesame"


def status_of(secret: str | None, path: str, **headers: str) -> int:
    told = {"host": "127.0.0.1:22400", **headers}
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in told.items()]
    scope = {"type": "http", "path": path, "headers": raw, "method": ""}
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    asyncio.run(SecretGate(PlainTextResponse("in"), secret)(scope, receive, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("secret", "path", "headers", "expected"),
    [
        (None, "/chat", {}, 200),
        (None, "/chat", {"host": "localhost:22400"}, 200),
        (None, "/chat", {"host": "[::1]:22400"}, 200),
        (None, "/chat", {"host": "evil.example"}, 401),
        (None, "/chat", {"host": "[::1"}, 401),
        (None, "/chat", {"origin": "https://evil.example"}, 401),
        (None, "/health", {"host": "10.0.0.5:22400"}, 200),
        (SECRET, "/restart", {"x_worker_secret": SECRET}, 200),
        (SECRET, "/restart", {"x_worker_secret": SECRET, "host": "gpu-3.lan"}, 200),
        (SECRET, "/restart", {}, 401),
        (SECRET, "/restart", {"x_worker_secret": "wrong"}, 401),
        (SECRET, "/restart", {"x_worker_secret": SECRET, "origin": "http://127.0.0.1"}, 401),
        (SECRET, "/health", {}, 200),
        (SECRET, "/health", {"origin": "https://evil.example"}, 401),
        (SECRET, "/chat", {}, 401),
    ],
)
def test_only_the_gateway_is_admitted(
    secret: str | None, path: str, headers: dict[str, str], expected: int
) -> None:
    assert status_of(secret, path, **headers) == expected


@pytest.mark.parametrize(
    ("host", "is_refused"),
    [("127.0.0.1", False), ("::1", False), ("0.0.0.0", True), ("10.0.0.5", True), ("gpu-3", True)],
)
def test_a_worker_reachable_from_other_machines_needs_a_secret(host: str, is_refused: bool) -> None:
    check_exposure(host, SecuritySettings.model_validate({"worker_secret": SECRET}))
    if is_refused:
        with pytest.raises(ValueError, match=r"security\.worker_secret"):
            check_exposure(host, SecuritySettings())
    else:
        check_exposure(host, SecuritySettings())
