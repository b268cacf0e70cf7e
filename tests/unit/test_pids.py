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
from launcher.processes import ProcessId, _start_time, read_pid_file, write_pid_file
from tests.service.launched import eventually

WITHOUT_FIRST_THREAD = """
import ctypes, os, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=sys.stdin.read).start()
print(server.getsockname()[1], flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""


def identify(pid: int) -> ProcessId:
    return ProcessId(pid, _start_time(pid))


def _state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_written_process_is_read_back_while_it_lives(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    path = tmp_path / "run" / "worker_0.pid"
    write_pid_file(path, sleeper.pid)
    assert read_pid_file(path) == identify(sleeper.pid)
    assert path.read_text().split()[0] == str(sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    assert read_pid_file(path) is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[bytes]) -> None:
    process = identify(sleeper.pid)
    assert process.is_alive
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not process.is_alive
    process.send(signal.SIGTERM)  # to nobody


@pytest.mark.skipif(sys.platform != "linux", reason="the system call is Linux's")
def test_a_process_lives_as_long_as_its_last_thread() -> None:
    headless = subprocess.Popen(
        [sys.executable, "-S", "-c", WITHOUT_FIRST_THREAD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert headless.stdin and headless.stdout
    with headless.stdin, headless.stdout:
        port = int(headless.stdout.readline())
        process = identify(headless.pid)
        eventually("its first thread ended", lambda: _state_of(headless.pid) == "Z")
        assert process.is_alive
        with pytest.raises(PortError):
            check_port("127.0.0.1", port)
        process.send(signal.SIGKILL)
        eventually("all ended", lambda: not process.is_alive)
        check_port("127.0.0.1", port)
    headless.wait()


def test_a_number_that_was_given_away_again_is_left_alone(
    sleeper: subprocess.Popen[bytes],
) -> None:
    stranger = ProcessId(sleeper.pid, "1")
    assert not stranger.is_alive
    stranger.send(signal.SIGKILL)
    stranger.kill_group()
    assert sleeper.poll() is None


@pytest.mark.parametrize("text", ["", "nonsense", "12 ", "-1 5", "999999999 5"])
def test_a_file_that_means_no_process(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.pid"
    path.write_text(text)
    assert read_pid_file(path) is None
    assert read_pid_file(tmp_path / "missing.pid") is None
