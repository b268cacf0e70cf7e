"""The command line `minicpmo-live`, and what it hands on to other programs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import minicpmo_live.__main__ as command
from launcher.command import HELLO, app
from settings.fields import install_command
from tests.source_tree import ROOT


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (["bench"], 0, "benchmarks: "),
        (["bench", "nothing"], 2, "benchmarks: "),
        (["download", "no/such/thing"], 1, "no/such/thing"),
        (["serve", "--port", "0"], 2, "--port"),
        (["serve", "--ray", "auto", "--now"], 2, "--now needs --ray ADDRESS and --stop"),
        (["serve", "--workers", "1:2"], 2, "--workers MIN:MAX needs --ray ADDRESS"),
        (["doctor", "--config", "/no/such.json"], 2, "/no/such.json"),
    ],
)
def test_the_command_line(arguments: list[str], status: int, expected: str) -> None:
    done = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, arguments)
    assert (done.exit_code, expected in done.output) == (status, True), done.output


def test_a_folder_is_named_as_the_setting_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["download", "./a folder"])
    variable = shlex.split(done.output.splitlines()[-1])[0]
    assert variable == f"OMNI_MODEL_MODEL_PATH={folder.resolve()}", done.output


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        (["bench", "relay", "--units", "3"], ["benchmarks.relay", "--units", "3"]),
        (
            ["talk", "a.wav", "--mode", "streaming", "--checkpoint=c"],
            "core.talk --audio a.wav --mode duplex --out reply.wav --mode streaming --checkpoint=c",
        ),
        (
            ["talk", "--checkpoint", "c"],
            f"core.talk --audio {HELLO} --mode duplex --out reply.wav --checkpoint c",
        ),
        (["talk", "-h"], f"core.talk --audio {HELLO} --mode duplex --out reply.wav --help"),
        (["talk", "--help"], f"core.talk --audio {HELLO} --mode duplex --out reply.wav --help"),
    ],
)
def test_another_program_gets_what_is_its_own(
    arguments: list[str], program: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, line: started.append(line))
    done = CliRunner().invoke(app, arguments)
    usage = "minicpmo-live talk [AUDIO-OR-VIDEO] [OPTIONS]"
    assert (usage in done.output) == ("--help" in program)
    wanted = program.split() if isinstance(program, str) else program
    assert started == [[sys.executable, "-P", "-m", *wanted]]


@pytest.mark.parametrize("is_clone", [True, False])
def test_without_the_server_it_says_what_to_install(
    is_clone: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    server = ROOT if is_clone else tmp_path / "server"
    if not is_clone:
        server.mkdir()
        monkeypatch.setattr(command, "PACKAGE", tmp_path)
    monkeypatch.setattr("settings.fields.IS_INSTALLED", not is_clone)
    monkeypatch.setenv("PYTHONPATH", "before")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "launcher.command", None)
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == command.MISSING
    assert capsys.readouterr().err.endswith(f": {install_command('worker')}\n")
    assert sys.path[0] == str(server)
    assert os.environ["PYTHONPATH"] == f"{server}{os.pathsep}before"
