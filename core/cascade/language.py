"""The language model: any OpenAI-compatible chat endpoint, by default llama.cpp's in a process.

A crash of that process ends one reply; the next request starts it again.
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
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import httpx

from core.cascade.parts import Line, Sampling
from core.errors import GenerationFailedError, ModelError, OmniError
from core.media_process import PROJECT_FOLDER

PROGRAM: Final = "core.cascade.llama_program"
START_LIMIT_S: Final = 120.0  # ours: half a gigabyte from a slow disk
CONNECT_LIMIT_S: Final = 5.0
ANSWER_LIMIT_S: Final = 60.0  # ours: for the next word
CHARS_PER_TOKEN_MAX: Final = 64  # ours: an endpoint that says more ignores its limit
STREAM_PREFIX: Final = "data:"
STREAM_END: Final = "[DONE]"
# Ours: llama.cpp's server frees a prompt's slot a moment after its stream has ended or was closed;
# a request before that would read its whole prompt anew, in another slot.
SLOT_RELEASE_S: Final = 0.05
# Its threads wait for each other after each operation. Without a limit they spin: on a core that
# another process needs too, a token then takes five times as long, and with this one twice.
SPIN_COUNT: Final = 1_000
# Of llama.cpp's server, beyond OpenAI's fields. A model of this size repeats itself without them.
LLAMA_OPTIONS: Final = {"repeat_penalty": 1.1, "repeat_last_n": 128, "cache_prompt": True}


class ChatEndpoint:
    """A chat endpoint that answers as OpenAI's does.

    Attributes:
        name: of its model.
    """

    is_small = False  # an operator chooses it

    def __init__(
        self,
        url: str,
        name: str,
        key: str | None = None,
        options: Mapping[str, object] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            url: of the API, such as http://localhost:11434/v1.
            name: of the model.
            key: sent along, if the endpoint wants one.
            options: further fields of each request.
            transport: what carries the requests, for tests.
        """
        self.name = name
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._options = dict(options or {})
        self._transport = transport
        self._tls = ssl.create_default_context()  # made once: that takes longer than a request

    async def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        body = {
            "model": self.name,
            "messages": [asdict(line) for line in lines],
            "stream": True,
            **{name: value for name, value in asdict(sampling).items() if value is not None},
            **self._options,
        }
        left = sampling.max_tokens * CHARS_PER_TOKEN_MAX
        limits = httpx.Timeout(ANSWER_LIMIT_S, connect=CONNECT_LIMIT_S)
        try:
            async with (
                httpx.AsyncClient(
                    verify=self._tls, timeout=limits, transport=self._transport
                ) as client,
                client.stream("POST", self._url, json=body, headers=self._headers) as answer,
            ):
                if answer.is_error:
                    reason = (await answer.aread())[:200].decode(errors="replace")
                    raise GenerationFailedError(
                        f"The language model refused the request: {answer.status_code} {reason}"
                    )
                async for line in answer.aiter_lines():
                    delta = _delta(line)
                    if delta is None or left <= 0:
                        return
                    left -= len(delta)
                    if delta:
                        yield delta
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise GenerationFailedError(f"The language model does not answer: {reason}.") from error

    async def prefetch(self, lines: Sequence[Line]) -> None:
        """Send nothing: tokens may cost money, and few endpoints keep a prompt."""

    def close(self) -> None:
        """Nothing runs here."""


class LlamaProcess:
    """llama.cpp's server for one file, in a process of its own. Its methods block."""

    def __init__(
        self, model: Path, program: Sequence[str] = (sys.executable, "-m", PROGRAM)
    ) -> None:
        self._command = [*program, str(model)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._is_closed = False
        self.key = secrets.token_urlsafe()  # no other program of this machine may ask it

    def url(self) -> str:
        """Return the API's address, started if need be.

        Raises:
            ModelError: it cannot be started.
        """
        with self._lock:
            if self._is_closed:
                raise ModelError("The server is shutting down.")
            if self._process is None or self._process.poll() is not None:
                self.kill()
                self._start()
            return self._url

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def kill(self) -> None:
        """End the process; the next request starts it again."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def close(self) -> None:
        self._is_closed = True
        self.kill()

    def _start(self) -> None:
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
            process.stdin.write(f"{self.key}\n")
            process.stdin.flush()
            address = process.stdout.readline().strip()
        except OSError:
            address = ""
        finally:
            watch.cancel()
        if not address:
            self.kill()
            raise ModelError(f"llama.cpp cannot serve {self._command[-1]}.")
        self._url = f"{address.rstrip('/')}/v1"


class LocalLanguageModel:
    """A model file, served by llama.cpp.

    Attributes:
        name: of the model.
    """

    is_small = True

    def __init__(self, process: LlamaProcess, name: str) -> None:
        self.name = name
        self._process = process
        self._endpoint: tuple[str, ChatEndpoint] | None = None  # by its address
        self._ended_s = 0.0  # the newest stream, on `time.monotonic`

    async def stream(self, lines: Sequence[Line], sampling: Sampling) -> AsyncGenerator[str, None]:
        url = await asyncio.to_thread(self._process.url)
        if self._endpoint is None or self._endpoint[0] != url:
            key = self._process.key
            self._endpoint = url, ChatEndpoint(url, self.name, key, LLAMA_OPTIONS)
        await asyncio.sleep(max(0.0, self._ended_s + SLOT_RELEASE_S - time.monotonic()))
        try:
            async with contextlib.aclosing(self._endpoint[1].stream(lines, sampling)) as deltas:
                async for delta in deltas:
                    yield delta
        finally:
            self._ended_s = time.monotonic()

    async def prefetch(self, lines: Sequence[Line]) -> None:
        with contextlib.suppress(OmniError):  # the request that follows reports it
            async for _ in self.stream(lines, Sampling(max_tokens=1)):
                pass

    def close(self) -> None:
        self._process.close()


def _delta(line: str) -> str | None:
    """Return the new words in a line of an event stream; None at its end.

    Raises:
        GenerationFailedError: The endpoint reports an error, or does not speak this protocol.
    """
    if not line.startswith(STREAM_PREFIX):
        return ""
    content = line.removeprefix(STREAM_PREFIX).strip()
    if content == STREAM_END:
        return None
    try:
        event: Any = json.loads(content)  # Any: another program's JSON
        if "error" in event:
            raise GenerationFailedError(f"The language model failed: {str(event['error'])[:200]}")
        choices = event["choices"]
        return str(choices[0]["delta"].get("content") or "") if choices else ""
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise GenerationFailedError("The language model's answer cannot be read.") from error
