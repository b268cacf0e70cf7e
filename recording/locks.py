"""The lock file that says a recording is still being written, and by which process.

A lock outlives its process when that is killed; such a stale lock is recognised, never waited for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from recording.disk import newest_change_s, write_file
from recording.names import LOCK_FILE
from recording.records import Record

# A writer on another machine cannot be asked whether it lives. The longest silence a protocol
# allows is an hour; a day without any write means that nobody is there.
FOREIGN_SILENCE_S: Final = 86_400.0
START_TIME_FIELD: Final = 19  # of what follows the name in /proc/<pid>/stat; source: proc(5)


class Lock(Record):
    """Who writes a recording."""

    pid: int
    host: str
    # Tells a process from a later one with the same number; None where the system does not say.
    process_started: int | None = None


def take_lock(folder: Path) -> None:
    """Mark a recording as being written by this process.

    Raises:
        OSError: The disk is full, or refuses.
    """
    pid = os.getpid()
    lock = Lock(pid=pid, host=socket.gethostname(), process_started=_process_start(pid))
    write_file(folder / LOCK_FILE, lock.to_json().encode())


def release_lock(folder: Path) -> None:
    """Remove the mark; doing so twice is fine."""
    with contextlib.suppress(FileNotFoundError):
        (folder / LOCK_FILE).unlink()


def is_live(folder: Path, *, now_s: float | None = None) -> bool:
    """Tell whether some process is still writing a recording.

    Args:
        folder: The recording's folder.
        now_s: Unix seconds; used only when the writer is on another machine.
    """
    try:
        text = (folder / LOCK_FILE).read_bytes()
    except OSError:
        return False
    try:
        lock = Lock.model_validate_json(text)
    except ValidationError:
        return False  # locks appear whole, so this one was damaged after its process
    if lock.host != socket.gethostname():
        with contextlib.suppress(OSError):
            silence_s = (time.time() if now_s is None else now_s) - newest_change_s(folder)
            return silence_s < FOREIGN_SILENCE_S
        return False
    return _is_running(lock.pid) and lock.process_started == _process_start(lock.pid)


def _is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's, but it runs
        return True
    return True


def _process_start(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks; None where that is not told."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
        return int(stat.rpartition(")")[2].split()[START_TIME_FIELD])
    except (OSError, ValueError, IndexError):
        return None
