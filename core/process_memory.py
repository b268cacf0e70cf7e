"""Releases memory that a process maps but does not use; Linux with the GNU C library."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Final

MADV_DONTNEED: Final = 4  # of <sys/mman.h>


def trim_heap() -> None:
    """Return the heap's free pages to the system; does nothing with another C library."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def unmap_pages(path: Path) -> None:
    """Unmap a memory-mapped file's pages; the next read of one maps it from the page cache.

    Loading maps a whole model, but of its embedding table few rows are read, and repacked tensors
    are read from their copies.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    name = str(path.resolve())
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, *_, mapped = line.split(maxsplit=5)
        if mapped == name:
            start, stop = (int(address, 16) for address in addresses.split("-"))
            madvise(start, stop - start, MADV_DONTNEED)
