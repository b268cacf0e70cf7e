"""Child processes, pid files and log files."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from config import PROJECT_ROOT
from core.files import SAFE_FLAGS, opened
from core.schemas.worker import RESTART_EXIT_CODE

BOUND_EXEC = Path(__file__).with_name("bound_exec.py")
BYTES_PER_MB = 1_000_000
TAIL_BYTES = 16_384
TAIL_LINES = 25
PID_BYTES = 20  # more than any process id has digits


async def until(is_true: Callable[[], bool], poll_s: float, limit_s: float = math.inf) -> bool:
    """Poll a condition; return whether it became true within the limit."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + limit_s
    while not is_true():
        if loop.time() > deadline_s:
            return False
        await asyncio.sleep(poll_s)
    return True


def bound_command(
    command: Sequence[str], number: signal.Signals = signal.SIGTERM
) -> tuple[str, ...]:
    """Return a command whose process is sent a signal when this process has ended."""
    parent = str(os.getpid())
    return (sys.executable, "-I", "-S", str(BOUND_EXEC), parent, str(int(number)), *command)


@dataclass(frozen=True)
class ProcessId:
    """A process that holds the lock of its pid file, which guards against reused pids."""

    pid: int
    pid_file: Path

    @property
    def is_alive(self) -> bool:
        return read_pid_file(self.pid_file) == self

    def send(self, number: signal.Signals) -> None:
        """Send a signal unless the process has ended."""
        with suppress(ProcessLookupError):
            if self.is_alive:
                os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process, and its group if it leads one."""
        with suppress(ProcessLookupError):
            if self.is_alive:
                kill = os.killpg if os.getpgid(self.pid) == self.pid else os.kill
                kill(self.pid, signal.SIGKILL)


@contextmanager
def new_pid_file(path: Path) -> Iterator[int]:
    """Yield the descriptor of a new, locked file for a process id; OSError if it cannot be made.

    A process that inherits the descriptor holds the lock until its last thread has ended, which is
    when its ports and its memory are free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # an earlier process holds the lock of the earlier file
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE_FLAGS) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor


def read_pid_file(path: Path) -> ProcessId | None:
    """Return the process that holds the lock of a file, or None if it has ended."""
    try:
        with opened(path, os.O_RDONLY | SAFE_FLAGS) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return ProcessId(int(os.read(descriptor, PID_BYTES)), path)
    except (OSError, ValueError):  # it is missing, or its process id is not written yet
        pass
    return None


async def end_processes(processes: Collection[ProcessId], poll_s: float, limit_s: float) -> None:
    """Stop processes that are not children: SIGTERM, then SIGKILL after the limit."""

    def have_ended() -> bool:
        return not any(process.is_alive for process in processes)

    for process in processes:
        process.send(signal.SIGTERM)
    if not await until(have_ended, poll_s, limit_s):
        for process in processes:
            process.kill_group()
        await until(have_ended, poll_s, limit_s)


@dataclass(frozen=True)
class LogFile:
    """A log file that a program appends to directly, so that the launcher cannot block it.

    Rotation therefore copies and truncates; `path.1` is the newest of `kept` older files.
    """

    path: Path
    max_bytes: int
    kept: int

    def open(self) -> FileIO:
        """Open the file in append mode, which remains correct after truncation."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.rotate()
        return FileIO(self.path, "ab")

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def rotate(self) -> None:
        """Rotate the file if it is too long.

        Lines written between the copy and the truncation are lost: a window of microseconds.
        OSError if the copy could not be written. The file is truncated all the same, so that it
        cannot fill the disk.
        """
        if self.size() < self.max_bytes:
            return
        older = [self.path.with_name(f"{self.path.name}.{n}") for n in range(1, self.kept + 1)]
        for newer, target in reversed(list(zip(older, older[1:], strict=False))):
            if newer.exists():
                newer.replace(target)
        try:
            shutil.copyfile(self.path, older[0])
        finally:
            os.truncate(self.path, 0)

    def tail(self, since: int = 0) -> list[str]:
        """Return the last lines written after the file had `since` bytes."""
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                begin = since if since <= end else 0  # rotated in the meantime
                file.seek(max(begin, end - TAIL_BYTES))
                text = file.read(TAIL_BYTES).decode("utf8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-TAIL_LINES:]


class Child:
    """A child process in its own process group, which Ctrl-C does not reach."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: LogFile,
        orphaned: signal.Signals = signal.SIGTERM,
        inherited: Collection[int] = (),
    ) -> None:
        """Start it, or raise an OSError; `orphaned` is sent to it when this process ends.

        It inherits no descriptors but `inherited`.
        """
        with log.open() as output:
            self._log, self._log_begin = log, log.size()
            self._process = subprocess.Popen(
                bound_command(command, orphaned),
                env=dict(environment),
                cwd=PROJECT_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; the rest of its process group is then killed."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._kill_group()
        return self._process.returncode is not None

    @property
    def how_it_ended(self) -> str:
        code = self._process.returncode
        if code is None:
            return ""
        if code == RESTART_EXIT_CODE:
            return "requested a restart"
        if code >= 0:
            return f"exited with code {code}"
        known = {int(number): number.name for number in signal.Signals}
        return f"was killed by {known.get(-code, f'signal {-code}')}"

    @property
    def succeeded(self) -> bool:
        return self._process.returncode == 0

    @property
    def requested_restart(self) -> bool:
        return self._process.returncode == RESTART_EXIT_CODE

    def last_lines(self) -> list[str]:
        return self._log.tail(self._log_begin)

    def terminate(self) -> None:
        """Send SIGTERM to the program only; it stops its own child processes."""
        if not self.has_ended:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if not self.has_ended:
            self._kill_group()

    def _kill_group(self) -> None:
        # The group may be empty; macOS raises the second.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
