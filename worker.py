"""One worker: a model on one GPU, and the sockets and routes by which a gateway reaches it.

`python worker.py --help` lists the flags.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
import uvicorn
from fastapi import FastAPI

from config import PRIVATE_UMASK, SecuritySettings, Settings, SettingsError, load_settings
from core.errors import NotSupervisedError, OmniError, ShuttingDownError
from core.logging_setup import setup_logging
from core.metrics import WorkerMetrics, new_registry
from core.schemas.limits import CHAT_SOCKET_LIMIT_BYTES, MIB
from core.schemas.worker import RESTART_EXIT_CODE, SUPERVISED_VARIABLE
from core.serving.backend import Backend
from core.serving.fake_backend import FakeBackend, FakeTimes
from core.serving.gate import SecretGate, is_loopback
from core.serving.host import Identity, WorkerHost
from core.serving.recordings import Recordings
from core.serving.session_kinds import SessionRules
from core.serving.worker_routes import tell_error, worker_routes
from core.serving.workshop import WorkLimits, Workshop
from core.stop_signals import StopSignals
from recording.replay_process import ReplayProcess
from session_recorder import RecorderThreads
from settings.embedded import CONFIG_FILE, default_checkpoint

UNUSABLE: Final = 2  # exit code
# One message a little too big is still read, so that its sender is told why.
SOCKET_LIMIT_BYTES: Final = CHAT_SOCKET_LIMIT_BYTES + MIB
SHUTDOWN_LIMIT_S: Final = 5  # for the last answers to be sent


MakeBackend = Callable[[], "Backend"]

log = logging.getLogger(__name__)


class BackendName(StrEnum):
    """What makes conversations."""

    REAL = "real"
    FAKE = "fake"


@dataclass(frozen=True)
class WorkerOptions:
    """What concerns one worker alone.

    Attributes:
        identity: its name and GPU.
        slots: sessions at once; None takes the configured number.
        limits: how long things may take.
    """

    identity: Identity = field(default_factory=Identity)
    slots: int | None = None
    limits: WorkLimits = field(default_factory=WorkLimits)


class HostPlace:
    """Where the program's host is while it runs, and how the program is ended from inside."""

    def __init__(self) -> None:
        """Begin without one."""
        self._host: WorkerHost | None = None
        self._begin_restart: Callable[[], None] | None = None

    def on_restart(self, begin: Callable[[], None]) -> None:
        """Say what ends the program so that it is started again."""
        self._begin_restart = begin

    def restart(self) -> None:
        """Begin to end, to be started again.

        Raises:
            NotSupervisedError: Nobody would start it again.
            ShuttingDownError: It is ending already.
        """
        if self._begin_restart is None or not self().identity.is_supervised:
            raise NotSupervisedError()
        self._begin_restart()

    def put(self, host: WorkerHost | None) -> None:
        """Set it."""
        self._host = host

    def __call__(self) -> WorkerHost:
        """Return it."""
        assert self._host is not None, "the program runs"
        return self._host


def create_app(
    settings: Settings, make_backend: MakeBackend, options: WorkerOptions | None = None
) -> FastAPI:
    """Return a worker's application; its model is loaded when it starts.

    Args:
        settings: The configuration.
        make_backend: Makes what makes conversations, on the engine's thread.
        options: What concerns this worker alone.
    """
    chosen, place, registry = options or WorkerOptions(), HostPlace(), new_registry()
    metrics = WorkerMetrics(registry)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        host = make_host(settings, make_backend, chosen, metrics)
        place.put(host)
        beginning = [asyncio.create_task(work) for work in (host.load(), host.recover())]
        try:
            yield
        finally:
            for task in beginning:
                task.cancel()
            await asyncio.gather(*beginning, return_exceptions=True)
            await host.close()

    app = FastAPI(title="Worker", lifespan=lifespan, openapi_url=None)
    app.state.host = place
    app.include_router(worker_routes(place, registry, place.restart))
    app.add_exception_handler(OmniError, tell_error)
    secret = settings.security.worker_secret
    app.add_middleware(SecretGate, secret=secret.get_secret_value() if secret else None)
    return app


def make_host(
    settings: Settings, make_backend: MakeBackend, options: WorkerOptions, metrics: WorkerMetrics
) -> WorkerHost:
    """Return the host of a worker; call it on the event loop."""
    slots = options.slots or settings.service.worker_slots or 1
    workshop = Workshop(make_backend, slots, options.limits)
    rules = SessionRules.of(settings.limits, settings.duplex, settings.half_duplex)
    recordings = None
    if settings.recording.enabled:
        threads = RecorderThreads(ReplayProcess())
        data_dir, worker_id = settings.service.data_dir, options.identity.worker_id
        min_free_gb = settings.recording.min_free_gb
        recordings = Recordings(data_dir, worker_id, threads, min_free_gb=min_free_gb)
    return WorkerHost(workshop, rules, options.identity, metrics, recordings)


class DrainingServer(uvicorn.Server):
    """Lets running sessions end before it closes their sockets."""

    def __init__(self, config: uvicorn.Config, host_of: HostPlace, drain_limit_s: float) -> None:
        """Serve by a configuration.

        Args:
            config: uvicorn's.
            host_of: Returns the host.
            drain_limit_s: How long sessions may go on after a stop was asked for.
        """
        super().__init__(config)
        self._host_of = host_of
        self._drain_limit_s = drain_limit_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._signals = StopSignals()
        self.exit_code = 0
        host_of.on_restart(self.begin_restart)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is left."""
        if self._draining is not None:
            await self._draining
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at once at one that is sent later."""
        is_hurry = self._signals.is_hurry(time.monotonic())
        if self._loop is not None and (is_hurry or self._draining is None):
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Begin to end; asked again, do not wait any longer."""
        if self._draining is not None or not self.started:
            self.should_exit = True
            return
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    def begin_restart(self) -> None:
        """Begin to end as at a signal, and tell the launcher to start the program again.

        Raises:
            ShuttingDownError: It is ending already.
        """
        if self._draining is not None or self.should_exit:
            raise ShuttingDownError()
        self.exit_code = RESTART_EXIT_CODE
        self.begin_drain()

    async def _drain(self) -> None:
        try:
            await self._host_of().drain(self._drain_limit_s)
        finally:
            self.should_exit = True


def make_server(app: FastAPI, settings: Settings, host: str, port: int) -> DrainingServer:
    """Return what serves a worker's application.

    Args:
        app: Of `create_app`.
        settings: The configuration.
        host: Address to bind to.
        port: Port to bind to.
    """
    heartbeat_s = settings.limits.heartbeat_s
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        ws="websockets-sansio",  # the one of uvicorn's that holds back too fast a sender
        ws_max_size=SOCKET_LIMIT_BYTES,
        ws_ping_interval=heartbeat_s,
        ws_ping_timeout=heartbeat_s,
        ws_per_message_deflate=False,  # between processes of ours it costs more than it saves
        timeout_graceful_shutdown=SHUTDOWN_LIMIT_S,
    )
    place: HostPlace = app.state.host
    return DrainingServer(config, place, settings.service.drain_timeout_s)


def real_backend(settings: Settings, gpu_id: int | None) -> Backend:
    """Return the model's backend; without a configured one the embedded or the toy checkpoint's.

    Args:
        settings: The configuration.
        gpu_id: Which GPU, as people count.
    """
    # Imported late: a worker without a model needs none of its libraries.
    from core.serving.real_backend import ModelOptions, RealBackend
    from MiniCPMO45.tiny import write_tiny_checkpoint

    model_path = settings.model.model_path
    if model_path is None:
        folder = default_checkpoint(settings.service.data_dir, embedded=settings.model.embedded)
        if not (folder / CONFIG_FILE).is_file():
            log.warning("no model is configured: making a toy checkpoint in %s", folder)
            write_tiny_checkpoint(folder)
        model_path = str(folder)
    options = ModelOptions(
        model_path,
        settings.model.pt_path,
        settings.audio.ref_audio_path,
        gpu_id,
        slots=settings.service.worker_slots or 1,
    )
    return RealBackend(options)


cli = typer.Typer(add_completion=False)
FAKE_HELP: Final = "A delay of the fake backend, such as unit=100; may be repeated."


@cli.command()
def main(
    host: Annotated[str | None, typer.Option(help="Address to bind to.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; else the base port + index.")] = None,
    worker_index: Annotated[int, typer.Option(min=0, help="Number of this worker.")] = 0,
    gpu_id: Annotated[int | None, typer.Option(min=0, help="GPU; else the index.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    model_path: Annotated[str | None, typer.Option(help="Checkpoint folder or hub id.")] = None,
    pt_path: Annotated[str | None, typer.Option(help="Weights applied over it.")] = None,
    ref_audio_path: Annotated[str | None, typer.Option(help="Default voice.")] = None,
    duplex_pause_timeout: Annotated[
        float | None, typer.Option(help="A paused session ends after this, s.")
    ] = None,
    backend: Annotated[
        BackendName, typer.Option(help="The model, or fixed replies for tests.")
    ] = BackendName.REAL,
    slots: Annotated[int | None, typer.Option(min=1, help="Sessions at once.")] = None,
    fake_ms: Annotated[
        list[str] | None,
        typer.Option(envvar="FAKE_MS", metavar="PART=MS", help=FAKE_HELP),
    ] = None,
) -> None:
    """Run one worker until it is told to end."""
    overrides = {
        "model.model_path": model_path,
        "model.pt_path": pt_path,
        "audio.ref_audio_path": ref_audio_path,
        "duplex.pause_timeout": duplex_pause_timeout,
        "service.worker_slots": slots,
    }
    os.umask(PRIVATE_UMASK)
    try:
        settings = load_settings(config, overrides)
        bound = port or settings.worker_port(worker_index)
        address = host or settings.service.worker_host
        check_exposure(address, settings.security)
        times = fake_times(fake_ms or ())
    except (SettingsError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNUSABLE) from None
    name, gpu = f"worker_{worker_index}", worker_index if gpu_id is None else gpu_id
    setup_logging(settings.logging.level, json_lines=settings.logging.json_lines, program=name)
    is_fake = backend is BackendName.FAKE
    app = create_app(
        settings,
        lambda: FakeBackend(times) if is_fake else real_backend(settings, gpu),
        WorkerOptions(Identity(name, gpu_id, SUPERVISED_VARIABLE in os.environ)),
    )
    server = make_server(app, settings, address, bound)
    server.run()
    raise typer.Exit(server.exit_code)


def check_exposure(host: str, security: SecuritySettings) -> None:
    """Refuse to listen to other machines without a secret: a worker does what anybody asks.

    Raises:
        ValueError: Other machines reach the address, and there is no secret.
    """
    if security.worker_secret is None and not is_loopback(host):
        raise ValueError(
            f"The worker would listen on {host} to everybody. Set security.worker_secret to the "
            "same value here and at the gateway, or bind the worker to 127.0.0.1."
        )


def fake_times(parts: Sequence[str]) -> FakeTimes:
    """Read delays of the fake backend, each written as `unit=100`.

    Raises:
        ValueError: There is no such delay, or it is no number.
    """
    known = [each.name.removesuffix("_ms") for each in fields(FakeTimes)]
    times: dict[str, float] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(f"--fake-ms {part}: it is one of {', '.join(known)}")
        times[f"{name}_ms"] = float(value)
    return replace(FakeTimes(), **times)


if __name__ == "__main__":
    cli()
