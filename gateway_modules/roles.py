"""The parts that a gateway may be, and the pool that each has."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from config import Settings
from core.errors import EndedByAdminError
from core.protocols.events import Rejected
from core.worker_tls import client_context
from gateway_modules.admin.kept_settings import EtaStore
from gateway_modules.desk.client import DeskClient, DeskLink
from gateway_modules.queue.scheduling import EtaTracker
from gateway_modules.queue.ticket import opened_tickets
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_pool import WorkerPool
from gateway_modules.relay.live_sessions import LiveSessions
from settings.workers import worker_place

EVERYBODY: Final = ("0.0.0.0/0", "::/0")


class Role(StrEnum):
    """What of the gateway a program is."""

    ALL = "all"
    DESK = "desk"  # the queue, the workers' state and administration
    DOOR = "door"  # pages and the clients' sockets; the desk has the rest


def pool_of(
    role: Role,
    settings: Settings,
    worker_addresses: Sequence[str],
    eta: EtaStore,
    live: LiveSessions,
) -> WorkerPool | DeskClient:
    """Return the pool of a gateway whose sessions are in `live`.

    Raises:
        OSError: The key of return tickets can be neither read nor written.
        ValueError: An address cannot be read or comes twice; or no desk or secret is configured.
    """
    if role is Role.DOOR:
        return _remote_pool(settings, live)
    return _local_pool(settings, worker_addresses, eta)


def _local_pool(settings: Settings, worker_addresses: Sequence[str], eta: EtaStore) -> WorkerPool:
    service = settings.service
    return WorkerPool(
        worker_addresses,
        max_queue_size=service.max_queue_size,
        tickets=opened_tickets(settings.security.ticket_secret, service.data_dir),
        max_waiting_per_client=settings.limits.waiting_per_client,
        eta_tracker=EtaTracker(eta.load(), service.eta_ema_alpha, service.eta_ema_min_samples),
        client=_worker_client(settings),
    )


def _worker_client(settings: Settings) -> WorkerClient:
    secret = settings.security.worker_secret
    return WorkerClient(
        request_timeout_s=settings.service.request_timeout,
        secret=secret.get_secret_value() if secret is not None else None,
        heartbeat_s=settings.limits.heartbeat_s,
        tls=client_context(settings),
    )


def _remote_pool(settings: Settings, live: LiveSessions) -> DeskClient:
    def end_session(session_id: str) -> None:
        if (relay := live.get(session_id)) is not None:
            relay.post(Rejected(EndedByAdminError()))

    if settings.service.desk is None:
        raise ValueError("service.desk: say where the desk listens, as host:port")
    link = DeskLink(
        worker_place(settings.service.desk),
        secret=shared_secret(settings),
        heartbeat_s=settings.limits.heartbeat_s,
        tls=client_context(settings),
    )
    return DeskClient(link, _worker_client(settings), end_session)


def shared_secret(settings: Settings) -> str:
    """Return what desk, doors and workers show each other.

    Raises:
        ValueError: There is none.
    """
    if settings.security.worker_secret is None:
        raise ValueError("security.worker_secret: a desk and its doors need one, the same for all")
    return settings.security.worker_secret.get_secret_value()


def behind_doors(settings: Settings) -> Settings:
    """Return the settings of a desk, which only its doors ask: they speak for their clients."""
    security = settings.security.model_copy(
        update={"trusted_proxies": EVERYBODY, "allowed_hosts": ("*",)}
    )
    return settings.model_copy(update={"security": security})
