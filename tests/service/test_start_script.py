"""`start_all.sh` before the launcher runs: what it installs, and when."""

from __future__ import annotations

import shutil
import signal
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
