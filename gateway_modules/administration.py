"""Administration: enabled apps, expected durations, the audit log, load history.

The audit log holds address (a public one without its last part), time, action and result; never a
token, a file or a conversation's text. All but the history blocks on the disk.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog
from pydantic import AwareDatetime, Field, ValidationError

from core.errors import AppDisabledError
from core.metrics import GatewayMetrics
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from core.store import Store
from gateway_modules.queue.models import EtaConfig
from gateway_modules.queue.worker_pool import WorkerPool
from settings.sections import ServiceSettings

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
APPS: Final = (
    AppInfo(app_id=TURN_BASED, name="Turn-based Chat", route="/turnbased"),
    AppInfo(app_id=HALF_DUPLEX, name="Half-Duplex Audio", route="/half_duplex"),
    AppInfo(app_id=OMNI, name="Omni Full-Duplex", route="/omni"),
    AppInfo(app_id=AUDIO_DUPLEX, name="Audio Full-Duplex", route="/audio_duplex"),
)


def app_of_request(request_type: RequestType) -> str:
    match request_type:
        case RequestType.CHAT | RequestType.STREAMING:
            return TURN_BASED
        case RequestType.HALF_DUPLEX_AUDIO:
            return HALF_DUPLEX
        case RequestType.AUDIO_DUPLEX:
            return AUDIO_DUPLEX
        case RequestType.OMNI_DUPLEX | RequestType.DUPLEX:
            return OMNI


class AppRegistry:
    """The apps, in display order; each is enabled unless it was switched off."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def is_enabled(self, app_id: str) -> bool:
        kept = self._store.rows("SELECT is_enabled FROM apps WHERE app_id = ?", (app_id,))
        return any(app.app_id == app_id for app in APPS) and kept != [(0,)]

    def check(self, app_id: str) -> None:
        if not self.is_enabled(app_id):
            name = next((app.name for app in APPS if app.app_id == app_id), app_id)
            raise AppDisabledError(f"{name} is currently disabled.")

    def set_enabled(self, app_id: str, enabled: bool) -> AppState | None:
        app = next((app for app in APPS if app.app_id == app_id), None)
        if app is None:
            return None
        with self._store.transaction() as state:
            state.execute("REPLACE INTO apps VALUES (?, ?)", (app_id, enabled))
        return AppState(**app.model_dump(), enabled=enabled)

    def get_enabled_apps(self) -> list[AppInfo]:
        return [app for app in APPS if self.is_enabled(app.app_id)]

    def get_all_apps(self) -> list[AppState]:
        return [AppState(**app.model_dump(), enabled=self.is_enabled(app.app_id)) for app in APPS]


class EtaStore:
    def __init__(self, store: Store, settings: ServiceSettings) -> None:
        self._store = store
        self._settings = settings

    def load(self) -> EtaConfig:
        given = self._settings.model_dump(include=set(EtaConfig.model_fields))
        configured = EtaConfig(**given, ema_alpha=self._settings.eta_ema_alpha)
        try:
            kept = EtaConfig.model_validate(dict(self._store.rows("SELECT * FROM estimates")))
        except ValidationError as error:
            structlog.get_logger("eta").warning("durations unusable", reason=str(error))
            return configured
        return configured.model_copy(update=kept.model_dump(exclude_unset=True))

    def save(self, change: EtaConfig) -> None:
        given = change.model_dump(exclude_unset=True)
        with self._store.transaction() as state:
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


class AuditLog:
    """Stores the latest `ENTRIES_MAX` entries."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def append(self, entry: AuditEntry) -> None:
        with self._store.transaction() as state:
            state.execute("INSERT INTO audit (entry) VALUES (?)", (entry.model_dump_json(),))
            state.execute(
                "DELETE FROM audit WHERE number <= last_insert_rowid() - ?", (ENTRIES_MAX,)
            )

    def newest(self, limit: int) -> list[AuditEntry]:
        entries: list[AuditEntry] = []
        sql = "SELECT entry FROM audit ORDER BY number DESC LIMIT ?"
        for (text,) in self._store.rows(sql, (limit,)):
            with suppress(ValidationError):
                entries.append(AuditEntry.model_validate_json(text))
        return entries


class BodyStart:
    """Collects a request's body for the audit log, if it is short."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_whole = True

    def saw(self, part: bytes) -> None:
        self._is_whole = self._is_whole and len(self._kept) + len(part) <= BODY_READ_BYTES
        self._kept = (self._kept + part)[:BODY_READ_BYTES] if self._is_whole else b""

    def details(self) -> str:
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
    """Return an address for the log: private ones in full, of others only the network."""
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


PERIOD_S: Final = 10.0  # workers are polled twice as often
POINTS: Final = 360  # an hour
MEDIAN: Final = 0.5
TAIL: Final = 0.99

Value = float | None


class History(WireModel):
    """Answer to `GET /api/admin/history`: columns of equal length."""

    period_s: float = Field(description="Time between two points, s.")
    t: list[float] = Field(description="Times, Unix seconds, oldest first.")
    series: dict[str, list[Value]] = Field(
        description="By name: sessions.<mode>, queue.length, queue.oldest_wait_s, unit.p50_ms, "
        "unit.p99_ms, unit.count, refused.count, vram_used_mb.<worker>; null where not known."
    )


class Trends:
    """Samples of the last hour, ten seconds apart, in memory."""

    def __init__(
        self,
        pool: WorkerPool,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.time,
        period_s: float = PERIOD_S,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._clock = clock
        self._period_s = period_s
        self._points: deque[tuple[float, dict[str, Value]]] = deque(maxlen=POINTS)
        self._refused_before = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            self.take()

    def take(self) -> None:
        units_ms = self._metrics.take_units()
        refused = self._metrics.refused
        queue = self._pool.get_queue_status()
        modes = Counter(task.request_type for task in queue.running_tasks)
        values: dict[str, Value] = {f"sessions.{mode.value}": modes[mode] for mode in RequestType}
        values |= {
            "queue.length": queue.queue_length,
            "queue.oldest_wait_s": max((item.wait_elapsed_s for item in queue.items), default=0.0),
            "unit.p50_ms": quantile(units_ms, MEDIAN),
            "unit.p99_ms": quantile(units_ms, TAIL),
            "unit.count": len(units_ms),
            "refused.count": refused - self._refused_before,
        }
        self._refused_before = refused
        for worker in self._pool.workers.values():
            latest = worker.service.latest
            is_there = latest is not None and worker.status is not WorkerStatus.OFFLINE
            used_mb = latest.vram_used_mb if latest is not None and is_there else None
            values[f"vram_used_mb.{worker.worker_id}"] = used_mb
        self._points.append((round(self._clock(), 1), values))

    def history(self) -> History:
        names = dict.fromkeys(name for _, values in self._points for name in values)
        return History(
            period_s=self._period_s,
            t=[time_s for time_s, _ in self._points],
            series={name: [values.get(name) for _, values in self._points] for name in names},
        )


def quantile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    rank = max(1, math.ceil(share * len(values)))
    return round(sorted(values)[rank - 1], 1)
