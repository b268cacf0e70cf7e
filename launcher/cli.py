"""The command line: `python -m launcher`, which `start_all.sh` runs."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from config import PRIVATE_UMASK, Settings, SettingsError, install_command, load_settings
from launcher import control
from launcher.conductor import ClusterError
from launcher.display import Display
from launcher.machine import cpu_count
from launcher.plan import Backend, Options, Planner, Programs
from launcher.run_folder import AlreadyRunningError, RunFolder
from launcher.scaling import Bounds
from launcher.supervisor import Pace
from launcher.system import EXIT_FAILED, System, show_admin_link

EXIT_USAGE = 2
DETACH_FLAG = "--detach"
# All that --status and --stop need: a value invalid by now must not prevent them.
NEEDED_WHILE_RUNNING = ("service.data_dir", "service.drain_timeout_s")
STANDARD_OUTPUT = 1

Action = Literal["run", "detach", "status", "stop"]

Workers = Annotated[
    Bounds | None,
    typer.Option(
        parser=Bounds.parse,
        metavar="N",
        help="Workers to start; with --ray also MIN:MAX.",
        show_default="one per GPU, or one without GPU",
    ),
]
Https = Annotated[
    bool | None,
    typer.Option("--https/--http", help="TLS or plain HTTP.", show_default="as configured"),
]
GatewayPort = Annotated[
    int | None,
    typer.Option(min=1, max=65535, help="Port of the gateway.", show_default="as configured"),
]
Doors = Annotated[
    int | None,
    typer.Option(
        help="Gateway processes for clients; 2 or more share a queue process.",
        show_default="as configured",
    ),
]
Ray = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Run on a Ray cluster: auto, or host:port.")
]
Now = Annotated[
    bool, typer.Option("--now", help="With --ray and --stop: end running sessions at once.")
]


@dataclass(frozen=True)
class Setup:
    """Parts that tests replace."""

    programs: Programs = Programs()
    pace: Pace = Pace()


def create_app(setup: Setup) -> typer.Typer:
    app = typer.Typer(
        add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command()(start_command(setup))
    return app


def read_settings(
    config: Path | None,
    overrides: Mapping[str, object] | None = None,
    only: Collection[str] | None = None,
) -> Settings:
    """Read the configuration, or end the program with what is wrong with it."""
    try:
        return load_settings(config, overrides, only)
    except SettingsError as error:
        typer.echo(f"Invalid configuration:\n{error}", err=True)
        raise typer.Exit(EXIT_USAGE) from None


def start_command(setup: Setup) -> Callable[..., None]:
    def start_all(
        workers: Workers = None,
        https: Https = None,
        port: GatewayPort = None,
        doors: Doors = None,
        config: Annotated[
            Path | None,
            typer.Option(help="Configuration file.", show_default="config.json, if there is one"),
        ] = None,
        backend: Annotated[
            Backend | None, typer.Option(help="fake: workers without a model, for tests.")
        ] = None,
        status: Annotated[bool, typer.Option("--status", help="Show what runs.")] = False,
        stop: Annotated[bool, typer.Option("--stop", help="Stop what runs.")] = False,
        detach: Annotated[bool, typer.Option(DETACH_FLAG, help="Run in the background.")] = False,
        ray: Ray = None,
        now: Now = False,
    ) -> None:
        """Start the gateway and its workers, supervise them, and stop them on Ctrl-C."""
        service = {"gateway_port": port, "https": https, "doors": doors}
        overrides = {f"service.{key}": service[key] for key in service}
        only = NEEDED_WHILE_RUNNING if status or stop else None
        settings = read_settings(config, overrides, only)
        options = Options(config.resolve() if config else None, workers, backend)
        action: Action = "status" if status else "stop" if stop else "detach" if detach else "run"
        limit_s = settings.service.drain_timeout_s + setup.pace.end_margin_s
        if now and not (ray and stop):
            typer.echo("--now needs --ray ADDRESS and --stop", err=True)
            raise typer.Exit(EXIT_USAGE)
        if ray is not None:
            raise typer.Exit(_on_cluster(ray, settings, options, action, limit_s, now=now))
        if workers and workers.least < workers.most:
            typer.echo("--workers MIN:MAX needs --ray ADDRESS", err=True)
            raise typer.Exit(EXIT_USAGE)
        planner = Planner(settings, options, setup.programs, os.environ, cpu_count())
        try:
            code = _here(planner, setup.pace, action, limit_s)
        except (OSError, SettingsError) as error:
            Display().error(str(error))
            code = EXIT_FAILED
        raise typer.Exit(code)

    return start_all


def _on_cluster(
    address: str, settings: Settings, options: Options, action: Action, limit_s: float, *, now: bool
) -> int:
    display = Display()
    try:
        from launcher import ray_engine  # imported late: Ray is optional
    except ImportError:
        display.error(f"Ray is not installed here: {install_command('ray')}")
        return EXIT_FAILED
    try:
        if action == "status":
            return ray_engine.show_status(address, display)
        if action == "stop":
            return ray_engine.stop(address, display, limit_s, now=now)
        if settings.service.doors > 1:
            display.error("service.doors: a cluster has one gateway, without doors")
            return EXIT_USAGE
        return ray_engine.start(address, settings, options, display, detach=action == "detach")
    except (OSError, ClusterError) as error:
        display.error(str(error))
        return EXIT_FAILED


def _here(planner: Planner, pace: Pace, action: Action, limit_s: float) -> int:
    os.umask(PRIVATE_UMASK)
    folder = RunFolder(planner.run_folder)
    match action:
        case "status":
            return control.show_status(folder, Display())
        case "stop":
            return asyncio.run(control.stop(folder, Display(), 2 * limit_s))
        case "detach":
            return _detach(planner, folder)
        case "run":
            return _run(planner, folder, pace)


def _run(planner: Planner, folder: RunFolder, pace: Pace) -> int:
    log = planner.log_file("launcher").path
    try:
        with folder.held() as was_left:
            display = Display(log=None if _is_standard_output(log) else log)
            if was_left:
                display.say("The last run did not shut down cleanly.")
            try:
                return asyncio.run(System(planner, folder, display, pace).run())
            finally:
                display.close()
    except AlreadyRunningError:
        return control.report_running(folder, Display())


def _detach(planner: Planner, folder: RunFolder) -> int:
    if folder.launcher():
        return control.report_running(folder, Display())
    arguments = [argument for argument in sys.orig_argv[1:] if argument != DETACH_FLAG]
    log = planner.log_file("launcher")
    code = control.detach([sys.executable, *arguments], folder, log, Display())
    record = folder.read()
    if code == 0 and record and record.urls:
        show_admin_link(Display(), record.urls[0], planner.settings)
    return code


def _is_standard_output(path: Path) -> bool:
    """Whether standard output already goes to this file, as with --detach."""
    try:
        return os.path.samestat(os.fstat(STANDARD_OUTPUT), path.stat())
    except OSError:
        return False
