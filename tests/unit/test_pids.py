"""Process ids on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.machine import PortError, check_port
from launcher.processes import ProcessId, new_pid_file, read_pid_file
from tests.service.launched import eventually

WITHOUT_FIRST_THREAD = """
import ctypes, os, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=sys.stdin.read).start()
print(server.getsockname()[1], flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def started(path: Path, *program: str) -> subprocess.Popen[str]:
    """Start a Python program that keeps its pid file locked, with pipes to talk to it."""
    with new_pid_file(path) as descriptor:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[descriptor],
        )
        os.write(descriptor, str(process.pid).encode())
    return process


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "worker_0.pid"


@pytest.fixture
def sleeper(path: Path) -> Iterator[subprocess.Popen[str]]:
    process = started(path, "input()")
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_read_back_while_it_lives(path: Path, sleeper: subprocess.Popen[str]) -> None:
    process = read_pid_file(path)
    assert process == ProcessId(sleeper.pid, path) and process.is_alive
    assert path.read_text() == str(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert read_pid_file(path) is None and not process.is_alive


def test_a_zombie_is_not_alive(path: Path, sleeper: subprocess.Popen[str]) -> None:
    process = read_pid_file(path)
    assert process is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_alive
    process.send(signal.SIGTERM)  # to nobody


@pytest.mark.skipif(sys.platform != "linux", reason="the system call is Linux's")
def test_a_process_lives_as_long_as_its_last_thread(path: Path) -> None:
    headless = started(path, WITHOUT_FIRST_THREAD)
    assert headless.stdin and headless.stdout
    with headless.stdin, headless.stdout:
        port = int(headless.stdout.readline())
        process = read_pid_file(path)
        assert process is not None
        eventually("its first thread ended", lambda: _state_of(headless.pid) == "Z")
        assert process.is_alive
        with pytest.raises(PortError):
            check_port("127.0.0.1", port)
        process.send(signal.SIGKILL)
        eventually("all ended", lambda: not process.is_alive)
        check_port("127.0.0.1", port)
    headless.wait()


def test_a_number_that_was_given_away_again_is_left_alone(
    tmp_path: Path, path: Path, sleeper: subprocess.Popen[str]
) -> None:
    (tmp_path / "ended.pid").write_text(str(sleeper.pid))
    for stranger in (ProcessId(sleeper.pid, tmp_path / "ended.pid"), ProcessId(1, path)):
        assert not stranger.is_alive
        stranger.send(signal.SIGKILL)
        stranger.kill_group()
    assert sleeper.poll() is None


def test_its_children_are_not_taken_for_it(path: Path) -> None:
    parent = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'input()']); input()"
    with started(path, parent) as process:
        assert read_pid_file(path) == ProcessId(process.pid, path)
        process.kill()
        process.wait()
        assert read_pid_file(path) is None


def test_a_file_that_means_no_process(tmp_path: Path) -> None:
    assert read_pid_file(tmp_path / "missing.pid") is None
    with new_pid_file(tmp_path / "x.pid"):
        assert read_pid_file(tmp_path / "x.pid") is None  # nothing is written yet
    (tmp_path / "x.pid").write_text("nonsense")
    assert read_pid_file(tmp_path / "x.pid") is None
