"""`python -m webrtc`: serves WebRTC peers for a gateway; started by the launcher."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvicorn

from config import PRIVATE_UMASK, SettingsError, install_command, load_settings
from core.logging_setup import setup_logging
from core.serving.server import check_exposure
from gateway_modules.web.certificates import pinned_context

UNUSABLE: Final = 2  # exit status for invalid flags or configuration


class PortRangeLoop(asyncio.SelectorEventLoop):
    """Binds UDP sockets within a port range, for firewalls and containers; aioice uses any port.

    With an empty range the system chooses.
    """

    def __init__(self, ports: range) -> None:
        super().__init__()
        self._ports = ports

    # Any: as in the overridden method.
    async def create_datagram_endpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Bind to a free port of the range if none is specified; an OSError if none is free."""
        host, port = (kwargs.get("local_addr") or (None, 1))[:2]
        if port != 0 or not self._ports:
            return await super().create_datagram_endpoint(*args, **kwargs)
        # In random order, since each port in use costs a system call.
        for chosen in random.sample(self._ports, len(self._ports)):
            try:
                return await super().create_datagram_endpoint(
                    *args, **{**kwargs, "local_addr": (host, chosen)}
                )
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(f"no UDP port from {self._ports[0]} to {self._ports[-1]} is free on {host}")


def main(
    gateway: Annotated[str, typer.Option(help="The gateway, as wss://127.0.0.1:8006.")],
    gateway_certfile: Annotated[
        Path | None, typer.Option(help="Its certificate, PEM, where it serves TLS.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind to.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to bind to.")] = None,
    config: Annotated[Path | None, typer.Option(help="Configuration file.")] = None,
) -> None:
    """Serve until a signal arrives."""
    if find_spec("aiortc") is None:
        typer.echo(f"webrtc.enabled needs aiortc: {install_command('webrtc')}", err=True)
        raise typer.Exit(UNUSABLE)
    from webrtc.calls import GatewayAddress, create_app  # imported late: needs the extra

    os.umask(PRIVATE_UMASK)
    try:
        settings = load_settings(config, {"webrtc.host": host, "webrtc.port": port})
        check_exposure(settings.webrtc.host, settings.security)
        tls = pinned_context(gateway_certfile) if gateway_certfile else None
    except (SettingsError, ValueError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNUSABLE) from None
    logging, place = settings.logging, settings.webrtc
    with closing(setup_logging(logging.level, json_lines=logging.json_lines, program="webrtc")):
        app = create_app(settings, GatewayAddress(gateway, tls))
        served = uvicorn.Config(app, place.host, place.port, log_config=None, access_log=False)
        with asyncio.Runner(loop_factory=partial(PortRangeLoop, place.ports)) as runner:
            runner.run(uvicorn.Server(served).serve())


if __name__ == "__main__":
    typer.run(main)
