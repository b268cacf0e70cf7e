"""A worker that serves on loopback in this process, and a client of its protocols."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import os
import secrets
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import soundfile as sf
import structlog
from PIL import Image
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from config import Settings
from core.modes import Backend
from core.serving.runtime import WorkerRuntime
from core.serving.server import DrainingServer
from core.serving.session_server import SessionServer
from tests.source_tree import ROOT
from worker import create_app

SPEECH = ROOT / "tests" / "golden" / "recordings" / "inputs" / "speech_8s.wav"
LIMIT_S = 120.0  # ends a test that hangs
END_LIMIT_S = 300.0  # every recording is on the disk by then, however slow that is
LOOK_S = 0.01
READ_BYTES = 65_536
CHUNK_PAUSE_S = 0.02
HALF_SECOND = 8_000  # samples at 16 kHz
SECOND = 16_000

Message = dict[str, Any]
Samples = npt.NDArray[np.float32]


def speech() -> Samples:
    """Eight seconds of speech, [T] at 16 kHz."""
    samples, _ = sf.read(SPEECH, dtype="float32")
    return np.asarray(samples, dtype=np.float32)


def spoken(second: int) -> str:
    """A second of the speech, as an audio chunk holds it."""
    return wire(speech()[second * SECOND : (second + 1) * SECOND])


def wire(samples: Samples) -> str:
    """Base64 of little-endian float32."""
    return base64.b64encode(samples.astype("<f4").tobytes()).decode()


def sound_of(text: str) -> Samples:
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def jpeg(width_px: int, height_px: int) -> str:
    """Base64 of a grey picture."""
    file = io.BytesIO()
    Image.new("RGB", (width_px, height_px), "grey").save(file, "JPEG")
    return base64.b64encode(file.getvalue()).decode()


SILENCE = wire(np.zeros(SECOND, np.float32))


def settings_for(data_dir: Path, **sections: Mapping[str, object]) -> Settings:
    service = {"data_dir": str(data_dir), "drain_timeout_s": 2, **sections.pop("service", {})}
    return Settings.model_validate({"service": service, **sections})


class RunningWorker:
    """A worker that serves on a separate thread and loop."""

    def __init__(self, server: DrainingServer) -> None:
        self.server = server
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="worker-under-test")
        self._thread.start()
        eventually("the server listens", lambda: server.started)

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    @property
    def sessions(self) -> SessionServer:
        return self.server.sessions

    @property
    def runtime(self) -> WorkerRuntime:
        return self.sessions.runtime

    def on_loop(self, work: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(LIMIT_S)

    def tasks(self) -> int:
        return int(self.on_loop(lambda: len(asyncio.all_tasks())))

    def begin_drain(self) -> None:
        self._loop.call_soon_threadsafe(self.server.begin_drain)

    def close(self) -> None:
        if self._thread.is_alive():
            self.begin_drain()
            self._thread.join(END_LIMIT_S)
        assert not self._thread.is_alive(), "the worker did not end"

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.server.serve())
        self._loop.close()


@contextmanager
def running_worker(
    settings: Settings,
    make_backend: Callable[[], Backend],
    *,
    waits: bool = True,
) -> Iterator[RunningWorker]:
    """Yield a worker, loaded if it `waits`."""
    usual_log = structlog.get_config()
    structlog.configure(
        processors=[
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    server = DrainingServer(create_app(settings, make_backend), settings, "127.0.0.1", 0)
    worker = RunningWorker(server)
    try:
        if waits:
            eventually("the model is loaded", lambda: worker.runtime.progress.is_loaded)
        yield worker
    finally:
        worker.close()
        structlog.configure(**usual_log)


class Client:
    """A client of one worker."""

    def __init__(self, port: int, headers: Mapping[str, str] | None = None) -> None:
        self.port = port
        self.headers = dict(headers or {})

    @asynccontextmanager
    async def talk(
        self, kind: str, session_id: str | None = None, **query: str
    ) -> AsyncIterator[Talk]:
        name = session_id or f"t_{secrets.token_hex(6)}"
        told = "&".join(f"{key}={value}" for key, value in {"session_id": name, **query}.items())
        url = f"ws://127.0.0.1:{self.port}/ws/{kind}?{told}"
        async with connect(
            url, max_size=None, additional_headers=self.headers, open_timeout=LIMIT_S, proxy=None
        ) as socket:
            yield Talk(socket, name)

    async def denied(self, kind: str, code: str = "no_worker") -> str:
        """Open a socket that the worker denies; return the reason."""
        with pytest.raises(InvalidStatus) as refused:
            async with self.talk(kind):
                pass
        answer = refused.value.response
        assert answer.status_code == 503
        told = json.loads(answer.body or b"")
        assert (told["type"], told["code"]) == ("error", code)
        return str(told["message"])

    async def get(self, path: str) -> Message:
        return dict((await self._call("GET", path)).json())

    async def post(self, path: str, body: object = None) -> httpx.Response:
        return await self._call("POST", path, body)

    async def health(self) -> Message:
        return await self.get("/health")

    async def idle(self) -> None:
        """Wait until the worker is idle; fail if that takes too long."""
        deadline_s = time.monotonic() + LIMIT_S
        while (health := await self.health())["worker_status"] != "idle":
            assert time.monotonic() < deadline_s, f"not idle: {health}"
            await asyncio.sleep(LOOK_S)
        assert health["active_sessions"] == 0 and health["current_session_id"] is None

    async def _call(self, method: str, path: str, body: object = None) -> httpx.Response:
        content = None if body is None else json.dumps(body)
        # Without TLS there is nothing to verify, and certificates take long to load.
        async with httpx.AsyncClient(trust_env=False, verify=False, timeout=LIMIT_S) as http:
            url = f"http://127.0.0.1:{self.port}{path}"
            return await http.request(method, url, content=content, headers=self.headers)


class Talk:
    """One client socket."""

    def __init__(self, socket: ClientConnection, session_id: str) -> None:
        self.socket = socket
        self.session_id = session_id
        self.heard: list[Message] = []

    async def say(self, message_type: str | None, **fields: object) -> None:
        told = fields if message_type is None else {"type": message_type, **fields}
        await self.socket.send(json.dumps(told))

    async def ask(self, message_type: str, **fields: object) -> Message:
        """Send a message; return the next one that comes."""
        await self.say(message_type, **fields)
        return await self.hear()

    async def hear(self) -> Message:
        async with asyncio.timeout(LIMIT_S):
            message: Message = json.loads(await self.socket.recv())
        self.heard.append(message)
        return message

    async def hear_until(self, *types: str) -> list[Message]:
        """Wait for a message of these types; return everything up to it."""
        heard = [await self.hear()]
        while heard[-1]["type"] not in types:
            heard.append(await self.hear())
        return heard

    async def hear_all(self) -> list[Message]:
        """Wait for the end; return everything up to it."""
        heard: list[Message] = []
        with suppress(ConnectionClosed):
            while True:
                heard.append(await self.hear())
        return heard

    async def stop(self) -> list[Message]:
        """Ask for the end of the session; return everything up to it."""
        await self.say("stop")
        return await self.hear_all()

    @property
    def close_code(self) -> int | None:
        return self.socket.close_code

    async def prepared(self, **fields: object) -> Message:
        message = await self.ask("prepare", **fields)
        assert message["type"] == "prepared", message
        return message

    async def speak(self, samples: Samples, chunk_samples: int = HALF_SECOND) -> None:
        """Send audio in chunks, faster than real time but no faster than it is processed."""
        for start in range(0, len(samples), chunk_samples):
            await asyncio.sleep(CHUNK_PAUSE_S)
            await self.say("audio_chunk", audio=wire(samples[start : start + chunk_samples]))


class DeadClient:
    """A client whose connection hangs after it has sent something."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, path: str) -> DeadClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: 127.0.0.1:{port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head.splitlines()[0] + b" ", head
        return cls(reader, writer)

    async def say(self, message: Message) -> None:
        """Send a message, unless the server has closed. Framing: RFC 6455, section 5.2."""
        body, mask = json.dumps(message).encode(), os.urandom(4)
        head = b"\x81\xff" + struct.pack("!Q", len(body))  # the long form fits any length
        masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(body))
        self._writer.write(head + mask + masked)
        with suppress(ConnectionError):
            await self._writer.drain()

    async def wait_closed(self) -> bytes:
        """Return the frames that came until the server closed."""
        frames = b""
        async with asyncio.timeout(LIMIT_S):
            with suppress(ConnectionError):  # it closed before it had read everything
                while part := await self._reader.read(READ_BYTES):
                    frames += part
        self._writer.close()
        return frames


def eventually(
    what: str, is_true: Callable[[], object], limit_s: float = LIMIT_S, look_s: float = LOOK_S
) -> None:
    """Poll until a condition is true; fail with its name if it never is."""
    deadline_s = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline_s, f"never came true: {what}"
        time.sleep(look_s)


async def soon(what: str, is_true: Callable[[], object]) -> None:
    """Run `eventually` without blocking the loop; the condition may be awaited."""
    deadline_s = time.monotonic() + LIMIT_S
    while not (await found if isinstance(found := is_true(), Awaitable) else found):
        assert time.monotonic() < deadline_s, f"never came true: {what}"
        await asyncio.sleep(LOOK_S)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
