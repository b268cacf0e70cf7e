"""Administration: enabled apps, expected durations, the audit log, the programs' logs.

The audit log holds address (a public one without its last part), time, action and result; never a
token, a file or a conversation's text. Everything blocks on the disk.
"""

from __future__ import annotations

import binascii
import ipaddress
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from pydantic import AwareDatetime, Field, ValidationError

from core.addresses import address_of
from core.errors import AppDisabledError, BadRequestError, NotFoundError
from core.files import LOGS_FOLDER
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.store import Store
from gateway_modules.queue.estimates import EtaConfig
from settings.sections import ServiceSettings
from settings.workers import host_name

TURN_BASED: Final = "turnbased"
HALF_DUPLEX: Final = "half_duplex_audio"
OMNI: Final = "omni"
AUDIO_DUPLEX: Final = "audio_duplex"


class AppInfo(WireModel):
    """An app in a public list."""

    app_id: str = Field(description="Id.")
    name: str = Field(description="Display name.")
    route: str = Field(description="Path of its page.")


class AppState(AppInfo):
    """An app and its state."""

    enabled: bool = Field(description="Whether it may be used.")


# Source: docs/specification/service.md#6.3.
APPS: Final = {
    app_id: AppInfo(app_id=app_id, name=name, route=route)
    for app_id, name, route in (
        (TURN_BASED, "Turn-based Chat", "/turnbased"),
        (HALF_DUPLEX, "Half-Duplex Audio", "/half_duplex"),
        (OMNI, "Omni Full-Duplex", "/omni"),
        (AUDIO_DUPLEX, "Audio Full-Duplex", "/audio_duplex"),
    )
}
APP_OF_REQUEST: Final = {
    RequestType.CHAT: TURN_BASED,
    RequestType.STREAMING: TURN_BASED,
    RequestType.HALF_DUPLEX_AUDIO: HALF_DUPLEX,
    RequestType.AUDIO_DUPLEX: AUDIO_DUPLEX,
    RequestType.OMNI_DUPLEX: OMNI,
    RequestType.DUPLEX: OMNI,
}


@dataclass(frozen=True)
class AppRegistry:
    """The apps, in display order; each is enabled unless it was switched off."""

    store: Store

    def is_enabled(self, app_id: str) -> bool:
        kept = self.store.rows("SELECT is_enabled FROM apps WHERE app_id = ?", (app_id,))
        return app_id in APPS and kept != [(0,)]

    def check(self, app_id: str) -> None:
        if not self.is_enabled(app_id):
            name = APPS[app_id].name if app_id in APPS else app_id
            raise AppDisabledError(f"{name} is currently disabled.")

    def set_enabled(self, app_id: str, enabled: bool) -> AppState:
        if app_id not in APPS:
            raise NotFoundError("There is no such app.")
        with self.store.transaction() as state:
            state.execute("REPLACE INTO apps VALUES (?, ?)", (app_id, enabled))
        return AppState(**dict(APPS[app_id]), enabled=enabled)

    def get_enabled_apps(self) -> list[AppInfo]:
        return [app for app_id, app in APPS.items() if self.is_enabled(app_id)]

    def get_all_apps(self) -> list[AppState]:
        return [AppState(**dict(app), enabled=self.is_enabled(name)) for name, app in APPS.items()]


INTAKE_PAUSED: Final = "intake paused"
DRAINED: Final = "drained "  # before a worker's name


@dataclass(frozen=True)
class Switches:
    """What administrators have switched on, by name; it outlives the gateway."""

    store: Store

    def names(self) -> set[str]:
        return {name for (name,) in self.store.rows("SELECT name FROM switches")}

    def set(self, name: str, is_on: bool) -> None:
        change = (
            "REPLACE INTO switches VALUES (?)" if is_on else "DELETE FROM switches WHERE name = ?"
        )
        with self.store.transaction() as state:
            state.execute(change, (name,))


def load_eta(store: Store, settings: ServiceSettings) -> EtaConfig:
    """Return the configured durations with those that administrators have set since."""
    given = settings.model_dump(include=set(EtaConfig.model_fields))
    configured = EtaConfig(**given, ema_alpha=settings.eta_ema_alpha)
    try:
        kept = EtaConfig.model_validate(dict(store.rows("SELECT * FROM estimates")))
    except ValidationError as error:
        structlog.get_logger("eta").warning("durations unusable", reason=str(error))
        return configured
    return configured.model_copy(update=kept.model_dump(exclude_unset=True))


def save_eta(store: Store, change: EtaConfig) -> None:
    given = change.model_dump(exclude_unset=True)
    with store.transaction() as state:
        state.executemany("REPLACE INTO estimates VALUES (?, ?)", given.items())


ENTRIES_MAX: Final = 10_000  # some 3 MB; the oldest are deleted
BODY_READ_BYTES: Final = 1_024  # longer bodies are files and not logged
VALUE_MAX_CHARS: Final = 80
DETAILS_MAX_CHARS: Final = 300
PUBLIC_PREFIXES: Final = {4: 24, 6: 48}  # bits kept of a public address


class AuditEntry(WireModel):
    """An action of an administrator."""

    time: AwareDatetime = Field(description="When, UTC.")
    address: str = Field("", description="Address; of a public one only its network.")
    action: str = Field(description="Method and route.")
    target: str = Field("", description="Object of the action.")
    details: str = Field("", description="Parameters.")
    status: int = Field(description="HTTP status of the response.")


class AuditList(WireModel):
    """Answer to `GET /api/admin/audit`."""

    entries: list[AuditEntry] = Field(description="Newest first.")


def append_entry(store: Store, entry: AuditEntry) -> None:
    with store.transaction() as state:
        state.execute("INSERT INTO audit (entry) VALUES (?)", (entry.model_dump_json(),))
        state.execute("DELETE FROM audit WHERE number <= last_insert_rowid() - ?", (ENTRIES_MAX,))


def newest_entries(store: Store, limit: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for (text,) in store.rows("SELECT entry FROM audit ORDER BY number DESC LIMIT ?", (limit,)):
        with suppress(ValidationError):
            entries.append(AuditEntry.model_validate_json(text))
    return entries


@dataclass
class BodyStart:
    """Collects a request's body for the audit log, if it is short."""

    kept: bytes = b""

    def saw(self, part: bytes) -> None:
        self.kept += part[: BODY_READ_BYTES + 1 - len(self.kept)]

    def details(self) -> str:
        try:
            body = json.loads(self.kept) if len(self.kept) <= BODY_READ_BYTES else None
        except (ValueError, RecursionError):
            return ""
        items = body.items() if isinstance(body, dict) else ()
        plain = {key: value for key, value in items if isinstance(value, str | int | float)}
        parts = [f"{key}={_short(value)}" for key, value in plain.items()]
        return ", ".join(parts)[:DETAILS_MAX_CHARS]


def shown_address(address: str) -> str:
    """Return an address for the log: private ones in full, of others only the network."""
    known = address_of(address)
    if known is None:
        return ""
    if known.is_loopback or known.is_private or known.is_link_local:
        return str(known)
    return str(ipaddress.ip_network((known, PUBLIC_PREFIXES[known.version]), strict=False))


def entry_of(
    now: datetime, address: str, action: str, target: str, body: BodyStart, status: int
) -> AuditEntry:
    return AuditEntry(
        time=now,
        address=shown_address(address),
        action=action,
        target=_writable(target[:VALUE_MAX_CHARS]),
        details=_writable(body.details()),
        status=status,
    )


def _writable(text: str) -> str:
    """Replace lone surrogates, which JSON can express but UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def _short(value: str | float) -> str:
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    return text if len(text) <= VALUE_MAX_CHARS else f"{text[: VALUE_MAX_CHARS - 1]}…"


SUFFIX: Final = ".log"
ROTATED: Final = ".1"  # the launcher copies a full file there before it truncates it
SOURCE: Final = r"gateway|desk|door_\d{1,2}|launcher|webrtc|worker_\d{1,3}|seat_\d{1,4}"
LINES_MAX: Final = 500
READ_MAX_BYTES: Final = 256 * 1024
LINE_MAX_CHARS: Final = 4_000
MARK_BYTES: Final = 64  # of a file's beginning, which identifies it

TEXT_LINE: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z?) +\[(?P<level>\w+) *\] (?P<text>.*)"
)
"""structlog's format for people."""

CURSOR: Final = re.compile(r"(\d{1,15})-\d{1,2}-[0-9a-f]{1,8}")


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


def cursor_at(path: Path, offset: int) -> str:
    """Return a position in a file, which is identified by the checksum of its beginning."""
    head = _read(path, 0, min(offset, MARK_BYTES))
    return f"{min(offset, _size(path))}-{len(head)}-{binascii.crc32(head):x}"


def _sources(folder: Path) -> list[str]:
    """Return the programs with logs, the gateway or the desk first."""
    names = [path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")]
    workers = rf"{re.escape(host_name())}(_\d{{1,3}})?"  # named as by `worker_name`
    found = (name for name in names if re.fullmatch(f"{SOURCE}|{workers}", name))
    return sorted(found, key=lambda name: (name != "gateway", name != "desk", name))


def read_log(
    data_dir: Path, source: str | None, after: str | None, limit: int = LINES_MAX
) -> LogPart:
    """Return the end of a program's log, or the lines after an earlier response's cursor.

    Without a source it is the first program's.
    Logs are polled: streams would outlive a drain, and proxies buffer them. A response holds a
    bounded part, and a cursor that is valid also after a rotation.

    Raises:
        NotFoundError: There are no logs, or none of this program.
        BadRequestError: The cursor is invalid.
    """
    folder = data_dir / LOGS_FOLDER
    sources = _sources(folder)
    if not sources:
        raise NotFoundError(
            "There are no log files: the gateway was not started by the launcher, so it logs "
            "to the terminal it was started from."
        )
    source = sources[0] if source is None else source
    path = folder / f"{source}{SUFFIX}"
    if source not in sources or path.is_symlink():
        raise NotFoundError("This program has no log.")

    def part(lines: list[bytes], file: Path, offset: int, **marks: bool) -> LogPart:
        return LogPart(
            source=source,
            sources=sources,
            lines=[parse_line(line) for line in lines],
            cursor=cursor_at(file, offset),
            **{"has_more": bool(lines) and offset < _size(file), **marks},
        )

    if after is None:
        lines, offset = _last_lines(path, limit)
        return part(lines, path, offset)
    found = CURSOR.fullmatch(after)
    if found is None:
        raise BadRequestError("This is not a log cursor.")
    start, older, lines = int(found[1]), path.with_name(path.name + ROTATED), []
    if after == cursor_at(path, start):
        lines, offset = _lines_from(path, start, limit)
        return part(lines, path, offset)
    if after == cursor_at(older, start):
        lines, offset = _lines_from(older, start, limit)
        if lines and offset < _size(older):  # the rest of the older file follows
            return part(lines, older, offset, has_more=True)
    more, offset = _lines_from(path, 0, limit - len(lines))
    return part(lines + more, path, offset, was_turned_over=True)


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
    whole, newline, _ = _read(path, begin, READ_MAX_BYTES).rpartition(b"\n")
    if not newline:
        return [], begin
    lines = whole.split(b"\n")
    if begin and len(lines) > 1:
        lines = lines[1:]  # incomplete
    return lines[-limit:], begin + len(whole) + 1


def parse_line(line: bytes) -> LogLine:
    text = line.decode("utf8", "replace").rstrip("\r")
    with suppress(ValueError, RecursionError):
        entry = json.loads(text) if text.startswith("{") else None
        if isinstance(entry, dict):
            event, time, level = (entry.pop(key, None) for key in ("event", "timestamp", "level"))
            rest = " ".join(f"{key}={value}" for key, value in entry.items())
            return LogLine(
                text=f"{'' if event is None else event} {rest}".strip()[:LINE_MAX_CHARS],
                time=None if time is None else str(time),
                level=None if level is None else str(level),
            )
    found = TEXT_LINE.fullmatch(text)
    if found is None:
        return LogLine(text=text[:LINE_MAX_CHARS])
    return LogLine(
        text=found["text"][:LINE_MAX_CHARS].rstrip(), time=found["time"], level=found["level"]
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
