"""Reading the ends of the programs' log files, for administrators.

A response holds a bounded part of a file and a cursor from which the next request continues, also
after a rotation. Clients poll: streams would outlive a drain, and proxies buffer them.
"""

from __future__ import annotations

import binascii
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field

from core.errors import BadRequestError, NotFoundError
from core.schemas.common import WireModel

LOGS_FOLDER: Final = "logs"  # below the data folder; written by the launcher
SUFFIX: Final = ".log"
ROTATED: Final = ".1"  # the launcher copies a full file there before it truncates it
SOURCE: Final = re.compile(r"gateway|desk|door_\d{1,2}|launcher|worker_\d{1,3}")
LINES_MAX: Final = 500
READ_MAX_BYTES: Final = 256 * 1024
LINE_MAX_CHARS: Final = 4_000
MARK_BYTES: Final = 64  # of a file's beginning, which identifies it

TEXT_LINE: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z?) +\[(?P<level>\w+) *\] (?P<text>.*)"
)
"""structlog's format for people."""

CURSOR: Final = re.compile(r"(?P<offset>\d{1,15})-(?P<length>\d{1,2})-(?P<mark>[0-9a-f]{1,8})")


class LogLine(WireModel):
    """A line of a log."""

    text: str = Field(description="Its text, without time and level if those are known.")
    time: str | None = Field(None, description="Time, as written by the program.")
    level: str | None = Field(None, description="Level: info, warning and so on.")


class LogPart(WireModel):
    """Answer to `GET /api/admin/logs`."""

    source: str = Field(description="The program.")
    sources: list[str] = Field(description="Programs with logs.")
    lines: list[LogLine] = Field(description="Oldest first.")
    cursor: str = Field(description="Pass it to get the lines that follow.")
    has_more: bool = Field(False, description="More lines are available now.")
    was_turned_over: bool = Field(False, description="The log was rotated since the cursor.")


@dataclass(frozen=True)
class Cursor:
    """A position in a file, which is identified by the checksum of its first `length` bytes."""

    offset: int
    length: int
    mark: int

    @classmethod
    def read(cls, text: str) -> Cursor:
        found = CURSOR.fullmatch(text)
        if found is None:
            raise BadRequestError("This is not a log cursor.")
        return cls(int(found["offset"]), int(found["length"]), int(found["mark"], 16))

    @classmethod
    def at(cls, content: Path, offset: int) -> Cursor:
        head = _read(content, 0, MARK_BYTES)[:offset]
        return cls(offset, len(head), binascii.crc32(head))

    def is_of(self, path: Path) -> bool:
        head = _read(path, 0, self.length)
        if len(head) < self.length or _size(path) < self.offset:
            return False
        return binascii.crc32(head) == self.mark

    def __str__(self) -> str:
        return f"{self.offset}-{self.length}-{self.mark:x}"


class LogTail:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / LOGS_FOLDER

    def sources(self) -> list[str]:
        names = [path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"*{SUFFIX}")]
        return sorted(name for name in names if SOURCE.fullmatch(name))

    def read(self, source: str, after: str | None, limit: int = LINES_MAX) -> LogPart:
        """Return the end of a log, or the lines after an earlier response's cursor.

        Raises:
            NotFoundError: There are no logs, or none of this program.
            BadRequestError: The cursor is invalid.
        """
        sources = self.sources()
        if not sources:
            raise NotFoundError(
                "There are no log files: the gateway was not started by the launcher, so it logs "
                "to the terminal it was started from."
            )
        path = self._folder / f"{source}{SUFFIX}"
        if source not in sources or path.is_symlink():
            raise NotFoundError("This program has no log.")
        if after is None:
            lines, offset = _last_lines(path, limit)
            return _part(source, sources, lines, Cursor.at(path, offset), path)
        return _since(source, sources, path, Cursor.read(after), limit)


def _since(source: str, sources: list[str], path: Path, cursor: Cursor, limit: int) -> LogPart:
    if cursor.is_of(path):
        lines, offset = _lines_from(path, cursor.offset, limit)
        return _part(source, sources, lines, Cursor.at(path, offset), path)
    older = path.with_name(path.name + ROTATED)
    lines = []
    if cursor.is_of(older):
        lines, offset = _lines_from(older, cursor.offset, limit)
        if lines and offset < _size(older):  # the rest of the older file follows
            part = _part(source, sources, lines, Cursor.at(older, offset), older)
            return part.model_copy(update={"has_more": True})
    more, offset = _lines_from(path, 0, limit - len(lines))
    part = _part(source, sources, lines + more, Cursor.at(path, offset), path)
    return part.model_copy(update={"was_turned_over": True})


def _part(
    source: str, sources: list[str], lines: list[bytes], cursor: Cursor, path: Path
) -> LogPart:
    return LogPart(
        source=source,
        sources=sources,
        lines=[parse_line(line) for line in lines],
        cursor=str(cursor),
        has_more=bool(lines) and cursor.offset < _size(path),
    )


def _lines_from(path: Path, offset: int, limit: int) -> tuple[list[bytes], int]:
    if limit <= 0:
        return [], offset
    block = _read(path, offset, READ_MAX_BYTES)
    whole, newline, _ = block.rpartition(b"\n")
    if not newline:  # an unfinished line, or one longer than is ever shown
        return ([block], offset + len(block)) if len(block) == READ_MAX_BYTES else ([], offset)
    lines = whole.split(b"\n")[:limit]
    return lines, offset + sum(len(line) + 1 for line in lines)


def _last_lines(path: Path, limit: int) -> tuple[list[bytes], int]:
    begin = max(0, _size(path) - READ_MAX_BYTES)
    block = _read(path, begin, READ_MAX_BYTES)
    whole, newline, _ = block.rpartition(b"\n")
    if not newline:
        return [], begin
    lines = whole.split(b"\n")
    if begin and len(lines) > 1:
        lines = lines[1:]  # incomplete
    return lines[-limit:], begin + len(whole) + 1


def parse_line(line: bytes) -> LogLine:
    text = line.decode("utf8", "replace").rstrip("\r")
    if text.startswith("{"):
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        if isinstance(entry, dict):
            return _from_json(entry)
    found = TEXT_LINE.fullmatch(text)
    if found is None:
        return LogLine(text=text[:LINE_MAX_CHARS])
    return LogLine(
        text=found["text"][:LINE_MAX_CHARS].rstrip(), time=found["time"], level=found["level"]
    )


def _from_json(entry: dict[str, object]) -> LogLine:
    fields = {key: value for key, value in entry.items() if key not in ("timestamp", "level")}
    event = str(fields.pop("event", ""))
    rest = " ".join(f"{key}={value}" for key, value in fields.items())
    time, level = entry.get("timestamp"), entry.get("level")
    return LogLine(
        text=f"{event} {rest}".strip()[:LINE_MAX_CHARS],
        time=None if time is None else str(time),
        level=None if level is None else str(level),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(length)
    except OSError:
        return b""
