"""A file is whole, whoever else writes it and whenever the power goes."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from core.files import atomic_write, ensure_token


def test_writers_of_one_file_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "meta.json", os.write
    seen: list[bytes] = []

    def write(descriptor: int, content: bytes) -> int:
        if not seen:  # another writer begins and ends in the middle of the first
            seen.append(b"")
            count = real(descriptor, content[:2])
            atomic_write(path, b"second")
            seen.append(path.read_bytes())
            return count
        return real(descriptor, content)

    monkeypatch.setattr(os, "write", write)
    atomic_write(path, b"the first and longer one")
    assert seen[1] == b"second"
    assert path.read_bytes() == b"the first and longer one"
    assert list(tmp_path.iterdir()) == [path]


def test_a_durable_file_has_its_name_on_the_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "recording.json"
    synced: list[tuple[bool, bool]] = []

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_folder, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    atomic_write(path, b"{}", is_durable=True)
    assert synced == [(False, False), (True, True)]
    atomic_write(path, b"{}")
    assert len(synced) == 2


@pytest.mark.parametrize("call", ["open", "write", "fsync", "replace"])
def test_a_refused_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "meta.json"
    atomic_write(path, b"before")

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(OSError, match="Input/output"):
            atomic_write(path, b"after", is_durable=True)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_token_that_could_not_be_written_is_made_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "admin_token"

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "no room")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no room"):
            ensure_token(path, 8)
    token = ensure_token(path, 8)
    assert token and token == ensure_token(path, 8)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
