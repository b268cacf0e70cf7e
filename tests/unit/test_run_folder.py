"""The launcher's files, from the start of one launcher to that of the next."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.processes import new_pid_file
from launcher.run_folder import LAUNCHER_PID_FILE, STATE_FILE, AlreadyRunningError, RunFolder


def test_a_launcher_is_known_from_the_moment_it_holds_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    with folder.held() as was_left:
        launcher = folder.launcher()
        assert launcher is not None and launcher.pid == os.getpid()
        assert not was_left
        with pytest.raises(AlreadyRunningError), RunFolder(tmp_path / "run").held():
            pass
        assert folder.launcher() == launcher
    assert [path.name for path in folder.path.iterdir()] == ["lock"]


def test_files_of_a_killed_launcher_are_noticed_and_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / LAUNCHER_PID_FILE).write_text("1 2\n")
    (tmp_path / STATE_FILE).write_text("of the killed one")
    with RunFolder(tmp_path).held() as was_left:
        assert was_left and not (tmp_path / STATE_FILE).exists()


def test_a_program_that_could_not_be_ended_stays_known(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    command = [sys.executable, "-S", "-c", "input()"]
    with new_pid_file(tmp_path / "worker_0.pid") as descriptor:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[descriptor])
        os.write(descriptor, str(child.pid).encode())
    (tmp_path / "worker_1.pid").write_text("1")  # of one that has ended
    with child:
        with folder.held():
            pass
        assert list(folder.leftovers()) == ["worker_0"]
        assert not (tmp_path / "worker_1.pid").exists()
        child.kill()
    with folder.held():
        assert folder.leftovers() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
