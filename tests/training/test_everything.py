"""Commands, scheduling and failures of the whole recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

from training.nano import __main__ as recipe
from training.nano.everything import Machine, Stage, run, stages
from training.nano.vision import __main__ as vision
from training.nano.voice import __main__ as voice

PROGRAMS: Mapping[str, typer.Typer] = {
    "training.nano": recipe.app,
    "training.nano.vision": vision.app,
    "training.nano.voice": voice.app,
}
LAUNCHER = ("torch.distributed.run", "--standalone", "--nproc-per-node", "6", "-m")


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_every_stage_is_an_existing_command(gpus: int, tmp_path: Path) -> None:
    machine = Machine(cores=16, gpus=gpus)
    planned = stages(tmp_path / "my inputs", tmp_path, tmp_path / "out", 30.0, machine)
    known: set[str] = set()
    for stage in planned:
        assert set(stage.after) <= known, stage.name
        known.add(stage.name)
        command = stage.command
        if command[: len(LAUNCHER)] == LAUNCHER:
            command = command[len(LAUNCHER) :]
        program, name, *arguments = command
        group = typer.main.get_command(PROGRAMS[program])
        assert isinstance(group, TyperGroup)
        group.commands[name].make_context(name, arguments)  # raises on what it does not know
    assert (gpus == 8) == any(stage.command[0] == LAUNCHER[0] for stage in planned)


@pytest.mark.parametrize(
    ("program", "command", "half", "named"),
    [
        (recipe, ["export", "--weights", "w", "--out", "o"], ["--voice", "v"], "--recordings"),
        (voice, ["tts", "--data", "d", "--out", "o"], ["--bank", "b"], "--encoder"),
    ],
)
def test_half_of_a_pair_of_options_is_refused(
    program: ModuleType, command: list[str], half: list[str], named: str
) -> None:
    result = CliRunner().invoke(program.app, [*command, *half])
    assert result.exit_code == 2 and named in result.output


def test_stages_concurrent_with_listen_share_devices() -> None:
    assert [Machine(4, 0).device(n) for n in range(3)] == ["cpu"] * 3
    assert [Machine(4, 1).device(n) for n in range(3)] == ["cuda:0"] * 3
    assert [Machine(4, 4).device(n) for n in range(3)] == ["cuda:2", "cuda:3", "cuda:3"]


def test_dependents_of_a_failure_are_skipped_and_a_second_run_resumes(tmp_path: Path) -> None:
    missing = tmp_path / "it.py"
    planned = [
        Stage("first", (), ("platform",)),
        Stage("broken", ("first",), ("py_compile", str(missing))),
        Stage("last", ("broken",), ("platform",)),
        Stage("independent", ("first",), ("platform",)),
    ]
    assert run(planned, tmp_path) == ["broken", "last"]
    log = tmp_path / "logs" / "first.log"
    printed = log.read_text()
    missing.write_text("")
    assert run(planned, tmp_path) == []
    assert log.read_text() == printed  # it was not run again
