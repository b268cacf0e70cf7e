"""Process ids on disk, with what tells a process from a later one that got the same number."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from core.files import write_file

# source: proc(5), /proc/pid/stat, counted from 1
STATE_FIELD = 3
THREADS_FIELD = 20
START_TIME_FIELD = 22
PS_LIMIT_S = 5


@dataclass(frozen=True)
class ProcessId:
    """One process, not merely its number.

    Attributes:
        pid: the number.
        started: when it started, in a form that only compares.
    """

    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """A thread of it runs; a number given to another process since does not count."""
        return _start_time(self.pid) == self.started != ""

    def send(self, signal_number: signal.Signals) -> bool:
        """Send a signal; return whether the process was there to get it."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, signal_number)
        except ProcessLookupError:
            return False
        return True

    def kill_group(self) -> None:
        """Kill the process and what it started, if it leads a group of its own."""
        if not self.is_alive:
            return
        try:
            if os.getpgid(self.pid) == self.pid:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def identify(pid: int) -> ProcessId:
    """Return the identity of a running process."""
    return ProcessId(pid, _start_time(pid))


def write_pid_file(path: Path, process: ProcessId) -> None:
    """Write a process id: the number, then when it started."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, f"{process.pid} {process.started}\n".encode("ascii"))


def read_pid_file(path: Path) -> ProcessId | None:
    """Return the process of a file if it is still alive, else None."""
    try:
        number, _, started = path.read_text(encoding="ascii").strip().partition(" ")
        process = ProcessId(int(number), started)
    except (OSError, ValueError):
        return None
    return process if process.is_alive else None


def _start_time(pid: int) -> str:
    """Return when a process started, empty if there is none or all of its threads have ended."""
    if sys.platform == "linux":
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf8", errors="replace")
        except OSError:
            return ""
        # The name in parentheses may hold anything, so fields are counted from its end.
        fields = stat.rpartition(")")[2].split()
        # A process whose first thread has ended holds its ports and its memory until the last has.
        is_first_over = fields[STATE_FIELD - 3] in {"Z", "X"}
        is_over = is_first_over and int(fields[THREADS_FIELD - 3]) <= 1
        return "" if is_over else fields[START_TIME_FIELD - 3]
    answer = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        timeout=PS_LIMIT_S,
        check=False,
    )
    state, _, started = answer.stdout.strip().partition(" ")
    return "" if state.startswith("Z") else started.strip().replace(" ", "_")
