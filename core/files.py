"""Writes files so that a reader, another writer or a crash never meets half of one.

Everything goes through `os`; what the operating system refuses is raised as the OSError it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600  # the same that `tempfile` gives
UNFINISHED_SUFFIX: Final = ".tmp"  # a hidden file of this name is still being written
# Never through a link, and never left open in a child process.
SAFE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


def atomic_write(
    path: Path, content: bytes, *, is_durable: bool = False, mode: int = FILE_MODE
) -> None:
    """Write a whole file, or leave what was there; see `replacing`.

    Args:
        path: Its folder is made if it is missing, but not the folder above.
        content: All of it.
        is_durable: Wait until the file and its name would survive a power cut too.
        mode: Of the file.

    Raises:
        OSError: The disk is full, or refuses.
    """
    path.parent.mkdir(exist_ok=True)
    with replacing(path, is_durable=is_durable) as unfinished:
        descriptor = os.open(unfinished, os.O_WRONLY | SAFE_FLAGS)
        try:
            if mode != FILE_MODE:
                os.fchmod(descriptor, mode)
            write_all(descriptor, content)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, *, is_durable: bool = False) -> Iterator[Path]:
    """Yield an empty hidden file to write to; it becomes `path` if the block succeeds.

    Writers of one file do not disturb each other: each has a temporary name of its own, and the
    last to finish wins.

    Raises:
        OSError: The disk is full, or refuses.
    """
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED_SUFFIX, f".{path.name}.", path.parent)
    os.close(descriptor)
    try:
        yield Path(unfinished)
        if is_durable:
            _sync(unfinished, os.O_RDONLY)
        os.replace(unfinished, path)
    finally:  # after that there is nothing left to remove
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
    if is_durable:
        _sync(path.parent, os.O_RDONLY | os.O_DIRECTORY)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for the block; the kernel releases the lock when the process ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def append(path: Path, content: bytes) -> None:
    """Add to a file, made if missing; an OSError may leave part of the content written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | SAFE_FLAGS, FILE_MODE)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all at the descriptor's position; an OSError may leave part of it written."""
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        view = view[written:]


def _sync(path: Path | str, flags: int) -> None:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_token(path: Path, size_bytes: int) -> str:
    """Return the token in a file; without a file, write one of so many random bytes.

    Raises:
        OSError: It can be neither read nor written, or the file is empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked_folder(path.parent):  # programs that share the folder may start together
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        except FileExistsError:
            return _kept(path)
        token = secrets.token_urlsafe(size_bytes)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{token}\n")
        return token


def _kept(path: Path) -> str:
    if path.stat().st_mode & ~FILE_MODE & 0o777:
        path.chmod(FILE_MODE)
    token = path.read_text(encoding="utf8").strip()
    if not token:
        raise OSError(f"{path} is empty: delete it, and the next start makes a new token.")
    return token
