"""Language models: an OpenAI-compatible chat endpoint, by default a local llama.cpp server.

A crash of the local server ends one reply; the next request starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import httpx

from core.errors import GenerationFailedError, ModelError, OmniError
from core.media_process import PROJECT_FOLDER

PROGRAM: Final = "core.cascade.llama_program"
START_LIMIT_S: Final = 120.0  # ours: for half a gigabyte from a slow disk
CONNECT_LIMIT_S: Final = 5.0
ANSWER_LIMIT_S: Final = 60.0  # ours: for the next word
CHARS_PER_TOKEN_MAX: Final = 64  # ours: an endpoint that sends more ignores `max_tokens`
REASON_CHARS_MAX: Final = 200
STREAM_PREFIX: Final = "data:"
STREAM_END: Final = "[DONE]"
# Ours: llama.cpp's server frees a slot shortly after its stream has ended; an earlier request would
# get another slot and process its whole prompt again.
SLOT_RELEASE_S: Final = 0.05
# OpenMP threads spin at the barrier after each operation. On a core that another process uses, too,
# a token takes five times as long without a limit, and twice as long with this one.
SPIN_COUNT: Final = 1_000
# Extensions of llama.cpp's server. A model of this size repeats itself without the penalty.
LLAMA_OPTIONS: Final = {"repeat_penalty": 1.1, "repeat_last_n": 128, "cache_prompt": True}


@dataclass(frozen=True)
class Line:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True)
class Sampling:
    """Sampling options of one reply; a temperature of 0 is greedy, without a seed it is random."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@contextlib.contextmanager
def explained(endpoint: str) -> Iterator[None]:
    """Raise an error of the project in place of one of the transport."""
    try:
        yield
    except httpx.HTTPError as error:
        reason = str(error).removesuffix(".") or type(error).__name__
        raise GenerationFailedError(f"The {endpoint} does not answer: {reason}.") from error


def refused(endpoint: str, answer: httpx.Response) -> GenerationFailedError:
    reason = f"{answer.status_code} {answer.text[:REASON_CHARS_MAX]}"
    return GenerationFailedError(f"The {endpoint} refused the request: {reason}")


class ChatEndpoint:
    """An OpenAI-compatible chat endpoint; `name` is its model's."""

    is_small = False  # a small model invents facts, so some questions get a predefined answer
    _is_local = False

    def __init__(
        self,
        url: str,
        name: str,
        key: str | None = None,
        options: Mapping[str, object] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet; the API's URL is such as http://localhost:11434/v1.

        `options` are further fields of each request, and `transport` is for tests.
        """
        self.name = name
        self._url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._options = dict(options or {})
        self._transport = transport
        self._tls = ssl.create_default_context()  # slower than a request, so it is reused

    async def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        """Yield the assistant's next message as it is generated; closing it ends the generation.

        If the last line is the assistant's, it is continued. Without an answer a
        `GenerationFailedError` says why.
        """
        body = {
            "model": self.name,
            "messages": [asdict(line) for line in lines],
            "stream": True,
            **{name: value for name, value in asdict(sampling).items() if value is not None},
            **self._options,
        }
        url = f"{self._url.rstrip('/')}/chat/completions"
        left = sampling.max_tokens * CHARS_PER_TOKEN_MAX
        limits = httpx.Timeout(ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S)
        with explained("language model"):
            async with (
                httpx.AsyncClient(
                    verify=self._tls,
                    timeout=limits,
                    transport=self._transport,
                    trust_env=not self._is_local,  # the environment's proxies
                ) as client,
                client.stream("POST", url, json=body, headers=self._headers) as answer,
            ):
                if answer.is_error:
                    await answer.aread()
                    raise refused("language model", answer)
                async for line in answer.aiter_lines():
                    delta = _delta(line)
                    if delta is None or left <= 0:
                        return
                    left -= len(delta)
                    if delta:
                        yield delta

    async def prefetch(self, lines: Sequence[Line]) -> None:
        """Cache the beginning of a prompt before its question is complete; never raises."""
        # Nothing: tokens may cost money, and few endpoints cache prompts.

    def close(self) -> None:
        """Do nothing: there is no process."""


class LocalLanguageModel(ChatEndpoint):
    """A model file served by llama.cpp's server; `start`, `kill` and `close` block."""

    is_small = True
    _is_local = True

    def __init__(
        self,
        model: Path,
        name: str,
        program: Sequence[str] = (sys.executable, "-m", PROGRAM),
        *,
        conversations: int = 1,
    ) -> None:
        """Start nothing yet; `conversations` can be answered at the same time."""
        self._key = secrets.token_urlsafe()  # keeps other local programs out
        super().__init__("", name, self._key, LLAMA_OPTIONS)
        self._model = model
        self._command = [*program, str(model), str(conversations)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._is_closed = False
        self._ended_s = 0.0  # end of the latest stream, on `time.monotonic`

    async def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        await asyncio.to_thread(self.start)
        await asyncio.sleep(max(0.0, self._ended_s + SLOT_RELEASE_S - time.monotonic()))
        try:
            async with contextlib.aclosing(super().stream(lines, sampling)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._ended_s = time.monotonic()

    async def prefetch(self, lines: Sequence[Line]) -> None:
        with contextlib.suppress(OmniError):  # the next request reports it
            async for _ in self.stream(lines, Sampling(max_tokens=1)):
                pass

    def start(self) -> str:
        """Start the server unless it runs; return the API's URL, or raise `ModelError`."""
        with self._lock:
            if self._is_closed:
                raise ModelError("The server is shutting down.")
            if self._process is None or self._process.poll() is not None:
                self.kill()
                self._url = f"{self._started().rstrip('/')}/v1"
            return self._url

    def kill(self) -> None:
        """Kill the process; the next request starts it again."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError), process:  # closes its pipes
                process.kill()

    def close(self) -> None:
        self._is_closed = True
        self.kill()

    def _started(self) -> str:
        """Start the process; return the server's address."""
        self._process = process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=PROJECT_FOLDER,
            env=os.environ | {"GOMP_SPINCOUNT": str(SPIN_COUNT)},
            text=True,
        )
        assert process.stdin is not None and process.stdout is not None
        watch = threading.Timer(START_LIMIT_S, process.kill)
        watch.start()
        try:
            process.stdin.write(f"{self._key}\n")
            process.stdin.flush()
            address = process.stdout.readline().strip()
        except OSError:
            address = ""
        finally:
            watch.cancel()
        if not address:
            self.kill()
            raise ModelError(f"llama.cpp cannot serve {self._model}.")
        return address


def _delta(line: str) -> str | None:
    """Return the new text of an event stream's line, or None at its end."""
    if not line.startswith(STREAM_PREFIX):
        return ""
    content = line.removeprefix(STREAM_PREFIX).strip()
    if content == STREAM_END:
        return None
    try:
        event: Any = json.loads(content)  # Any: another program's JSON
        if "error" in event:
            reason = str(event["error"])[:REASON_CHARS_MAX]
            raise GenerationFailedError(f"The language model failed: {reason}")
        choices = event["choices"]
        return str(choices[0]["delta"].get("content") or "") if choices else ""
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise GenerationFailedError("The language model's answer is malformed.") from error
