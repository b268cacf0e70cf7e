"""Server for stock clients: gateway and worker with a scripted engine.

Run as `python -m tests.fakes.openai_server FOLDER`. Prints one line of JSON with the addresses,
then serves until its standard input ends. The second address has TLS, which some clients demand.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from core.audio import FloatArray
from core.modes import Threads
from core.schemas import streaming
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.streaming import StreamingChunk, StreamingRequest
from core.serving.fake_backend import (
    FakeBackend,
    FakeDuplexView,
    FakeStreamingView,
    FakeTimes,
    FakeTranscriber,
)
from gateway_modules.web.certificates import ensure_certificate
from tests.fakes.gateway_stage import HOST, HURRY, Stage, settings_for
from tests.source_tree import ROOT
from worker import create_app

TIMES = FakeTimes(prefill_ms=1, piece_ms=150, unit_ms=20)
SLOTS = 12
MAX_WAIT_S = 60.0
SEEN = "I see a picture."
CALL = '<tool_call> {"name": "look_up", "arguments": {"city": "Paris"}} </tool_call>'


class CallingView(FakeStreamingView):
    """Calls a function if one is offered, then speaks about its output."""

    _offers = _calls = False

    async def feed_request(self, request: StreamingRequest) -> str:
        fed = str(request.messages)
        self._offers = self._offers or "<tools>" in fed
        self._calls = self._offers and "<tool_response>" not in fed
        return await super().feed_request(request)

    def reply(self, wanted: streaming.Generate) -> AsyncGenerator[StreamingChunk, None]:
        if not self._calls:
            return super().reply(wanted)
        self._speaks = False
        return self._say(CALL, wanted.max_new_tokens)


class SeeingView(FakeDuplexView):
    """Mentions pictures that it receives."""

    async def unit(
        self, audio: FloatArray, frames: Sequence[Any], *args: Any, **options: Any
    ) -> DuplexGenerateResult | None:
        made = await super().unit(audio, frames, *args, **options)
        if made is None or made.is_listen or not frames:
            return made
        return made.model_copy(update={"text": f"{made.text}{SEEN} "})


class CallingBackend(FakeBackend):
    """Engine with a transcriber, function calls by turns, and duplex sessions that see."""

    own_transcriber = FakeTranscriber()  # type: ignore[assignment]  # the fake engine has none

    def open_streaming(self, threads: Threads) -> FakeStreamingView:
        return CallingView(self.times, threads)

    def open_duplex(self, threads: Threads) -> FakeDuplexView:
        return SeeingView(self.times, threads)


class RealStage(Stage):
    """A gateway with one worker."""

    def __init__(self, folder: Path) -> None:
        # On a busy machine the worker admits fewer sessions; clients then wait instead of failing.
        wait = {"max_wait_s": MAX_WAIT_S}
        service = {"worker_slots": SLOTS}
        settings = settings_for(folder, recording={"enabled": False}, openai=wait, service=service)
        super().__init__(settings, 1, HURRY)
        app = create_app(settings, lambda: CallingBackend(TIMES))
        self.workers[0].app = app  # type: ignore[assignment]


def write_hello(file: Path) -> None:
    """Write a spoken hello as 16-bit samples at 24 kHz."""
    samples, rate_hz = soundfile.read(ROOT / "examples" / "hello.wav", dtype="float32")
    length = len(samples) * OUTPUT_SAMPLE_RATE_HZ // rate_hz
    at = np.linspace(0, len(samples) - 1, length)
    heard = np.interp(at, np.arange(len(samples)), samples)
    file.write_bytes((heard * 32_767).astype("<i2").tobytes())


async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while part := await source.read(65_536):
            target.write(part)
            await target.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        target.close()


async def serve(folder: Path) -> None:
    stage = RealStage(folder)
    await stage.start()
    certificate = ensure_certificate(folder / "certs")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.certfile, certificate.keyfile)

    async def unwrap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside, out = await asyncio.open_connection(HOST, stage.port)
        await asyncio.gather(pass_on(reader, out), pass_on(inside, writer))

    proxy = await asyncio.start_server(unwrap, HOST, 0, ssl=tls)
    write_hello(folder / "hello.pcm")
    tls_port = proxy.sockets[0].getsockname()[1]
    told = {"url": f"http://{HOST}:{stage.port}/v1", "tls_url": f"https://localhost:{tls_port}/v1"}
    files = {"certificate": str(certificate.certfile), "speech": str(folder / "hello.pcm")}
    print(json.dumps(told | files), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    proxy.close()
    await stage.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
