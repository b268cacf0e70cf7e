"""What the launcher says about the system on disk, for `--status`, `--stop` and `--detach`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from core.files import write_file
from launcher.pids import ProcessId, identify, read_pid_file, write_pid_file

STATE_FILE = "state.json"
LAUNCHER_PID_FILE = "launcher.pid"
LOCK_FILE = "lock"


class Phase(StrEnum):
    """Where the system, or one program of it, is in its life."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"  # ended the start, or died too often and waits for its next try
    STOPPING = "stopping"
    STOPPED = "stopped"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class ProgramRecord(_Record):
    """One program.

    Attributes:
        note: what it is doing or why it failed.
        restarts: since the launcher started.
    """

    name: str
    phase: Phase
    pid: int | None
    url: str
    runs_on: str
    log: Path
    restarts: int = 0
    note: str = ""


class SystemRecord(_Record):
    """The whole system."""

    phase: Phase
    started: datetime
    urls: list[str]
    programs: list[ProgramRecord]


class AlreadyRunningError(Exception):
    """Another launcher uses the same data folder."""


class RunFolder:
    """The launcher's files; one launcher at a time holds them."""

    def __init__(self, path: Path) -> None:
        """Name the folder; nothing is written yet.

        Args:
            path: of the folder.
        """
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for one launcher; the kernel lets go when the process ends.

        Raises:
            AlreadyRunningError: another launcher holds it.
            OSError: it cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunningError from None
            yield
        finally:
            os.close(lock)

    def announce(self) -> None:
        """Write down this process as the launcher."""
        write_pid_file(self.path / LAUNCHER_PID_FILE, identify(os.getpid()))

    def launcher(self) -> ProcessId | None:
        """Return the running launcher, None if there is none."""
        return read_pid_file(self.path / LAUNCHER_PID_FILE)

    def leftovers(self) -> dict[str, ProcessId]:
        """Return programs that outlived their launcher, by name."""
        found = {}
        for path in sorted(self.path.glob("*.pid")):
            process = read_pid_file(path)
            if process and path.name != LAUNCHER_PID_FILE:
                found[path.stem] = process
        return found

    def clear(self) -> None:
        """Remove process ids and state."""
        for path in [*self.path.glob("*.pid"), *self.path.glob("*.tmp"), self.path / STATE_FILE]:
            path.unlink(missing_ok=True)

    def write(self, record: SystemRecord) -> None:
        """Write the state, whole or not at all."""
        write_file(self.path / STATE_FILE, record.model_dump_json(indent=2).encode())

    def read(self) -> SystemRecord | None:
        """Return the state, None if there is none."""
        try:
            return SystemRecord.model_validate_json((self.path / STATE_FILE).read_bytes())
        except (OSError, ValidationError):
            return None
