"""The gateway object: all parts that its routes use, built from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import attrgetter
from socket import gethostname
from typing import Annotated, Final
from weakref import WeakValueDictionary

from fastapi import APIRouter, Depends, Security
from fastapi.security import APIKeyHeader
from prometheus_client import CollectorRegistry
from starlette.requests import HTTPConnection

from config import PROJECT_ROOT, Settings
from core.errors import NoWorkerError, ShuttingDownError
from core.files import ensure_admin_token
from core.metrics import GatewayMetrics, new_registry
from core.schemas.limits import EVENT_LIMIT_BYTES
from core.schemas.queue import SESSION_SECRET_HEADER, SocketKind
from core.store import Store
from core.telemetry import Tracing, open_tracing
from core.worker_tls import client_context
from gateway_modules.administration import DRAINED, INTAKE_PAUSED, AppRegistry, Switches, load_eta
from gateway_modules.openai.worker_request import Clips, Transcripts
from gateway_modules.pages import Languages, Pages, PresetLibrary, find_pages
from gateway_modules.queue.desk_client import DeskClient, Pool
from gateway_modules.queue.desk_link import DeskHttp, SessionCommand
from gateway_modules.queue.estimates import EtaTracker
from gateway_modules.queue.worker_client import CONNECT_TRIES, WorkerClient
from gateway_modules.queue.worker_pool import TICKET_FILE, WorkerPool, opened_tickets
from gateway_modules.relay.link import PATIENCE_S, QueueingLimits
from gateway_modules.relay.live_sessions import TAKEOVER_GRACE_S, Doors, LiveSessions
from gateway_modules.relay.telemetry import Trends
from gateway_modules.voices import VoiceLibrary, find_default_voice
from gateway_modules.web import limits as client_limits
from gateway_modules.web import security
from gateway_modules.web.client_socket import Pace
from gateway_modules.web.limits import NO_SOCKET, Budget
from recording.bucket import Bucket, open_store
from recording.objects import ObjectStore, RecordingStore, RunningRecordings
from recording.store import CleanupSchedule, FolderStore

ASSETS: Final = PROJECT_ROOT / "assets"
STATIC: Final = PROJECT_ROOT / "static"
CLOSE_LIMIT_S: Final = 5.0  # for sockets to close after the time limit of draining


class Role(StrEnum):
    """The part of the gateway that a process is."""

    ALL = "all"
    DESK = "desk"  # the queue, the workers' state and administration
    DOOR = "door"  # pages and the clients' sockets


@dataclass(frozen=True)
class Timing:
    """Time limits; shorter in tests."""

    queueing: QueueingLimits = field(default_factory=QueueingLimits)
    takeover_grace_s: float = TAKEOVER_GRACE_S
    patience_s: float = PATIENCE_S
    connect_tries: int = CONNECT_TRIES
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class Gateway:
    settings: Settings
    timing: Timing
    role: Role
    relay_pool: Pool
    doors: Doors | None
    desk: DeskHttp | None
    live: LiveSessions
    connections: client_limits.Connections
    sockets: Budget
    bytes_held: Budget
    bytes_uploaded: Budget
    uploads: client_limits.UploadCounts
    access: security.AccessPolicy
    apps: AppRegistry
    voices: VoiceLibrary
    presets: PresetLibrary
    registry: CollectorRegistry
    metrics: GatewayMetrics
    languages: Languages
    pages: Pages
    store: Store
    recordings: RecordingStore
    cleanup: CleanupSchedule
    trends: Trends | None
    tracing: Tracing | None
    refusals: client_limits.RefusalLog = field(default_factory=client_limits.RefusalLog)
    transcripts: Transcripts = field(default_factory=Transcripts)
    clips: Clips = field(default_factory=Clips)
    client_secrets: security.ClientSecrets = field(default_factory=security.ClientSecrets)
    masks: security.Masks = field(default_factory=security.Masks)
    # Files that are transcribed by Whisper, and a lock of each client whose files are decoded.
    transcriptions: Budget = field(default_factory=client_limits.transcription_budget)
    decoding: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    @property
    def pool(self) -> WorkerPool:
        assert isinstance(self.relay_pool, WorkerPool), "a door has no pool"
        return self.relay_pool

    @property
    def sessions(self) -> LiveSessions | Doors:
        """The sessions of this process, or of a desk's doors."""
        return self.live if self.doors is None else self.doors

    def check_open(self, app_id: str | None = None) -> None:
        if app_id is not None:
            self.apps.check(app_id)
        if not self.relay_pool.is_open:
            raise NoWorkerError()

    def sizes_bytes(self, kind: SocketKind) -> tuple[int, int]:
        """Return the limits of a client's messages; see `ClientSocket`."""
        limits = self.settings.limits
        if kind.has_events:
            return EVENT_LIMIT_BYTES, EVENT_LIMIT_BYTES
        if kind.has_turns:
            return limits.chat_message_bytes, limits.chat_message_bytes
        return limits.prepare_bytes, limits.live_message_bytes

    async def start(self) -> None:
        if self.role is not Role.DOOR:
            self.pool.hold_for_returns(self.settings.service.gathering_s)
        await self.relay_pool.start()

    async def stop(self) -> None:
        """Stop all parts; without outstanding tickets the next gateway need not await returns."""
        await self.relay_pool.stop()
        if self.desk is not None:
            await self.desk.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)
        self.voices.close()
        self.recordings.close()
        self.store.close()
        if self.role is not Role.DOOR and not self.pool.tickets.has_outstanding:
            (self.settings.service.data_dir / TICKET_FILE).unlink(missing_ok=True)

    async def drain(self, limit_s: float) -> None:
        """Refuse new requests, let running ones finish for `limit_s`, then close what remains.

        A desk does not wait for the sessions of its doors.
        """
        if self.doors is not None:
            self.pool.tickets.has_outstanding |= self.pool.queue_length > 0
            return
        self.relay_pool.close_intake()
        for relay in self.live.all():
            if relay.is_away:  # no new socket is accepted; the next gateway may resume it
                relay.fail(ShuttingDownError())
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.relay_pool.wait_until_idle(limit_s)
                await self.transcriptions.wait_until_free()
        for relay in self.live.all():
            relay.fail(ShuttingDownError())
        await self.live.wait_until_empty(CLOSE_LIMIT_S)


def build_gateway(
    settings: Settings,
    worker_addresses: Sequence[str],
    timing: Timing | None = None,
    host_names: Sequence[str] = (),
    role: Role = Role.ALL,
) -> Gateway:
    """Build the gateway's parts; nothing runs yet.

    Raises:
        OSError: The administrator's token can be neither read nor written.
        ValueError: A setting is invalid or missing.
    """
    timing, limits, data_dir = timing or Timing(), settings.limits, settings.service.data_dir
    settings = _behind_doors(settings) if role is Role.DESK else settings
    token = settings.security.admin_token
    shown = token.get_secret_value() if token is not None else ensure_admin_token(data_dir)
    access = security.AccessPolicy(settings.security, shown, host_names)
    store, registry = Store(data_dir), new_registry()
    voices = _voices(settings, store)
    allowed = client_limits.connection_limit(limits.max_connections)
    each = limits.connections_per_client * client_limits.CONNECTIONS_PER_SOCKET
    connections = client_limits.Connections(allowed, each, access.limited_peer)
    uploads = limits.recording_upload_bytes, limits.reference_upload_bytes
    # At most half of the connections, so that one socket more can be accepted and refused.
    sockets = max(1, min(limits.max_connections, connections.limit // 2))
    live, metrics = LiveSessions(timing.takeover_grace_s), GatewayMetrics(registry)
    pool = _pool(role, settings, worker_addresses, store, live, metrics)
    recordings, kept = _recordings(settings, pool, store), settings.recording
    clean = partial(recordings.clean, kept.session_retention_days, kept.max_storage_gb)
    cleanup, is_desk = CleanupSchedule(clean), role is Role.DESK
    own_pool = pool if isinstance(pool, WorkerPool) else None
    return Gateway(
        settings=settings,
        timing=timing,
        role=role,
        relay_pool=pool,
        doors=Doors(own_pool, metrics, cleanup.request) if own_pool and is_desk else None,
        desk=DeskHttp(settings, access) if role is Role.DOOR else None,
        live=live,
        connections=connections,
        sockets=Budget(sockets, limits.connections_per_client, NO_SOCKET),
        bytes_held=Budget(limits.bytes_held, limits.bytes_held_per_client),
        bytes_uploaded=client_limits.upload_budget(*uploads),
        uploads=client_limits.UploadCounts(limits.recording_uploads_per_client),
        access=access,
        apps=AppRegistry(store),
        voices=voices,
        presets=PresetLibrary(ASSETS / "presets", voices),
        registry=registry,
        metrics=metrics,
        languages=Languages(STATIC / "i18n", settings.service.default_lang),
        pages=find_pages(PROJECT_ROOT, wants_sources=settings.service.readable_pages),
        store=store,
        recordings=recordings,
        cleanup=cleanup,
        trends=Trends(own_pool, metrics) if own_pool else None,
        tracing=open_tracing(settings.telemetry.endpoint, "gateway", gethostname()),
    )


def gateway_of(connection: HTTPConnection) -> Gateway:
    gateway = connection.app.state.gateway
    assert isinstance(gateway, Gateway), "the app was not made by create_app"
    return gateway


GatewayHere = Annotated[Gateway, Depends(gateway_of)]

ApiRouter: Final = partial(APIRouter, generate_unique_id_function=attrgetter("name"))
"""Makes a router whose operations in the OpenAPI document are named after their functions."""

ADMIN_TOKEN: Final = APIKeyHeader(
    name=security.ADMIN_HEADER,
    scheme_name="AdminToken",
    description="The administrator's token; a browser that has logged in sends a cookie instead.",
    auto_error=False,
)


def only_admins(
    connection: HTTPConnection, _described: Annotated[str | None, Security(ADMIN_TOKEN)] = None
) -> None:
    """Dependency of routes: require an administrator, whose changes are audited."""
    gateway_of(connection).access.check_admin(connection)
    connection.scope[security.ADMIN_MARK] = True


AdminOnly: Final = Depends(only_admins)


@dataclass(frozen=True)
class View:
    """A caller's view of other conversations: `masks` replace ids, except its `own`."""

    masks: security.Masks | None
    own: Collection[str] = ()

    def of(self, answer: security.Answer) -> security.Answer:
        return answer if self.masks is None else self.masks.masked(answer, self.own)


async def view_of(connection: HTTPConnection) -> View:
    gateway = gateway_of(connection)
    if gateway.access.is_admin(connection):
        return View(None)
    secret = connection.headers.get(SESSION_SECRET_HEADER)
    found = [] if secret is None else [one.request for one in gateway.sessions.all()]
    owner = security.hash_of(secret or "")
    return View(gateway.masks, {one.session_id or "" for one in found if one.owner == owner})


ViewHere = Annotated[View, Depends(view_of)]


def _behind_doors(settings: Settings) -> Settings:
    """Believe the doors, a desk's only clients: they have checked theirs."""
    everybody = {"trusted_proxies": ("0.0.0.0/0", "::/0"), "allowed_hosts": ("*",)}
    access = settings.security.model_copy(update=everybody)
    return settings.model_copy(update={"security": access})


def _recordings(settings: Settings, pool: Pool, state: Store) -> RecordingStore:
    data_dir, place = settings.service.data_dir, settings.recording.store
    if not place:
        return FolderStore(data_dir, settings.recording.min_free_gb)
    secret = settings.security.worker_secret
    running = RunningRecordings(
        lambda: [worker.place.netloc for worker in list(pool.directory.workers.values())],
        secret=secret.get_secret_value() if secret is not None else None,
        tls=client_context(settings),
    )
    bucket, is_direct = Bucket(open_store(place), place), settings.recording.direct
    return ObjectStore(bucket, running, state, is_direct=is_direct)


def _voices(settings: Settings, store: Store) -> VoiceLibrary:
    limits = settings.limits
    uploaded = settings.service.data_dir / "assets" / "ref_audio"
    return VoiceLibrary(
        uploaded,
        store,
        folders=[ASSETS / "ref_audio", uploaded],
        root=PROJECT_ROOT,
        default_voice=find_default_voice(settings),
        max_bytes=limits.reference_upload_bytes,
        max_duration_s=limits.reference_max_s,
    )


def _pool(
    role: Role,
    settings: Settings,
    worker_addresses: Sequence[str],
    store: Store,
    live: LiveSessions,
    metrics: GatewayMetrics,
) -> WorkerPool | DeskClient:
    service, secret = settings.service, settings.security.worker_secret
    client = WorkerClient(
        request_timeout_s=service.request_timeout,
        secret=secret.get_secret_value() if secret is not None else None,
        heartbeat_s=settings.limits.heartbeat_s,
        tls=client_context(settings),
    )
    if role is not Role.DOOR:
        pool = WorkerPool(
            worker_addresses,
            max_queue_size=service.max_queue_size,
            tickets=opened_tickets(settings.security.ticket_secret, service.data_dir),
            max_waiting_per_client=settings.limits.waiting_per_client,
            eta_tracker=EtaTracker(load_eta(store, service), service.eta_ema_min_samples),
            client=client,
        )
        switches = Switches(store).names()
        pool.is_intake_paused = INTAKE_PAUSED in switches
        drained = (name for name in switches if name.startswith(DRAINED))
        pool.directory.drained.update(name.removeprefix(DRAINED) for name in drained)
        return pool

    def obey(message: SessionCommand) -> None:
        if (relay := live.get(message.session_id)) is not None:
            relay.end() if message.command == "end" else relay.stop_soon()

    return DeskClient(settings, client, metrics, obey)
