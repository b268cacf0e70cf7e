"""System packages are installed after a question, or without one where CI=true; never else."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from config import PROJECT_ROOT

FIND = PROJECT_ROOT / "scripts" / "find_chromium.sh"
PROGRAMS = ("bash", "cp", "dirname", "env", "grep")


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a Debian without Chromium, whose apt-get puts one on the PATH."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found
        (bin_folder / name).symlink_to(found)
    (tmp_path / "chromium").write_text("#!/bin/sh\necho Chromium 150.0\n")
    fakes = {
        "id": "echo 0",
        "apt-get": f'echo "$*" >>{tmp_path}/asked\n'
        f'case "$*" in *install*chromium*) cp {tmp_path}/chromium {bin_folder} ;; esac',
    }
    for name, body in fakes.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (bin_folder / name).chmod(0o755)
    (tmp_path / "chromium").chmod(0o755)
    return {"PATH": str(bin_folder)}


def asked(machine: dict[str, str]) -> str:
    log = Path(machine["PATH"]).parent / "asked"
    return log.read_text() if log.exists() else ""


def in_a_terminal(machine: dict[str, str], answer: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a terminal of its own and type an answer."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer.encode())
        return subprocess.run(
            [FIND], env=machine, stdin=theirs, stderr=theirs, stdout=subprocess.PIPE, text=True
        )
    finally:
        os.close(theirs)
        os.close(ours)


def test_without_a_terminal_nothing_is_installed(machine: dict[str, str]) -> None:
    done = subprocess.run(
        [FIND], env=machine, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 1 and asked(machine) == ""
    assert "apt install chromium" in done.stderr


def test_ci_installs_without_a_question(machine: dict[str, str]) -> None:
    environment = {**machine, "CI": "true"}
    done = subprocess.run(
        [FIND], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.strip() == f"{machine['PATH']}/chromium"
    assert "install --yes --no-install-recommends chromium" in asked(machine)


@pytest.mark.parametrize("answer", ["y\n", "n\n", "\n"])
def test_a_terminal_is_asked(machine: dict[str, str], answer: str) -> None:
    done = in_a_terminal(machine, answer)
    is_agreed = answer == "y\n"
    assert (done.returncode == 0) is is_agreed
    assert ("install" in asked(machine)) is is_agreed


def test_to_look_installs_nothing(machine: dict[str, str]) -> None:
    done = subprocess.run(
        [FIND, "--look-only"], env={**machine, "CI": "true"}, capture_output=True, text=True
    )
    assert done.returncode == 1 and asked(machine) == ""
