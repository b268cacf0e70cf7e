"""What only recordings do with files: sound that grows, heads that are mended, sizes, ages."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import Final

from core.files import FILE_MODE, SAFE_FLAGS, write_all

GIGABYTE: Final = 10**9


class LowDiskError(OSError):
    """So little of the disk is free that the rest is kept for others."""


def check_room(folder: Path, min_free_gb: float) -> None:
    """Refuse to take more of a disk that is nearly full.

    Args:
        folder: Where something is to be written.
        min_free_gb: What has to stay free, GB; 0: nothing.

    Raises:
        LowDiskError: Less is free.
        OSError: The folder is not there.
    """
    if min_free_gb and shutil.disk_usage(folder).free < min_free_gb * GIGABYTE:
        raise LowDiskError(errno.ENOSPC, f"less than {min_free_gb:g} GB are free")


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
            write_all(descriptor, header)
        write_all(descriptor, samples)
        os.lseek(descriptor, 0, os.SEEK_SET)
        write_all(descriptor, header)
    finally:
        os.close(descriptor)


def mend_head(path: Path, head: bytes, size_bytes: int) -> None:
    """Replace a file's first bytes and cut it to a size; doing so twice changes nothing more."""
    descriptor = os.open(path, os.O_WRONLY | SAFE_FLAGS)
    try:
        os.ftruncate(descriptor, size_bytes)
        write_all(descriptor, head)
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
