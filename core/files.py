"""Atomic, durable and locked writing of files; raises the operating system's `OSError`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600  # as of `tempfile`
UNFINISHED_SUFFIX: Final = ".tmp"  # of a hidden file that is being written
# Follow no links, and leave no descriptor open in child processes.
SAFE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC
# In the data folder.
TOKEN_FILE: Final = "admin_token"
TOKEN_BYTES: Final = 16
LOGS_FOLDER: Final = "logs"  # written by the launcher


def atomic_write(
    path: Path, content: bytes, *, is_durable: bool = False, mode: int = FILE_MODE
) -> None:
    """Replace a file's content atomically; see `replacing`.

    Its folder must exist: a deleted one is not created again.
    """
    with (
        replacing(path, is_durable=is_durable) as unfinished,
        opened(unfinished, os.O_WRONLY | SAFE_FLAGS) as descriptor,
    ):
        if mode != FILE_MODE:
            os.fchmod(descriptor, mode)
        write_all(descriptor, content)


@contextlib.contextmanager
def replacing(path: Path, *, is_durable: bool = False) -> Iterator[Path]:
    """Yield an empty hidden file to write to, which becomes `path` if the block succeeds.

    Concurrent writers have separate temporary files; the last to finish wins. A durable file and
    its name survive a power failure from then on.
    """
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED_SUFFIX, f".{path.name}.", path.parent)
    os.close(descriptor)
    try:
        yield Path(unfinished)
        if is_durable:
            with opened(unfinished, os.O_RDONLY | os.O_CLOEXEC) as descriptor:
                os.fsync(descriptor)
        os.replace(unfinished, path)
    finally:  # after a success there is nothing to remove
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
    if is_durable:
        with opened(path.parent, os.O_DIRECTORY | os.O_CLOEXEC) as descriptor:
            os.fsync(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[None]:
    """Lock a folder, or a file, which is created if missing, for the block or the process's life.

    Raises `BlockingIOError` if another process holds the lock, and this one does not wait.
    """
    flags = os.O_CLOEXEC if path.is_dir() else os.O_RDWR | os.O_CREAT | SAFE_FLAGS
    with opened(path, flags) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield


def append(path: Path, content: bytes) -> None:
    """Append to a file, created if missing; an OSError may leave part of the content written."""
    with opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | SAFE_FLAGS) as descriptor:
        write_all(descriptor, content)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all content to a descriptor; an OSError may leave part of it written."""
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        view = view[written:]


@contextlib.contextmanager
def opened(path: Path | str, flags: int) -> Iterator[int]:
    """Open a descriptor for the block; a new file is private."""
    descriptor = os.open(path, flags, FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def ensure_token(path: Path, size_bytes: int) -> str:
    """Return the token in a file; without a file, create one of `size_bytes` random bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent):  # programs that share the folder may start together
        if not path.exists():
            token = secrets.token_urlsafe(size_bytes)
            atomic_write(path, f"{token}\n".encode(), is_durable=True)
        if path.stat().st_mode & ~FILE_MODE & 0o777:
            path.chmod(FILE_MODE)
        token = path.read_text(encoding="utf8").strip()
    if not token:
        raise OSError(f"{path} is empty: delete it, and the next start makes a new token.")
    return token


def ensure_admin_token(data_dir: Path) -> str:
    return ensure_token(data_dir / TOKEN_FILE, TOKEN_BYTES)
