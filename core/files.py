"""Writes files so that a reader, another writer or a crash never meets half of one.

Everything goes through `os`; what the operating system refuses is raised as the OSError it is.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600  # the same that `tempfile` gives
UNFINISHED_SUFFIX: Final = ".tmp"  # a hidden file of this name is still being written
# Never through a link, and never left open in a child process.
SAFE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write a whole file, or leave what was there.

    Writers of the same file do not disturb each other: each has a temporary name of its own, and
    the last to finish wins.

    Args:
        path: Its folder is made if need be, but not the folder above.
        content: All of it.
        is_durable: Wait until the file and its name would survive a power cut too.

    Raises:
        OSError: The disk is full, or refuses.
    """
    path.parent.mkdir(exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(UNFINISHED_SUFFIX, f".{path.name}.", path.parent)
    try:
        try:
            write_all(descriptor, content)
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise
    if is_durable:
        _sync_folder(path.parent)


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, making it if need be.

    Raises:
        OSError: The disk is full, or refuses; part of the content may have been written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | SAFE_FLAGS, FILE_MODE)
    try:
        write_all(descriptor, content)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it at the descriptor's position.

    Raises:
        OSError: The disk is full, or refuses; part of the content may have been written.
    """
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        view = view[written:]


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
