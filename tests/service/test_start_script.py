"""`start_all.sh` before the launcher runs: what it installs, and when."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.launched import LIMIT_S, Launched, eventually
from tests.source_tree import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    """A folder to launch from; nothing of it is left running."""
    system = Launched(tmp_path)
    yield system
    system.close()


def test_help_installs_nothing(launched: Launched) -> None:
    project = launched.folder / "project"
    project.mkdir()
    shutil.copy(ROOT / "start_all.sh", project)
    assert launched.run(command=(str(project / "start_all.sh"), "--help")).wait(LIMIT_S) == 0
    assert "--status | --stop | --help\n" in launched.output


@pytest.mark.parametrize("name", ["start_all.sh", "talk.sh"])
def test_a_symbolic_link_starts_the_project_that_it_points_to(tmp_path: Path, name: str) -> None:
    project, link = tmp_path / "a project", tmp_path / "live"
    for place, text in ((".venv/bin/python", 'echo "$PYTHONPATH"'), ("scripts/setup.sh", "")):
        program = project / place
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/bash\n{text}\n")
        program.chmod(0o755)
    shutil.copy(ROOT / name, project)
    link.symlink_to(project / name)
    environment = {**os.environ, "PYTHONPATH": ""}
    said = subprocess.run([str(link), "--status"], env=environment, capture_output=True, text=True)
    assert (said.stdout, said.stderr) == (f"{project.resolve()}\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_installation_leaves_no_installer(
    launched: Launched, number: signal.Signals
) -> None:
    project = launched.folder / "project"
    (project / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "start_all.sh", project)
    setup = project / "scripts" / "setup.sh"
    setup.write_text(f"#!/bin/bash\necho begun >>{launched.trace_file}\nsleep 60\n")
    setup.chmod(0o755)
    process = launched.run(command=(str(project / "start_all.sh"),))
    eventually("it installs", lambda: launched.trace == ["begun"])
    process.send_signal(number)
    assert process.wait(LIMIT_S) == (130 if number is signal.SIGINT else 143)
    eventually("all ended", lambda: not launched.processes())


FAKE_PYTHON = """\
#!/bin/bash
case "$*" in
*"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python; [ ! -e interrupted ] || exit 1 ;;
*"-m pip --version") [ ! -e interrupted ] ;;
*"-m pip install"*) echo "begin $*" >>log; sleep 0.5; echo end >>log ;;
--version) echo Python ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A clone whose Python makes an environment in no time, and whose pip writes to `log`."""
    (tmp_path / "scripts").mkdir()
    for name in ("setup.sh", "one_at_a_time.sh"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def set_up(project: Path, extras: str, stderr: int | None = None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHON": str(project / "python")}
    command = [str(project / "scripts" / "setup.sh"), extras]
    return subprocess.Popen(command, env=environment, stderr=stderr)


def installed(project: Path) -> list[str]:
    """Return the extras of each installation; none began before the one before had ended."""
    lines = (project / "log").read_text().splitlines()
    assert lines[1::2] == ["end"] * (len(lines) // 2)
    return [line.partition("[")[2].rstrip("]") for line in lines[::2]]


def test_two_set_ups_at_once_install_one_after_the_other_and_nothing_twice(project: Path) -> None:
    asked = ["gateway", "gateway", "gateway,dev"]
    assert [one.wait(LIMIT_S) for one in [set_up(project, extras) for extras in asked]] == [0] * 3
    assert installed(project) in (["gateway", "gateway,dev,gateway"], ["gateway,dev"])
    assert set_up(project, "dev").wait(LIMIT_S) == 0  # is there
    assert len(installed(project)) < 3 and not (project / ".venv" / "packages.lock").is_symlink()


def test_an_environment_whose_making_was_interrupted_is_completed(project: Path) -> None:
    (project / "interrupted").touch()
    assert set_up(project, "gateway").wait(LIMIT_S) == 1
    (project / "interrupted").unlink()
    assert set_up(project, "gateway").wait(LIMIT_S) == 0
    assert installed(project) == ["gateway"]


def test_an_upgrade_installs_what_was_there_as_well(project: Path) -> None:
    assert set_up(project, "gateway,webrtc").wait(LIMIT_S) == 0
    (project / "constraints.txt").write_text("numpy==2\n")
    assert set_up(project, "gateway").wait(LIMIT_S) == 0
    assert installed(project) == ["gateway,webrtc", "gateway,gateway,webrtc"]


def test_who_waits_for_another_set_up_says_so(project: Path) -> None:
    lock = project / ".venv" / "packages.lock"
    lock.parent.mkdir()
    lock.symlink_to(str(os.getpid()))
    waiting = set_up(project, "gateway", stderr=subprocess.PIPE)
    assert waiting.stderr is not None
    assert (
        waiting.stderr.readline()
        == f"Waiting for process {os.getpid()}, which holds .venv/packages.lock\n".encode()
    )
    lock.unlink()
    assert waiting.wait(LIMIT_S) == 0 and installed(project) == ["gateway"]


def test_a_lock_of_its_own_process_id_is_stale(project: Path) -> None:
    """As in a container that was killed and starts again: its process ids repeat."""
    script = (
        "mkdir .venv; ln -s $$ .venv/packages.lock; "
        ". scripts/one_at_a_time.sh; one_at_a_time packages"
    )
    assert subprocess.run(["bash", "-c", script], cwd=project, timeout=LIMIT_S).returncode == 0


SLOW_READLINK = """\
#!/bin/bash
PATH=${PATH#*:}
readlink "$@"
[ -e read ] || { touch read; until [ -e go ]; do sleep 0.05; done; }
"""


def test_of_two_that_see_a_dead_holder_only_one_takes_the_lock(project: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    (project / ".venv").mkdir()
    (project / ".venv" / "packages.lock").symlink_to(str(dead.pid))
    slow = project / "slow"
    slow.mkdir()
    (slow / "readlink").write_text(SLOW_READLINK)
    (slow / "readlink").chmod(0o755)

    def take(path: str) -> subprocess.Popen[str]:
        script = ". scripts/one_at_a_time.sh; one_at_a_time packages; echo held; read -r || true"
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=project,
            env={**os.environ, "PATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    late = take(f"{slow}:{os.environ['PATH']}")
    eventually("it has seen the dead holder", (project / "read").exists)
    with take(os.environ["PATH"]) as first, late:
        assert first.stdout and late.stdout
        assert first.stdout.readline() == "held\n"
        (project / "go").touch()
        said = late.stdout.readline()
        first.communicate("\n", LIMIT_S)
        assert said == f"Waiting for process {first.pid}, which holds .venv/packages.lock\n"
        assert late.communicate("\n", LIMIT_S)[0] == "held\n"
    assert [path.name for path in (project / ".venv").iterdir()] == []
