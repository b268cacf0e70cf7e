"""The language model behind an endpoint or a process, and the switch from nano to the cascade."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from core.cascade import backend
from core.cascade.backend import CascadeBackend
from core.cascade.duplex import CascadeDuplexView
from core.cascade.language import ChatEndpoint, Line, LocalLanguageModel, Sampling
from core.cascade.parts import Parts
from core.errors import GenerationFailedError, ModelError
from core.schemas.worker import ModelFacts, ModelKind
from core.serving.fake_backend import FakeBackend
from core.serving.transcribers import LoopThreads
from tests.fakes.cascade_parts import ScriptedLanguageModel, ScriptedTranscriber, scripted

LIMIT_S = 120.0
HELLO = [Line("user", "Hello.")]
# Its process id stands for a port.
SCRIPT = """
import os, sys
sys.stdin.readline()
print(f"http://127.0.0.1:{os.getpid()}/", flush=True)
sys.stdin.read()
"""


def words(*deltas: str) -> str:
    events = [{"choices": [{"delta": {"content": delta}}]} for delta in deltas]
    lines = [f"data: {json.dumps(event)}\n\n" for event in [{"choices": []}, *events]]
    return "".join([": ping\n\n", *lines, "data: [DONE]\n\n", "data: nothing more\n\n"])


async def asked(status: int, body: str, seen: list[httpx.Request] | None = None) -> list[str]:
    """Ask an endpoint that answers so; return the words."""

    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        return httpx.Response(status, text=body)

    endpoint = ChatEndpoint(
        "http://llm/v1/", "small", "secret", {"more": 1}, httpx.MockTransport(answer)
    )
    return [word async for word in endpoint.stream(HELLO, Sampling(5, seed=3))]


async def test_a_chat_endpoint_is_asked_as_openais_is() -> None:
    seen: list[httpx.Request] = []
    assert await asked(200, words("Hel", "", "lo."), seen) == ["Hel", "lo."]
    [request] = seen
    body = json.loads(request.content)
    assert str(request.url) == "http://llm/v1/chat/completions"
    assert request.headers["Authorization"] == "Bearer secret"
    assert body["messages"] == [{"role": "user", "content": "Hello."}]
    assert (body["model"], body["stream"], body["max_tokens"]) == ("small", True, 5)
    assert (body["temperature"], body["seed"], body["more"]) == (0.0, 3, 1)


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (401, "no such key", "refused the request: 401 no such key"),
        (200, 'data: {"error": "out of memory"}\n\n', "out of memory"),
        (200, "data: <html>\n\n", "malformed"),
        (200, 'data: {"choices": [{}]}\n\n', "malformed"),
        (200, "data: []\n\n", "malformed"),
    ],
)
async def test_a_bad_answer_says_what_is_wrong(status: int, body: str, problem: str) -> None:
    with pytest.raises(GenerationFailedError, match=problem):
        await asked(status, body)


async def test_an_endpoint_that_never_ends_is_left() -> None:
    assert len("".join(await asked(200, words(*["x" * 100] * 50)))) < 500


async def test_an_endpoint_that_is_not_there_says_so() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    endpoint = ChatEndpoint("http://llm/v1", "small", transport=httpx.MockTransport(refuse))
    with pytest.raises(GenerationFailedError, match="does not answer: refused"):
        await anext(endpoint.stream(HELLO, Sampling(5)))


async def test_the_local_model_is_not_asked_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(words("Hello.").encode())

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    class Served(LocalLanguageModel):
        def start(self) -> str:
            self._url = f"http://127.0.0.1:{server.server_port}/v1"
            return self._url

    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.timeout = 10.0  # nobody asks if the proxy was tried
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        try:
            answer = Served(Path("model"), "small").stream(HELLO, Sampling(5))
            assert [word async for word in answer] == ["Hello."]
        finally:
            thread.join()


def served_by(script: str) -> LocalLanguageModel:
    program = (sys.executable, "-c", script)
    return LocalLanguageModel(Path("model.gguf"), "small", program, conversations=3)


def test_the_process_starts_once_and_again_after_a_crash() -> None:
    model = served_by(SCRIPT)
    try:
        first = model.start()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", first) and model.start() == first
        model.kill()
        assert model.start() != first
    finally:
        model.close()
    with pytest.raises(ModelError, match="shutting down"):
        model.start()


def test_a_process_that_cannot_serve_names_its_file() -> None:
    model = served_by("raise SystemExit(1)")
    with pytest.raises(ModelError, match=r"cannot serve model\.gguf"):
        model.start()
    model.close()


def test_the_process_is_told_how_many_conversations_it_serves() -> None:
    script = "import sys; sys.stdin.readline(); print(*sys.argv[1:], flush=True); sys.stdin.read()"
    model = served_by(script)
    try:
        assert model.start() == "model.gguf 3/v1"
    finally:
        model.close()


class Small(FakeBackend):
    """The small model of a cascade."""

    def facts(self) -> ModelFacts:
        return ModelFacts(name="nano", kind=ModelKind.NANO, device="cpu")


def cascade(load_parts: Any, *, waits: bool) -> CascadeBackend:
    base: Any = Small()
    return CascadeBackend(base, load_parts, waits=waits, shares_transcriber=True)


def wait_for_cascade(made: CascadeBackend) -> None:
    while made.facts().kind is ModelKind.NANO:
        time.sleep(0.001)


ENGINE: Any = SimpleNamespace(watch=lambda share: None)


def ignore(stage: str, share: float | None) -> None:
    """Nobody looks at the progress."""


async def test_new_conversations_get_the_cascade_when_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "POLL_S", 0.001)
    may_come, parts, looks = threading.Event(), scripted("Hi."), []

    def load_parts(base: Any) -> Parts | None:
        looks.append(base)
        return parts if may_come.is_set() else None

    made = cascade(load_parts, waits=True)
    threads: Any = LoopThreads()
    made.load(ENGINE, ignore)
    before = made.open_duplex(threads)
    assert not isinstance(before, CascadeDuplexView)
    assert made.facts().kind is ModelKind.NANO and made.own_transcriber is None
    may_come.set()
    async with asyncio.timeout(LIMIT_S):
        await asyncio.to_thread(wait_for_cascade, made)
    assert isinstance(made.open_duplex(threads), CascadeDuplexView)
    told = made.facts()
    assert told.kind is ModelKind.CASCADE and told.is_demonstration
    assert told.name == "Whisper tiny → script → tone"
    count = len(looks)
    made.close()
    assert len(looks) == count
    assert isinstance(parts.transcriber, ScriptedTranscriber) and parts.transcriber.is_closed
    assert (
        isinstance(parts.language_model, ScriptedLanguageModel) and parts.language_model.is_closed
    )


def test_files_that_are_damaged_or_missing_leave_the_small_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "POLL_S", 0.001)

    def break_down(base: Any) -> Parts | None:
        raise ModelError("It is damaged.")

    made = cascade(break_down, waits=True)
    made.load(ENGINE, ignore)
    made.close()
    assert made.facts().kind is ModelKind.NANO

    with pytest.raises(ModelError, match=r'model\.embedded is "cascade"'):
        cascade(lambda base: None, waits=False).load(ENGINE, ignore)
