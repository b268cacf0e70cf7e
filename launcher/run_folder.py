"""The launcher's files: lock, pid files, and the state that other commands read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ValidationError

from core.files import atomic_write, locked, write_all
from launcher.processes import ProcessId, new_pid_file, read_pid_file

STATE_FILE = "state.json"
LAUNCHER_PID_FILE = "launcher.pid"
LOCK_FILE = "lock"


class Phase(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"  # failed to start, or too often; retried after a long delay
    STOPPING = "stopping"
    STOPPED = "stopped"


class ProgramRecord(BaseModel, frozen=True):
    name: str
    phase: Phase
    pid: int | None
    url: str
    runs_on: str
    log: Path
    restarts: int = 0
    note: str = ""


class SystemRecord(BaseModel, frozen=True):
    phase: Phase
    started: datetime
    urls: list[str]
    programs: list[ProgramRecord]


class AlreadyRunningError(Exception):
    """Another launcher uses the same data folder."""


class RunFolder:
    """The folder of these files, locked by one launcher at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Be this folder's launcher; the kernel releases the lock when the process ends.

        Yields whether the last launcher ended without removing its files. They are removed at the
        end, but for the pid files of programs that could not be ended. AlreadyRunningError if
        another launcher holds it; OSError if the folder is not writable.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / LOCK_FILE, waits=False))
            except BlockingIOError:
                raise AlreadyRunningError from None
            stack.callback(self._clear)
            pid_file = self.path / LAUNCHER_PID_FILE
            was_left = pid_file.exists()
            (self.path / STATE_FILE).unlink(missing_ok=True)  # it must not be taken for ours
            descriptor = stack.enter_context(new_pid_file(pid_file))
            write_all(descriptor, str(os.getpid()).encode())
            yield was_left

    def launcher(self) -> ProcessId | None:
        return read_pid_file(self.path / LAUNCHER_PID_FILE)

    def leftovers(self) -> dict[str, ProcessId]:
        """Return programs that outlived their launcher, by name."""
        paths = [path for path in self.path.glob("*.pid") if path.name != LAUNCHER_PID_FILE]
        found = {path.stem: read_pid_file(path) for path in sorted(paths)}
        return {name: process for name, process in found.items() if process}

    def write(self, record: SystemRecord) -> None:
        atomic_write(self.path / STATE_FILE, record.model_dump_json(indent=2).encode())

    def read(self) -> SystemRecord | None:
        try:
            return SystemRecord.model_validate_json((self.path / STATE_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def _clear(self) -> None:
        kept = {f"{name}.pid" for name in self.leftovers()}
        for path in [*self.path.glob("*.pid"), *self.path.glob("*.tmp"), self.path / STATE_FILE]:
            if path.name not in kept:
                path.unlink(missing_ok=True)
