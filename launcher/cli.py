"""The command line of the launcher."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from config import PRIVATE_UMASK, Settings, SettingsError, load_settings
from launcher import control
from launcher.administration import tell_administrator
from launcher.display import Display
from launcher.gpus import find_gpus
from launcher.plan import Backend, Options, Pace, Planner, Programs
from launcher.state import AlreadyRunningError, RunFolder
from launcher.system import System

EXIT_FAILED = 1
EXIT_USAGE = 2
DETACH_FLAG = "--detach"
STANDARD_OUTPUT = 1


@dataclass(frozen=True)
class Setup:
    """What differs between the product and its tests.

    Attributes:
        entry: the command that runs this command line again.
        programs: commands of the programs.
        pace: how often and how long.
    """

    entry: tuple[str, ...] = (sys.executable, "-P", "-m", "launcher")
    programs: Programs = Programs()
    pace: Pace = Pace()


def create_app(setup: Setup) -> typer.Typer:
    """Return the command line."""
    app = typer.Typer(
        add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
    )

    @app.command()
    def start_all(
        workers: Annotated[
            int | None,
            typer.Option(
                min=1, help="Workers to start.", show_default="one per GPU, or one without GPU"
            ),
        ] = None,
        https: Annotated[
            bool | None,
            typer.Option("--https/--http", help="TLS or plain HTTP.", show_default="as configured"),
        ] = None,
        port: Annotated[
            int | None,
            typer.Option(
                min=1, max=65535, help="Port of the gateway.", show_default="as configured"
            ),
        ] = None,
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
    ) -> None:
        """Start the gateway and its workers, watch them, and stop them on Ctrl-C."""
        given = {"service.gateway_port": port, "service.https": https}
        try:
            settings = load_settings(config, given)
        except SettingsError as error:
            typer.echo(f"The configuration cannot be used:\n{error}", err=True)
            raise typer.Exit(EXIT_USAGE) from None
        options = Options(config.resolve() if config else None, workers, backend)
        command = Command(setup, settings, options)
        if status:
            code = control.show_status(command.folder, Display())
        elif stop:
            limit_s = 2 * (settings.service.drain_timeout_s + setup.pace.end_margin_s)
            code = control.stop(command.folder, Display(), limit_s)
        elif detach:
            code = command.run_detached(sys.argv[1:])
        else:
            code = command.run()
        raise typer.Exit(code)

    return app


@dataclass(frozen=True)
class Command:
    """One start."""

    setup: Setup
    settings: Settings
    options: Options

    @property
    def planner(self) -> Planner:
        """What to start."""
        return Planner(
            self.settings, self.options, self.setup.programs, os.environ, os.cpu_count() or 1
        )

    @property
    def folder(self) -> RunFolder:
        """Where the launcher keeps its files."""
        return RunFolder(self.planner.places.run)

    def run(self) -> int:
        """Start, watch, stop; return the exit code."""
        os.umask(PRIVATE_UMASK)
        planner, folder = self.planner, self.folder
        log = planner.log_file("launcher")
        try:
            with folder.held():
                display = Display(log=None if _is_standard_output(log.path) else log.path)
                gpus = find_gpus(os.environ)
                system = System(planner, folder, display, self.setup.pace, gpus)
                try:
                    return asyncio.run(system.run())
                finally:
                    display.close()
        except AlreadyRunningError:
            return self._already_running()
        except (OSError, SettingsError) as error:
            Display().trouble(str(error))
            return EXIT_FAILED

    def run_detached(self, arguments: Sequence[str]) -> int:
        """Start in the background; return the exit code once it is up."""
        if self.folder.launcher():
            return self._already_running()
        again = [argument for argument in arguments if argument != DETACH_FLAG]
        log = self.planner.log_file("launcher")
        code = control.detach([*self.setup.entry, *again], self.folder, log, Display())
        record = self.folder.read()
        if code == 0 and record is not None and record.urls:
            tell_administrator(Display(), record.urls[0], self.settings)
        return code

    def _already_running(self) -> int:
        launcher, record = self.folder.launcher(), self.folder.read()
        display = Display()
        who = f"process {launcher.pid}" if launcher else "another process"
        display.trouble(f"It is already running here ({who}).")
        for url in record.urls if record else []:
            display.say(f"  {url}")
        display.say("  look: ./start_all.sh --status   stop: ./start_all.sh --stop")
        return EXIT_FAILED


def _is_standard_output(path: Path) -> bool:
    """Whether what is printed goes to this file anyway, as in the background."""
    try:
        return os.path.samestat(os.fstat(STANDARD_OUTPUT), path.stat())
    except OSError:
        return False
