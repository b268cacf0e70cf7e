"""A gateway on a real server with fake workers behind it, and real clients in front of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from config import Settings
from core.files import TOKEN_FILE
from gateway import create_app
from gateway_modules.relay.link import QueueingLimits
from gateway_modules.service import Gateway, Timing
from gateway_modules.web.certificates import Certificate, ensure_certificate, tls_context
from gateway_modules.web.client_socket import Pace
from gateway_modules.web.limits import Connections
from gateway_modules.web.security import ADMIN_HEADER
from gateway_modules.web.server import GatewayConfig, GatewayServer
from tests.fakes.decoding import DecoderHere
from tests.fakes.fake_worker import FakeWorker, Raw
from tests.fakes.pools import idle_count

HOST = "127.0.0.1"
ANSWER_LIMIT_S = 120.0
POLL_S = 0.005
CONNECTIONS = 1_000  # of a fake worker: never reached
LIMIT_S = 300.0  # ends a test that hangs
# Any: OpenAI's client does not name this option, and passes it on.
PATIENT: Any = {"open_timeout": None}
"""Options of OpenAI's client: a busy machine is slow, and the tests' own limit ends what hangs."""

HURRY = Timing(
    queueing=QueueingLimits(update_period_s=0.05, open_timeout_s=LIMIT_S),
    takeover_grace_s=LIMIT_S,
    patience_s=0.2,
    connect_tries=1,
    pace=Pace(),
)


async def until(condition: Callable[[], object], what: str = "it never came to that") -> None:
    deadline_s = asyncio.get_running_loop().time() + LIMIT_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline_s, what
        await asyncio.sleep(POLL_S)


class Client:
    """A WebSocket client that speaks JSON."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def say(self, message_type: str, **fields: Any) -> None:
        await self.connection.send(json.dumps({"type": message_type, **fields}))

    async def hear(self) -> Raw:
        async with asyncio.timeout(LIMIT_S):
            message: Raw = json.loads(await self.connection.recv())
        return message

    async def expect(self, *types: str) -> Raw:
        """Wait for messages of these types, in this order; return the last."""
        message: Raw = {}
        for wanted in types:
            message = await self.hear()
            assert message["type"] == wanted, message
        return message

    async def expect_after(self, wanted: str, *skipped: str) -> Raw:
        while (message := await self.hear())["type"] in skipped:
            continue
        assert message["type"] == wanted, message
        return message

    async def expect_end(self) -> tuple[int, str]:
        """Wait for the close and return code and reason; nothing may come before it."""
        try:
            message = await self.hear()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None, "closed without a goodbye"
            return closed.rcvd.code, closed.rcvd.reason
        raise AssertionError(f"another message: {message}")


class _QuickEnd(uvicorn.Server):
    """A server that ends as soon as nobody is left, without the pauses of the real one."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as end:  # it would end the whole run of tests
            raise RuntimeError("the server did not start: its log says why") from end

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await until(lambda: not (self.server_state.connections or self.server_state.tasks))
        await self.lifespan.shutdown()


class _Server(GatewayServer, _QuickEnd):
    """A server that leaves the process's signals alone and does not poll."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], Coroutine[Any, Any, None]]):
        super().__init__(config, drain)
        self.stopping = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.stopping.wait()


async def _no_drain() -> None:
    """A worker has nothing to wait for."""


class Stage:
    """The gateway, its workers and their addresses."""

    def __init__(
        self,
        settings: Settings,
        worker_count: int,
        timing: Timing,
        real_workers: Sequence[str] = (),
        *,
        decodes_apart: bool = False,
    ) -> None:
        self.settings = settings
        self.decodes_apart = decodes_apart  # audio files, in child processes
        self.real_workers = real_workers  # addresses
        self.workers = [FakeWorker() for _ in range(worker_count)]
        self.timing = timing
        self.port = 0
        self.drain_limit_s = 0.0
        self._stack = AsyncExitStack()
        self._servers: list[tuple[_Server, asyncio.Task[None]]] = []
        self._gateway: Gateway | None = None
        self._http: httpx.AsyncClient | None = None

    @property
    def worker(self) -> FakeWorker:
        return self.workers[0]

    @property
    def gateway(self) -> Gateway:
        assert self._gateway is not None
        return self._gateway

    @property
    def http(self) -> httpx.AsyncClient:
        """A client of its HTTP side: the administrator's, unless the test configures a token."""
        assert self._http is not None
        return self._http

    async def start(self) -> None:
        """Start the workers and the gateway, and wait until it knows them."""
        anybody = Connections(CONNECTIONS, CONNECTIONS, lambda peer: "")
        addresses = [f"{HOST}:{await self._serve(worker.app, anybody)}" for worker in self.workers]
        addresses += self.real_workers
        app = create_app(self.settings, addresses, self.timing)
        gateway: Gateway = app.state.gateway
        if not self.decodes_apart:
            gateway.voices.decoder = DecoderHere()
        self._gateway = gateway
        self.port = await self._serve(
            app,
            gateway.connections,
            lambda: gateway.drain(self.drain_limit_s),
            self.certificate,
        )
        self._http = self.http_client(self.admin_headers)
        await self.wait_for_workers()

    async def wait_for_workers(self) -> None:
        """Wait until all are idle: a loop that was stopped between two tests has missed polls."""
        pool, count = self.gateway.pool, len(self.workers) + len(self.real_workers)
        await until(lambda: idle_count(pool) == count, "workers not found")

    @property
    def certificate(self) -> Certificate | None:
        """The gateway's, where the test configures TLS."""
        service = self.settings.service
        return ensure_certificate(service.data_dir, [HOST]) if service.https else None

    @property
    def admin_headers(self) -> dict[str, str]:
        """What an administrator shows; nothing if the test configures the token itself."""
        file = self.settings.service.data_dir / TOKEN_FILE
        return {ADMIN_HEADER: file.read_text().strip()} if file.exists() else {}

    def http_client(self, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
        """Return a client of the HTTP side; without headers it is a stranger's."""
        return httpx.AsyncClient(
            base_url=f"http://{HOST}:{self.port}",
            headers=headers,
            trust_env=False,
            verify=False,  # without TLS there is nothing to verify, and certificates take long
            timeout=ANSWER_LIMIT_S,
        )

    async def stop(self) -> None:
        """Stop everything; the gateway drains first."""
        await self.http.aclose()
        for server, task in reversed(self._servers):
            server.stopping.set()
            if server is self._servers[-1][0]:
                await task
        await asyncio.gather(*(task for _, task in self._servers))

    async def stop_gateway(self) -> None:
        """Begin what SIGTERM begins, and return at once."""
        self._servers[-1][0].stopping.set()

    async def check_quiet(self) -> None:
        """Nobody waits, is served or is connected, at the gateway and at the workers."""
        pool = self.gateway.pool
        await until(lambda: not self.gateway.live.all(), "a relay is left")
        await until(lambda: pool.queue_length == 0, "a ticket is left")
        await until(lambda: not any(w.tasks for w in pool.workers.values()), "a worker is held")
        await until(lambda: not any(w.sockets for w in self.workers), "a worker's socket is left")

    @asynccontextmanager
    async def client(
        self, path: str, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Client]:
        found = self.certificate
        async with connect(
            f"{'wss' if found else 'ws'}://{HOST}:{self.port}{path}",
            ssl=ssl.create_default_context(cafile=found.certfile) if found else None,
            additional_headers=headers,
            compression=None,
            proxy=None,
            max_size=None,
            open_timeout=None,
            close_timeout=1,
        ) as connection:
            yield Client(connection)

    async def _serve(
        self,
        app: Any,
        connections: Connections,
        drain: Callable[[], Coroutine[Any, Any, None]] = _no_drain,
        certificate: Certificate | None = None,
        port: int = 0,
    ) -> int:
        # Named in full, or asyncio would leave Nagle's algorithm on and add 40 ms to each answer.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        config = GatewayConfig(
            app,
            HOST,
            0,
            connections=connections,
            heartbeat_s=self.settings.limits.heartbeat_s,
            tls=tls_context(certificate.certfile, certificate.keyfile) if certificate else None,
        )
        config.lifespan = "auto"
        server = _Server(config, drain)
        task = asyncio.create_task(server.serve([listener]))
        self._servers.append((server, task))
        await until(lambda: server.started or task.done(), "the server did not start")
        if task.done():
            task.result()
        return int(listener.getsockname()[1])


def settings_for(folder: Path, **sections: Mapping[str, object]) -> Settings:
    """Return settings that keep everything in a folder.

    Args:
        folder: the data folder.
        sections: keys to set, by section.
    """
    # Looking whether a build of the pages is up to date would take a tenth of a usual test.
    usual = {"data_dir": folder, "https": False, "readable_pages": True}
    service = {**usual, **sections.pop("service", {})}
    return Settings.model_validate({**sections, "service": service})


def on_stage(
    *,
    workers: int = 1,
    timing: Timing = HURRY,
    decodes_apart: bool = False,
    **sections: Mapping[str, object],
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run an async test with a stage as its first argument; check afterwards that all is quiet.

    Args:
        workers: how many there are.
        timing: how long and how often.
        decodes_apart: audio files are decoded in child processes, as a gateway does.
        sections: settings by section.
    """

    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        async def play(folder: Path, **arguments: Any) -> None:
            settings = settings_for(folder, **sections)
            stage = Stage(settings, workers, timing, decodes_apart=decodes_apart)
            before = asyncio.all_tasks()
            await stage.start()
            try:
                await test(stage, **arguments)
                await stage.check_quiet()
            finally:
                await stage.stop()
            left = asyncio.all_tasks() - before
            assert not left, f"tasks are left: {left}"

        @functools.wraps(test)
        def run(tmp_path: Path, **arguments: Any) -> None:
            asyncio.run(play(tmp_path, **arguments))

        signature = inspect.signature(test)
        first = inspect.Parameter("tmp_path", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        others = list(signature.parameters.values())[1:]
        run.__signature__ = signature.replace(parameters=[first, *others])  # type: ignore[attr-defined]
        return run

    return decorate
