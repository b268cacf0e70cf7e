"""The few ways bytes reach the disk: whole new files, lines at the end of one, nothing else.

A file appears under its name only when it is complete. Every write goes through `os.write`; what
the operating system refuses is raised as the OSError it is.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from recording.names import UNFINISHED_SUFFIX

FILE_MODE: Final = 0o644
# Never through a link, and never left open in a child process.
SAFE_FLAGS: Final = os.O_NOFOLLOW | os.O_CLOEXEC


def write_file(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write a whole file, or leave what was there.

    Args:
        path: Its folder is made if need be, but not the folder above.
        content: All of it.
        is_durable: Wait until it would survive a power cut too.

    Raises:
        OSError: The disk is full, or refuses.
    """
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED_SUFFIX)
    try:
        descriptor = os.open(
            unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE_FLAGS, FILE_MODE
        )
        try:
            _write_all(descriptor, content)
            if is_durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def append(path: Path, content: bytes) -> None:
    """Add to the end of a file, making it if need be.

    Raises:
        OSError: The disk is full, or refuses; part of the content may have been written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | SAFE_FLAGS, FILE_MODE)
    try:
        _write_all(descriptor, content)
    finally:
        os.close(descriptor)


def append_sound(path: Path, header: bytes, samples: bytes) -> None:
    """Add PCM to a WAV file that stays readable in between.

    Args:
        path: Made if need be, with its folder.
        header: What the file begins with once `samples` are in it.
        samples: What to add.

    Raises:
        OSError: The disk is full, or refuses.
    """
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | SAFE_FLAGS, FILE_MODE)
    try:
        # The sizes come last: until then the file says it is as long as it was.
        if os.lseek(descriptor, 0, os.SEEK_END) == 0:
            _write_all(descriptor, header)
        _write_all(descriptor, samples)
        os.lseek(descriptor, 0, os.SEEK_SET)
        _write_all(descriptor, header)
    finally:
        os.close(descriptor)


def mend_head(path: Path, head: bytes, size_bytes: int) -> None:
    """Replace a file's first bytes and cut it to a size; doing so twice changes nothing more."""
    descriptor = os.open(path, os.O_WRONLY | SAFE_FLAGS)
    try:
        os.ftruncate(descriptor, size_bytes)
        _write_all(descriptor, head)
    finally:
        os.close(descriptor)


def folder_size_bytes(folder: Path) -> int:
    """Return the size of all files below a folder; what vanishes meanwhile counts nothing."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
    return total


def newest_change_s(folder: Path) -> float:
    """Return when a folder or a file directly in it was last written, Unix seconds.

    Raises:
        OSError: The folder cannot be read.
    """
    newest = folder.stat().st_mtime
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                newest = max(newest, entry.stat(follow_symlinks=False).st_mtime)
    return newest


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        written = os.write(descriptor, view)
        view = view[written:]
