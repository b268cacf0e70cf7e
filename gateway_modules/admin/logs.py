"""What administrators read: the end of the programs' log files, and the audit of their own changes.

A page of a log is a bounded part of a file; with the last response's cursor, reading continues
where it stopped, also after a rotation. Pages poll: a stream to each of them would cost a task and
a connection that outlives a drain, and proxies buffer streams. The audit holds who (an address
without its last part, unless it is of a private network), when, what, and how it ended; never a
token, a file or a text of a conversation. Blocks on the disk.
"""

from __future__ import annotations

import binascii
import ipaddress
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, Field, ValidationError

from core.errors import BadRequestError, NotFoundError
from core.schemas.common import WireModel
from core.store import Store

LOGS_FOLDER: Final = "logs"  # below the data folder; the launcher's place for what programs print
SUFFIX: Final = ".log"
ROTATED: Final = ".1"  # what the launcher copies a full file to before it empties it
SOURCE: Final = re.compile(r"gateway|desk|door_\d{1,2}|launcher|worker_\d{1,3}")
LINES_MAX: Final = 500
READ_MAX_BYTES: Final = 256 * 1024
LINE_MAX_CHARS: Final = 4_000  # of one line as it is shown
MARK_BYTES: Final = 64  # of a file's beginning, that identifies it

TEXT_LINE: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z?) +\[(?P<level>\w+) *\] (?P<text>.*)"
)
"""How structlog writes a line for people."""

CURSOR: Final = re.compile(r"(?P<offset>\d{1,15})-(?P<length>\d{1,2})-(?P<mark>[0-9a-f]{1,8})")


class LogLine(WireModel):
    """One line."""

    text: str = Field(description="What it says, without time and level if those are known.")
    time: str | None = Field(None, description="Time, as the program wrote it.")
    level: str | None = Field(None, description="How important: info, warning and so on.")


class LogPart(WireModel):
    """Answer to `GET /api/admin/logs`."""

    source: str = Field(description="Whose log it is.")
    sources: list[str] = Field(description="Whose logs there are.")
    lines: list[LogLine] = Field(description="Oldest first.")
    cursor: str = Field(description="Send it next time to get what follows.")
    has_more: bool = Field(False, description="More is there already.")
    was_turned_over: bool = Field(False, description="A new file has begun since the last time.")


@dataclass(frozen=True)
class Cursor:
    """A position in a file that is recognised by the checksum of its first `length` bytes."""

    offset: int
    length: int
    mark: int

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Parse what a client sent back; BadRequestError if it is no cursor."""
        found = CURSOR.fullmatch(text)
        if found is None:
            raise BadRequestError("This is no cursor of a log.")
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
        """Return the end of a log, or what came after an earlier response's cursor.

        Raises:
            NotFoundError: There are no logs here, or none of this program.
            BadRequestError: The cursor is invalid.
        """
        sources = self.sources()
        if not sources:
            raise NotFoundError(
                "There are no log files: the gateway was not started by the launcher, so what it "
                "logs is where it was started from."
            )
        path = self._folder / f"{source}{SUFFIX}"
        if source not in sources or path.is_symlink():
            raise NotFoundError("There is no log of this program.")
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
        if lines and offset < _size(older):  # the rest of the older file comes next
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
    """Return whole lines from an offset on, and the offset behind them."""
    if limit <= 0:
        return [], offset
    block = _read(path, offset, READ_MAX_BYTES)
    whole, newline, _ = block.rpartition(b"\n")
    if not newline:  # unfinished, unless it is longer than anything that is shown
        return ([block], offset + len(block)) if len(block) == READ_MAX_BYTES else ([], offset)
    lines = whole.split(b"\n")[:limit]
    return lines, offset + sum(len(line) + 1 for line in lines)


def _last_lines(path: Path, limit: int) -> tuple[list[bytes], int]:
    """Return the last whole lines, and the offset behind them."""
    begin = max(0, _size(path) - READ_MAX_BYTES)
    block = _read(path, begin, READ_MAX_BYTES)
    whole, newline, _ = block.rpartition(b"\n")
    if not newline:
        return [], begin
    lines = whole.split(b"\n")
    if begin and len(lines) > 1:
        lines = lines[1:]  # its beginning is cut off
    return lines[-limit:], begin + len(whole) + 1


def parse_line(line: bytes) -> LogLine:
    """Parse a line of structlog's console or JSON format."""
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


ENTRIES_MAX: Final = 10_000  # the oldest of more are deleted; some 3 MB
BODY_READ_BYTES: Final = 1_024  # of a request; a longer one is a file, and left out
VALUE_MAX_CHARS: Final = 80
DETAILS_MAX_CHARS: Final = 300
PUBLIC_PREFIXES: Final = {4: 24, 6: 48}  # bits kept of an address somebody could be known by


class AuditEntry(WireModel):
    """One thing an administrator did."""

    time: AwareDatetime = Field(description="When, UTC.")
    address: str = Field("", description="From where; of a public address only its network.")
    action: str = Field(description="Method and route.")
    target: str = Field("", description="What it was done to.")
    details: str = Field("", description="What was asked for.")
    status: int = Field(description="HTTP status of the answer.")


class AuditList(WireModel):
    """Answer to `GET /api/admin/audit`."""

    entries: list[AuditEntry] = Field(description="Newest first.")


class AuditLog:
    """The newest `ENTRIES_MAX` entries; what is older is gone."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def append(self, entry: AuditEntry) -> None:
        """Raises OSError: The disk is full, or refuses."""
        with self._store.transaction() as state:
            state.execute("INSERT INTO audit (entry) VALUES (?)", (entry.model_dump_json(),))
            state.execute(
                "DELETE FROM audit WHERE number <= last_insert_rowid() - ?", (ENTRIES_MAX,)
            )

    def newest(self, limit: int) -> list[AuditEntry]:
        """Return entries, newest first; damaged ones are skipped."""
        entries: list[AuditEntry] = []
        sql = "SELECT entry FROM audit ORDER BY number DESC LIMIT ?"
        for (text,) in self._store.rows(sql, (limit,)):
            with suppress(ValidationError):
                entries.append(AuditEntry.model_validate_json(text))
        return entries


class BodyStart:
    """The beginning of a request's body, as much as the audit may hold."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_whole = True

    def saw(self, part: bytes) -> None:
        self._is_whole = self._is_whole and len(self._kept) + len(part) <= BODY_READ_BYTES
        self._kept = (self._kept + part)[:BODY_READ_BYTES] if self._is_whole else b""

    def details(self) -> str:
        """Return the plain values of a short JSON object, "" of anything else."""
        try:
            body = json.loads(self._kept) if self._kept else {}
        except (ValueError, RecursionError):
            return ""
        if not isinstance(body, Mapping):
            return ""
        plain = {key: value for key, value in body.items() if isinstance(value, str | int | float)}
        parts = [f"{key}={_short(value)}" for key, value in plain.items()]
        return ", ".join(parts)[:DETAILS_MAX_CHARS]


def shown_address(address: str) -> str:
    """Return an address as it may be kept: whole on a private network, else its network alone."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(known, ipaddress.IPv6Address) and known.ipv4_mapped is not None:
        known = known.ipv4_mapped
    if known.is_loopback or known.is_private or known.is_link_local:
        return str(known)
    prefix = PUBLIC_PREFIXES[known.version]
    return str(ipaddress.ip_network(f"{known}/{prefix}", strict=False))


def entry_of(
    now: datetime, address: str, action: str, target: str, body: BodyStart, status: int
) -> AuditEntry:
    """Describe one request."""
    return AuditEntry(
        time=now,
        address=shown_address(address),
        action=action,
        target=_writable(target[:VALUE_MAX_CHARS]),
        details=_writable(body.details()),
        status=status,
    )


def _writable(text: str) -> str:
    """Return a text as UTF-8 can hold it: JSON may name half of a surrogate pair alone."""
    return text.encode("utf-8", "replace").decode()


def _short(value: str | float) -> str:
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"
