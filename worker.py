"""A worker: one model on one GPU, served to a gateway over HTTP and WebSockets.

`python worker.py --help` lists the flags.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from config import PRIVATE_UMASK, Settings, SettingsError, load_settings
from core.errors import OmniError
from core.logging_setup import setup_logging
from core.metrics import WorkerMetrics, new_registry
from core.modes import Backend
from core.schemas.worker import SUPERVISED_VARIABLE
from core.serving import routes
from core.serving.fake_backend import FakeBackend, FakeTimes
from core.serving.recordings import Recordings
from core.serving.runtime import Identity, WorkerRuntime
from core.serving.server import DrainingServer, SecretGate, check_exposure, error_response
from core.serving.session_kinds import SessionBuilder
from core.serving.session_server import SessionServer
from core.serving.transcribers import transcriber_beside
from core.sums import KnownSums
from core.telemetry import open_tracing
from core.transcription import Transcriber
from launcher.machine import ORDER, PortError, check_port, find_gpus
from launcher.plan import Kind, slots_of
from recording.bucket import Bucket, Uploader, open_store
from recording.recorder import RecorderThreads, ReplayProcess
from settings.embedded import (
    CASCADE_FOLDER,
    CONFIG_FILE,
    LANGUAGE_MODEL_SHA256,
    WHISPER_FOLDER,
    default_checkpoint,
    find_cascade,
)
from settings.workers import LAST_PORT, worker_name

UNUSABLE: Final = 2  # exit code
# Freed memory of different sizes can be joined: 0.6 GB less with one conversation in int4.
ALLOCATOR: Final = ("PYTORCH_ALLOC_CONF", "expandable_segments:True")

log = logging.getLogger(__name__)


class BackendName(StrEnum):
    REAL = "real"
    FAKE = "fake"


def create_app(
    settings: Settings, make_backend: Callable[[], Backend], identity: Identity | None = None
) -> FastAPI:
    """Return a worker's application, which loads its model when it starts.

    `make_backend` is called on the engine's thread. Raises `ValueError` if tracing is configured
    and its SDK is not installed.
    """
    identity, registry = identity or Identity(), new_registry()
    metrics = WorkerMetrics(registry, identity.worker_id)
    tracing = open_tracing(settings.telemetry.endpoint, "worker", identity.worker_id)

    def make_transcriber(backend: Backend) -> Transcriber | None:
        chosen, model = settings.transcription, settings.model
        checkpoint = default_checkpoint(settings.service.data_dir, model.embedded)
        bundled = Path(model.model_path or checkpoint) / WHISPER_FOLDER
        return transcriber_beside(backend, chosen.by, chosen.whisper_path or bundled)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        slots = settings.service.worker_slots or 1
        runtime = WorkerRuntime(make_backend, slots, identity, make_transcriber)
        recordings = make_recordings(settings, identity.worker_id, metrics)
        sessions = SessionServer(SessionBuilder(runtime, settings, metrics, recordings, tracing))
        app.state.sessions = sessions
        in_background = asyncio.gather(
            runtime.load(),
            sessions.recover(),
            runtime.relieve_regularly(),
            return_exceptions=True,
        )
        try:
            yield
        finally:
            in_background.cancel()
            await asyncio.gather(in_background, return_exceptions=True)
            await sessions.close()
            if tracing is not None:
                await asyncio.to_thread(tracing.close)

    app = FastAPI(title="Worker", lifespan=lifespan, openapi_url=None)
    app.include_router(routes.router)
    app.add_exception_handler(OmniError, error_response)
    secret = settings.security.worker_secret
    app.add_middleware(SecretGate, secret=secret.get_secret_value() if secret else None)

    @app.get("/metrics")
    async def metrics_page() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def make_recordings(
    settings: Settings, worker_id: str, metrics: WorkerMetrics
) -> Recordings | None:
    """Return None if nothing is recorded; raises as `make_uploader`."""
    if not settings.recording.enabled:
        return None
    uploader = make_uploader(settings, worker_id)
    if uploader is not None:
        metrics.watch("recordings_unsealed", lambda: uploader.unsealed.count)
        metrics.watch("recordings_unsealed_bytes", lambda: uploader.unsealed.size_bytes)
        metrics.watch("recordings_unsealed_age_seconds", lambda: uploader.unsealed.age_s)
    return Recordings(
        settings.service.data_dir,
        worker_id,
        RecorderThreads(ReplayProcess()),
        min_free_gb=settings.recording.min_free_gb,
        uploader=uploader,
    )


def make_uploader(settings: Settings, worker_id: str) -> Uploader | None:
    """Return None if recordings stay on disk; raises `ValueError` if the store cannot be used."""
    chosen = settings.recording
    if not chosen.store:
        return None
    bucket = Bucket(open_store(chosen.store), chosen.store)
    return Uploader(bucket, settings.service.data_dir, chosen, worker_id)


def real_backend(settings: Settings, gpu_id: int | None) -> Backend:
    """Return the backend of the configured model, or of the embedded one, or of a toy."""
    os.environ.setdefault(*ALLOCATOR)  # before CUDA is initialized
    # Imported late: the fake backend needs none of the model's libraries.
    import torch

    if not torch.cuda.is_available():
        # Without it, importing transformers imports torch's compiler and Triton: 70 MB.
        sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
    from core.processors import UnifiedProcessor
    from core.processors.backend import RealBackend, choose_device
    from MiniCPMO45.tiny.checkpoint import write_tiny_checkpoint

    model_path, embedded = settings.model.model_path, settings.model.embedded
    if model_path is None:
        folder = default_checkpoint(settings.service.data_dir, embedded)
        if not (folder / CONFIG_FILE).is_file():
            log.warning("no model is configured: writing a toy checkpoint to %s", folder)
            write_tiny_checkpoint(folder)
        model_path = str(folder)
    real = RealBackend(
        lambda engine, report: UnifiedProcessor(
            model_path,
            settings.model.pt_path,
            choose_device(gpu_id),
            settings.audio.ref_audio_path,
            weights=settings.model.weights,
            show_progress=False,
            slots=settings.service.worker_slots or 1,
            cache=settings.model.cache,
            tokens_each=settings.duplex.usual_tokens,
            engine=engine,
            on_progress=report,
        )
    )
    if settings.model.model_path is not None or embedded in ("nano", "toy"):
        return real
    from core.cascade.backend import CascadeBackend, parts_of
    from core.cascade.parts import Parts

    sums = KnownSums()  # the files are checked again and again until they are complete

    def load_parts(base: RealBackend) -> Parts | None:
        published = None if settings.cascade.llm_url else LANGUAGE_MODEL_SHA256
        files = find_cascade(settings.service.data_dir / CASCADE_FOLDER, published, sums)
        if files is None:
            return None
        whisper, slots = settings.transcription.whisper_path, settings.service.worker_slots or 1
        return parts_of(base, files, settings.cascade, whisper, slots)

    return CascadeBackend(
        real,
        load_parts,
        waits=embedded == "auto",
        shares_transcriber=settings.transcription.by in ("auto", "whisper"),
    )


def with_slots(settings: Settings, gpu_index: int) -> Settings:
    """Return the settings with as many slots as fit the worker's GPU, unless they are set."""
    service, model, gpus = settings.service, settings.model, find_gpus()
    if service.worker_slots is not None or not gpus:
        return settings
    os.environ.setdefault(ORDER, "PCI_BUS_ID")  # as `find_gpus` counts; before torch is imported
    import torch

    if not torch.cuda.is_available():  # a build without CUDA, or an old driver
        return settings
    gpu, usual_tokens = gpus[gpu_index % len(gpus)], settings.duplex.usual_tokens
    slots = slots_of(gpu, usual_tokens, weights=model.weights, cache=model.cache)
    service = service.model_copy(update={"worker_slots": slots})
    return settings.model_copy(update={"service": service})


cli = typer.Typer(add_completion=False)
FAKE_HELP: Final = "A delay of the fake backend, such as unit=100; repeatable."


@cli.command()
def main(
    host: Annotated[str | None, typer.Option(help="Address to bind to.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=LAST_PORT, help="Else by index.")] = None,
    worker_index: Annotated[int, typer.Option(min=0, help="Number of this worker.")] = 0,
    name: Annotated[
        str | None,
        typer.Option(help="Its name; else worker_INDEX, or the host's name off loopback."),
    ] = None,
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
    slots: Annotated[int | None, typer.Option(min=1, help="Concurrent sessions.")] = None,
    fake_ms: Annotated[
        list[str] | None, typer.Option(envvar="FAKE_MS", metavar="PART=MS", help=FAKE_HELP)
    ] = None,
) -> None:
    """Run one worker until it is stopped."""
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
        make_uploader(settings, "")  # reports an unusable store before the model is loaded
        times = fake_times(fake_ms or ())
        called = worker_name(address, worker_index, name)
        check_port(address, bound, f"--port or {Kind.WORKER.port_setting}")  # before any work
        gpu, is_fake = worker_index if gpu_id is None else gpu_id, backend is BackendName.FAKE
        settings = settings if is_fake else with_slots(settings, gpu)
        app = create_app(
            settings,
            lambda: FakeBackend(times) if is_fake else real_backend(settings, gpu),
            Identity(called, gpu_id, SUPERVISED_VARIABLE in os.environ),
        )
    except (SettingsError, PortError, ValueError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNUSABLE) from None
    setup_logging(settings.logging.level, json_lines=settings.logging.json_lines, program=called)
    try:
        server = DrainingServer(app, settings, address, bound)
    except (OSError, ValueError) as error:
        typer.echo(f"The worker's certificate cannot be used: {error}", err=True)
        raise typer.Exit(UNUSABLE) from None
    server.run()
    raise typer.Exit(server.exit_code)


def fake_times(parts: Sequence[str]) -> FakeTimes:
    """Parse delays of the fake backend, each written as `unit=100`; raises `ValueError`."""
    known = [each.name.removesuffix("_ms") for each in fields(FakeTimes)]
    times: dict[str, float] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in known:
            raise ValueError(f"--fake-ms {part}: it is one of {', '.join(known)}")
        try:
            times[f"{name}_ms"] = float(value)
        except ValueError:
            raise ValueError(f"--fake-ms {part}: write the delay as {name}=100") from None
    return replace(FakeTimes(), **times)


if __name__ == "__main__":
    cli()
