"""Pages that a process maps and does not need are released."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from benchmarks.processes import resident_mb
from core.process_memory import trim_heap, unmap_pages

SIZE_MB = 32

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").is_file(), reason="Linux alone")


def test_unmapped_pages_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"w" * (SIZE_MB << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped.find(b"x") == -1
        loaded_mb = resident_mb([os.getpid()])
        unmap_pages(path)
        assert resident_mb([os.getpid()]) < loaded_mb - SIZE_MB / 2
        assert mapped[-1:] == b"w"


def test_pages_of_a_file_count_once(tmp_path: Path) -> None:
    pid = os.getpid()
    assert resident_mb([pid]) < resident_mb([pid, pid]) < 2 * resident_mb([pid])


def test_the_heap_is_trimmed() -> None:
    blocks = [bytes(60_000) for _ in range(1_000)]
    before_mb = resident_mb([os.getpid()])
    del blocks
    trim_heap()
    assert resident_mb([os.getpid()]) < before_mb
