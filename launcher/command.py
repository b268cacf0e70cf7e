"""The command line `minicpmo-live`: serve, talk, doctor, bench, download."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from config import PROJECT_ROOT, Settings
from launcher import doctor
from launcher.cli import EXIT_USAGE, Setup, read_settings, start_command
from launcher.default_models import DefaultModels
from launcher.display import Display
from launcher.machine import cpu_count, find_gpus
from launcher.plan import COMMAND, Options, Planner, Programs
from launcher.supervisor import Pace, StartError
from launcher.system import EXIT_FAILED
from MiniCPMO45.loading.checkpoint_source import HUGGINGFACE_ID, CheckpointError, find_checkpoint
from settings.embedded import CASCADE_FOLDER

HELLO: Final = PROJECT_ROOT / "examples" / "hello.wav"
BENCHMARKS: Final = PROJECT_ROOT / "benchmarks"
TALK_DEFAULTS: Final = """\
It passes the options on to the program described below. None is required: --audio is
examples/hello.wav, --out is reply.wav, --mode is duplex, and --checkpoint is the variable
CHECKPOINT, or the embedded model."""
# Arguments of the started program are passed on unchanged.
PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}

ConfigFile = Annotated[
    Path | None, typer.Option(help="Configuration file.", show_default="config.json, if any")
]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Real-time conversation with MiniCPM-o 4.5.",
)
app.command("serve")(start_command(Setup()))


@app.command(context_settings=PASSED_ON, add_help_option=False)
def talk(context: typer.Context) -> None:
    """Converse with a recording, [AUDIO-OR-VIDEO] and options, without a server."""
    sound, flags = _first_word(context)
    given = ["--audio", sound or str(HELLO), "--mode", "duplex", "--out", "reply.wav"]
    if {"-h", "--help"} & {*flags}:
        flags = ["--help"]
        typer.echo(f"Usage: minicpmo-live talk [AUDIO-OR-VIDEO] [OPTIONS]\n\n{TALK_DEFAULTS}")
    elif "--checkpoint" not in [flag.partition("=")[0] for flag in flags]:
        checkpoint = os.environ.get("CHECKPOINT")
        given += ["--checkpoint", checkpoint or str(_embedded(read_settings(None)))]
    _become("core.talk", [*given, *flags])  # later flags override earlier ones


@app.command("doctor")
def examine(config: ConfigFile = None) -> None:
    """Report what this machine can run, what is missing, and how to fix it."""
    findings = doctor.examine(_planner(read_settings(config)), find_gpus(os.environ))
    doctor.show(findings)
    raise typer.Exit(EXIT_FAILED if doctor.has_errors(findings) else 0)


@app.command(context_settings=PASSED_ON, add_help_option=False)
def bench(context: typer.Context) -> None:
    """Run benchmark NAME of benchmarks/README.md with its options; without NAME, list them."""
    name, flags = _first_word(context)
    files = [*BENCHMARKS.glob("*.py"), *BENCHMARKS.glob("*/__main__.py")]
    names = {
        path.parent.name if path.stem == "__main__" else path.stem
        for path in files
        if '__name__ == "__main__"' in path.read_text(encoding="utf8")
    }
    if name not in names:
        typer.echo(f"benchmarks: {', '.join(sorted(names))}", err=bool(name))
        raise typer.Exit(EXIT_USAGE if name else 0)
    _become(f"benchmarks.{name}", flags)


@app.command()
def download(
    what: Annotated[str, typer.Argument(help="Hub id, `nano`, or `cascade`.")] = HUGGINGFACE_ID,
) -> None:
    """Download a checkpoint before the first start."""
    settings = read_settings(None)
    if what == "cascade":
        _become("core.cascade.assets", [str(settings.service.data_dir / CASCADE_FOLDER)])
    if what == "nano":
        folder = _embedded(settings)
    else:
        try:
            folder = find_checkpoint(what)
        except CheckpointError as error:
            _refuse(str(error))
    typer.echo(f"{folder}")
    if what != "nano":
        # The setting is relative to another folder than the command line.
        place = shlex.quote(str(folder.resolve())) if Path(what).expanduser().is_dir() else what
        typer.echo(f"OMNI_MODEL_MODEL_PATH={place} {COMMAND}")


def _first_word(context: typer.Context) -> tuple[str, list[str]]:
    if context.args and not context.args[0].startswith("-"):
        return context.args[0], context.args[1:]
    return "", context.args


def _planner(settings: Settings) -> Planner:
    return Planner(settings, Options(), Programs(), os.environ, cpu_count())


def _embedded(settings: Settings) -> Path:
    try:
        return asyncio.run(DefaultModels(_planner(settings), Display(), Pace()).ensure_checkpoint())
    except (StartError, OSError) as error:
        _refuse(str(error))


def _refuse(sentence: str) -> NoReturn:
    typer.echo(sentence, err=True)
    raise typer.Exit(EXIT_FAILED)


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Replace this process, so that the program receives signals and the terminal directly."""
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])


if __name__ == "__main__":
    app(prog_name="minicpmo-live")
