"""Log files that programs append to while the launcher rotates them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.processes import TAIL_LINES, LogFile


@pytest.fixture
def log(tmp_path: Path) -> LogFile:
    """A log of 100 bytes, two older files kept."""
    return LogFile(tmp_path / "logs" / "worker_0.log", max_bytes=100, kept=2)


def contents(log: LogFile) -> dict[str, str]:
    return {path.name: path.read_text()[:1] for path in sorted(log.path.parent.iterdir())}


def test_a_writer_goes_on_in_the_emptied_file(log: LogFile) -> None:
    with log.open() as file:
        for letter in "abcd":
            file.write(letter.encode() * 100)
            log.rotate()
            assert log.size() == 0
        file.write(b"e")
        log.rotate()
    assert contents(log) == {"worker_0.log": "e", "worker_0.log.1": "d", "worker_0.log.2": "c"}
    assert log.size() == 1


def test_opening_again_keeps_what_is_there(log: LogFile) -> None:
    for text in (b"one\n", b"two\n"):
        with log.open() as file:
            file.write(text)
    assert log.tail() == ["one", "two"]
    assert log.tail(since=4) == ["two"]
    assert log.tail(since=400) == ["one", "two"]  # turned over since


def test_the_tail_is_short_and_forgives_bytes_that_are_no_text(log: LogFile) -> None:
    with log.open() as file:
        file.write(b"\xff\n" + b"".join(b"%d\n" % number for number in range(10_000)))
    tail = log.tail()
    assert len(tail) == TAIL_LINES
    assert tail[-1] == "9999"


def test_a_missing_log_is_empty(log: LogFile) -> None:
    assert log.tail() == []
    assert log.size() == 0
    log.rotate()
    assert not log.path.exists()


def test_on_a_full_disk_it_is_emptied_all_the_same(
    log: LogFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with log.open() as file:
        file.write(b"x" * 200)
    monkeypatch.setattr(shutil, "copyfile", no_room)
    with pytest.raises(OSError, match="No space"):
        log.rotate()
    assert log.size() == 0
