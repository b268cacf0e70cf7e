"""The gateway: queue, relays, routes and pages in front of the workers; no tensors.

`python gateway.py --help` lists its flags; the configuration provides the rest.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import structlog
import typer
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from rich.console import Console
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from config import PRIVATE_UMASK, Settings, SettingsError, load_settings
from core.errors import OmniError
from core.logging_setup import setup_logging
from core.schemas.chat import ChatRequest
from core.worker_tls import server_context
from gateway_modules.openai import routes as openai_routes
from gateway_modules.openai import sessions as openai_sessions
from gateway_modules.queue.desk_link import shared_secret
from gateway_modules.routes import admin, chat, pages, queue, sessions, sockets
from gateway_modules.routes.http_edge import DoorsOnly, HttpEdge, forwarding
from gateway_modules.service import Gateway, Role, Timing, build_gateway
from gateway_modules.web import responses
from gateway_modules.web.certificates import certificate_names, gateway_tls, tls_context
from gateway_modules.web.server import GatewayConfig, GatewayServer
from launcher.machine import PortError, check_port
from launcher.plan import Kind
from recording.bucket import BucketError

DESCRIPTION: Final = (
    "HTTP interface of the gateway. Conversations go over WebSockets at /ws/streaming, "
    "/ws/half_duplex, /ws/duplex and /ws/chat, which this description does not cover. Every "
    "answer that is not a success is `{detail, code}`. Routes that change or delete what belongs "
    "to everybody need the administrator's token in the header X-Admin-Token. Routes that change "
    "one conversation or its recording need its secret in the header X-Session-Secret, which the "
    "conversation's own socket received in `queue_done`, or the administrator's token."
)
THREADS: Final = 32  # for files, long messages, and waiting for decoders
BAD_START: Final = 2  # exit status when the flags or the configuration cannot be used


def create_app(
    settings: Settings,
    worker_addresses: Sequence[str] | None = None,
    timing: Timing | None = None,
    host_names: Sequence[str] = (),
    role: Role = Role.ALL,
) -> FastAPI:
    """Build the app; nothing runs until it is served.

    `worker_addresses` are as in `service.workers`; None takes those of the configuration.
    `host_names` are further names of this server. Raises as `build_gateway` does.
    """
    if worker_addresses is None:
        worker_addresses = settings.service.workers or settings.worker_addresses(
            max(1, settings.service.num_workers)
        )
    gateway = build_gateway(settings, worker_addresses, timing, host_names, role)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gateway")
        asyncio.get_running_loop().set_default_executor(threads)
        await gateway.start()
        structlog.get_logger("gateway").info("recordings", kept=settings.recording.summary)
        runs = [] if role is Role.DOOR else [gateway.cleanup.run()]
        runs += [] if gateway.trends is None else [gateway.trends.run()]
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await gateway.stop()

    app = FastAPI(
        title="MiniCPM-o live",
        description=DESCRIPTION,
        version="0.1.0",  # of the interface
        docs_url=None,  # it loads scripts from other sites; ours is at /api/docs
        redoc_url=None,
        openapi_url=None,  # it is computed on the event loop; `_add_routes` has ours
        lifespan=lifespan,
    )
    app.state.gateway = gateway
    _add_routes(app, gateway)
    return app


def _add_routes(app: FastAPI, gateway: Gateway) -> None:
    is_desk = gateway.role is Role.DESK
    first = [forwarding(gateway)] if gateway.role is Role.DOOR else []  # before what it replaces
    routers = [*first, queue.router] + ([] if is_desk else [chat.router])
    routers += [chat.stops, sessions.router, admin.router]
    routers += [queue.pool_router, admin.admin_router, pages.assets]
    if not is_desk:
        routers += [pages.router, sockets.router, pages.documents]
        routers += [openai_routes.router, openai_sessions.calls, openai_sessions.sockets]
    for router in routers:
        # As they are: including a router would analyze each of its routes again.
        app.router.routes.extend(router.routes)
    if not is_desk:
        app.mount("/static", gateway.pages.files, name="static")
    app.add_exception_handler(OmniError, responses.on_error)
    app.add_exception_handler(ClientDisconnect, responses.on_client_gone)
    app.add_exception_handler(BucketError, sessions.on_store_away)
    app.add_exception_handler(OSError, sessions.on_disk_error)
    app.add_exception_handler(HTTPException, pages.on_http_problem)
    app.add_exception_handler(RequestValidationError, responses.on_invalid_request)
    app.add_middleware(HttpEdge, gateway=gateway)
    if gateway.doors is not None:
        app.add_middleware(DoorsOnly, doors=gateway.doors, secret=shared_secret(gateway.settings))
    origins = gateway.settings.security.allowed_origins
    if origins and not is_desk:  # the outermost, so that an allowed page can read refusals too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Location"],  # of a call over WebRTC: its id
        )

    @app.get("/api/openapi.json", include_in_schema=False)
    def description() -> JSONResponse:  # not async: on a thread, as it takes some 500 ms
        return JSONResponse(describe(app))


# Any: an OpenAPI document as JSON has it.
def describe(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with `ChatRequest`, which no route declares."""
    document = app.openapi()
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    if "ChatRequest" not in schemas:
        schema = ChatRequest.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {"ChatRequest": schema} | schemas
    return document


def main(
    host: Annotated[str | None, typer.Option(help="Address to bind to.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind to.")] = None,
    workers: Annotated[
        str | None, typer.Option(help="Where workers are: host:port or dns:NAME:PORT, by commas.")
    ] = None,
    num_workers: Annotated[
        int | None, typer.Option(help="Where nothing lists them: workers of this machine.")
    ] = None,
    max_queue_size: Annotated[int | None, typer.Option(help="Requests that may wait.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Of one HTTP call to a worker, s.")] = None,
    https: Annotated[
        bool | None, typer.Option("--https/--http", help="Serve over TLS, or not.")
    ] = None,
    ssl_certfile: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    ssl_keyfile: Annotated[Path | None, typer.Option(help="Key of the certificate, PEM.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
    insecure_admin: Annotated[
        bool | None, typer.Option("--insecure-admin", help="Administration for everyone.")
    ] = None,
    lang: Annotated[
        str | None, typer.Option(help="Language of the pages, as en; else the browser decides.")
    ] = None,
    role: Annotated[
        Role, typer.Option(help="All of it, or a part: the desk of several doors, or a door.")
    ] = Role.ALL,
    desk: Annotated[
        str | None, typer.Option(help="Of a door: where its desk listens, host:port.")
    ] = None,
) -> None:
    """Serve people: pages, HTTP and WebSockets in front of the workers."""
    overrides = {
        "service.gateway_host": host,
        "service.gateway_port": port,
        "service.desk": desk,
        "service.num_workers": num_workers,
        "service.max_queue_size": max_queue_size,
        "service.request_timeout": timeout,
        "service.https": https,
        "service.ssl_certfile": ssl_certfile,
        "service.ssl_keyfile": ssl_keyfile,
        "service.default_lang": lang,
        "security.insecure_admin": insecure_admin,
    }
    os.umask(PRIVATE_UMASK)
    try:
        settings = load_settings(config, overrides)
    except SettingsError as error:
        _refuse(error)
    logging = settings.logging
    addresses = None if workers is None else [*filter(None, map(str.strip, workers.split(",")))]
    with closing(setup_logging(logging.level, json_lines=logging.json_lines, program="gateway")):
        _serve(settings, addresses, role)


def _serve(settings: Settings, addresses: list[str] | None, role: Role) -> None:
    service = settings.service
    try:
        # First, as a second gateway would write to the files of the one that has the port.
        check_port(service.gateway_host, service.gateway_port, Kind.GATEWAY.port_setting)
        tls, names = None, [socket.gethostname()]
        if role is Role.DESK:
            tls = server_context(settings)
        elif found := gateway_tls(service):
            tls = tls_context(found.certfile, found.keyfile)
            names = certificate_names(found.certfile)
        app = create_app(settings, addresses, host_names=names, role=role)
    except (SettingsError, PortError, ValueError, OSError) as error:
        _refuse(error)
    run(app, settings, tls)


def _refuse(error: Exception) -> NoReturn:
    Console(stderr=True).print(str(error), style="red", markup=False)
    raise typer.Exit(BAD_START) from None


def run(app: FastAPI, settings: Settings, tls: ssl.SSLContext | None) -> None:
    """Serve until a signal, then drain."""
    service = settings.service
    gateway: Gateway = app.state.gateway
    config = GatewayConfig(
        app,
        service.gateway_host,
        service.gateway_port,
        connections=gateway.connections,
        heartbeat_s=settings.limits.heartbeat_s,
        tls=tls,
    )
    server = GatewayServer(config, drain=lambda: gateway.drain(service.drain_timeout_s))
    settle()
    server.run()


def settle() -> None:
    """Freeze the garbage collector's oldest generation: a full collection takes 70 ms less."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    typer.run(main)
