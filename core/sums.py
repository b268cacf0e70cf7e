"""SHA-256 sums of files, and lists of them in the format of `sha256sum`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

SUMS_FILE: Final = "SHA256SUMS"


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class KnownSums:
    """Sums of files; one whose size and modification time stay the same is read once."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int], str]] = {}

    def of(self, path: Path) -> str:
        found = path.stat()
        version = found.st_size, found.st_mtime_ns
        known = self._known.get(path)
        if known is None or known[0] != version:
            known = self._known[path] = version, file_sha256(path)
        return known[1]


def write_sums(folder: Path, paths: Iterable[Path]) -> None:
    lines = [f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    (folder / SUMS_FILE).write_text("".join(lines), encoding="utf8")


def first_damaged(folder: Path, sum_of: Callable[[Path], str] = file_sha256) -> Path | None:
    """Return the first file that is missing or differs from its sum, or the missing list."""
    sums = folder / SUMS_FILE
    if not sums.is_file():
        return sums
    for line in sums.read_text(encoding="utf8").splitlines():
        wanted, _, name = line.partition("  ")
        path = folder / name
        if not path.is_file() or sum_of(path) != wanted:
            return path
    return None
