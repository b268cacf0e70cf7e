"""Log files the programs append to: opening, turning over, reading the end.

A program keeps its file open for as long as it runs and the launcher is never in between, so a
busy or dead launcher cannot hold up a worker. Turning over therefore copies and empties.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

BYTES_PER_MB = 1_000_000
TAIL_BYTES = 16_384
TAIL_LINES = 25


@dataclass(frozen=True)
class LogFile:
    """One program's log.

    Attributes:
        path: of the file written to; older ones are `path.1` (newest) to `path.kept`.
        max_bytes: size at which it is turned over.
        kept: older files.
    """

    path: Path
    max_bytes: int
    kept: int

    def open(self) -> FileIO:
        """Return the file for appending, whatever happens to its length meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.turn_over()
        return FileIO(self.path, "ab")

    def size(self) -> int:
        """Return its length, bytes; 0 if there is none."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def turn_over(self) -> bool:
        """Keep what was written as an older file and empty the file, if it has grown too long.

        Lines written between the copy and the emptying are lost: microseconds, once in a file.

        Returns:
            Whether it was done.

        Raises:
            OSError: the copy could not be written; then the file is emptied all the same, since
                one that may grow for ever takes the disk from the recordings.
        """
        if self.size() < self.max_bytes:
            return False
        for number in range(self.kept - 1, 0, -1):
            older = self._older(number)
            if older.exists():
                older.replace(self._older(number + 1))
        try:
            shutil.copyfile(self.path, self._older(1))
        finally:
            os.truncate(self.path, 0)
        return True

    def tail(self, since: int = 0) -> list[str]:
        """Return the last lines.

        Args:
            since: length of the file when what matters began, bytes.
        """
        try:
            with self.path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                begin = since if since <= end else 0  # turned over meanwhile
                file.seek(max(begin, end - TAIL_BYTES))
                text = file.read(TAIL_BYTES).decode("utf8", errors="replace")
        except OSError:
            return []
        return text.splitlines()[-TAIL_LINES:]

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
