"""The parts that a gateway may be, the pool of each, and what a door asks its desk over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from enum import StrEnum
from typing import Final

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from config import Settings
from core.protocols.events import Event
from core.schemas.worker import WORKER_SECRET_HEADER
from core.worker_tls import SNI, client_context
from gateway_modules.admin.security import AccessPolicy
from gateway_modules.admin.state import EtaStore
from gateway_modules.desk.client import DeskAwayError, DeskClient
from gateway_modules.desk.wire import DeskLink
from gateway_modules.queue.scheduling import EtaTracker
from gateway_modules.queue.worker_client import HTTP_CONNECTIONS, OPEN_TIMEOUT_S, WorkerClient
from gateway_modules.queue.worker_pool import WorkerPool, opened_tickets
from gateway_modules.relay.live_sessions import LiveSessions
from gateway_modules.web.responses import error_answer
from settings.workers import WorkerPlace, worker_place

BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # methods
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
    service, secret = settings.service, settings.security.worker_secret
    client = WorkerClient(
        request_timeout_s=service.request_timeout,
        secret=secret.get_secret_value() if secret is not None else None,
        heartbeat_s=settings.limits.heartbeat_s,
        tls=client_context(settings),
    )
    if role is Role.DOOR:
        return _remote_pool(settings, client, live)
    return WorkerPool(
        worker_addresses,
        max_queue_size=service.max_queue_size,
        tickets=opened_tickets(settings.security.ticket_secret, service.data_dir),
        max_waiting_per_client=settings.limits.waiting_per_client,
        eta_tracker=EtaTracker(eta.load(), service.eta_ema_alpha, service.eta_ema_min_samples),
        client=client,
    )


def _remote_pool(settings: Settings, client: WorkerClient, live: LiveSessions) -> DeskClient:
    def post(session_id: str, event: Event) -> None:
        if (relay := live.get(session_id)) is not None:
            relay.post(event)

    link = DeskLink(
        desk_place(settings),
        secret=shared_secret(settings),
        heartbeat_s=settings.limits.heartbeat_s,
        tls=client_context(settings),
    )
    return DeskClient(link, client, post)


def desk_place(settings: Settings) -> WorkerPlace:
    if settings.service.desk is None:
        raise ValueError("service.desk: say where the desk listens, as host:port")
    return worker_place(settings.service.desk)


def shared_secret(settings: Settings) -> str:
    if settings.security.worker_secret is None:
        raise ValueError("security.worker_secret: a desk and its doors need one, the same for all")
    return settings.security.worker_secret.get_secret_value()


def behind_doors(settings: Settings) -> Settings:
    security = settings.security.model_copy(
        update={"trusted_proxies": EVERYBODY, "allowed_hosts": ("*",)}
    )
    return settings.model_copy(update={"security": security})


# Of one connection, not of the request. Source: RFC 9110, section 7.6.1.
HOP_HEADERS: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding "
    "upgrade date".split()
)
# What a door has checked, or says itself of its client.
CLIENT_HEADERS: Final = frozenset(
    "origin x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split()
) | {WORKER_SECRET_HEADER.lower()}


class DeskHttp:
    def __init__(self, settings: Settings, access: AccessPolicy) -> None:
        tls = client_context(settings)
        self._access = access
        self._url = f"{'https' if tls else 'http'}://{desk_place(settings).netloc}"
        self._secret = shared_secret(settings)
        self._http = httpx.AsyncClient(
            verify=tls or False,
            trust_env=False,
            timeout=httpx.Timeout(settings.service.request_timeout, connect=OPEN_TIMEOUT_S),
            limits=httpx.Limits(max_connections=HTTP_CONNECTIONS),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def answer(self, request: Request) -> Response:
        has_body = request.method not in BODILESS
        asked = self._http.build_request(
            request.method,
            f"{self._url}{request.url.path}",
            params=request.url.query,
            headers=self._headers(request),
            content=request.stream() if has_body else None,
            extensions=SNI,
        )
        try:
            answer = await self._http.send(asked, stream=True)
        except httpx.HTTPError:
            return error_answer(DeskAwayError(), request.url.path)
        passed = StreamingResponse(_body(answer), answer.status_code)
        passed.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.decode("latin-1").lower() not in HOP_HEADERS
        ]
        return passed

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        kept = [
            (name, value)
            for name, value in request.headers.items()
            if name not in HOP_HEADERS | CLIENT_HEADERS
        ]
        return [
            *kept,
            (WORKER_SECRET_HEADER, self._secret),
            ("X-Forwarded-For", self._access.client_address(request) or "unknown"),
            ("X-Forwarded-Proto", "https" if self._access.is_secure(request) else "http"),
        ]


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for part in answer.aiter_raw():
            yield part
    finally:
        await answer.aclose()
