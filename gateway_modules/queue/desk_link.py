"""The link between a door and its desk: the messages, and forwarded HTTP.

Each WebSocket text is a JSON list of messages. Doors choose the ids of their tickets. No session
data passes here: a door has its own sockets to the workers.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

import httpx
from pydantic import ConfigDict, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from config import Settings
from core import errors
from core.errors import ErrorCode
from core.metrics import UNITS_KEPT
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.queue import RequestType, SocketKind
from core.schemas.worker import WORKER_SECRET_HEADER, WorkerHealth, WorkerStatus
from core.worker_tls import SNI, client_context
from gateway_modules.queue.worker_client import HTTP_CONNECTIONS, OPEN_TIMEOUT_S
from gateway_modules.queue.worker_connection import TICKET_BYTES, Ticket
from gateway_modules.web.responses import ClosingResponse, error_answer
from gateway_modules.web.security import AccessPolicy
from settings.workers import WorkerPlace, worker_place


class DeskAwayError(errors.NoWorkerError):
    """The queue cannot be reached at the moment. Please try again in a few seconds."""


DOOR_PATH: Final = "/internal/door"
DOOR_ID: Final = "X-Door-Id"  # header; a reconnecting door replaces its earlier connection

TicketId = Annotated[str, Field(pattern=rf"^q_[0-9a-f]{{{2 * TICKET_BYTES}}}$")]
Name = Annotated[str, Field(max_length=limits.ID_MAX_CHARS)]


class OfTicket(WireModel):
    model_config = ConfigDict(from_attributes=True)

    ticket_id: TicketId


class Enter(OfTicket):
    """A request for a worker, or a session that runs on one already.

    `place` is that of the latter's worker: it was resumed, or it outlived the previous desk.
    `order` is a position to return to, or 0; with `is_return` it is from a client's return ticket,
    which may have been spent at another door.
    """

    type: Literal["enter"] = "enter"
    request_type: RequestType
    session_id: Name | None = None
    history_hash: str = ""
    client: str | None = None
    owner: str = ""
    order: int = 0
    kind: SocketKind | None = None
    is_return: bool = False
    place: str = ""

    def ticket(self) -> Ticket:
        return Ticket(**self.model_dump(exclude={"type", "is_return", "place"}))


class Leave(OfTicket):
    """A request releases its position or its worker."""

    type: Literal["leave"] = "leave"
    has_started: bool = False
    kept_hash: str = ""


class StatusChanged(OfTicket):
    type: Literal["status"] = "status"
    status: WorkerStatus


class Unreachable(WireModel):
    type: Literal["unreachable"] = "unreachable"
    worker: str


class Load(WireModel):
    """Units relayed and requests refused since the door's last such message, for the history."""

    type: Literal["load"] = "load"
    units_ms: list[float] = Field(max_length=UNITS_KEPT)
    refused: int


class Welcome(WireModel):
    """The desk's first message: the key with which doors sign and verify return tickets."""

    type: Literal["welcome"] = "welcome"
    ticket_key: str = Field(repr=False, description="In hexadecimal digits.")


class WorkerState(WireModel):
    """The desk's view of a worker; `health` includes the sessions of every door."""

    worker_id: str
    host: str
    port: int
    misses: int
    is_retiring: bool
    health: WorkerHealth


class Workers(WireModel):
    type: Literal["workers"] = "workers"
    workers: list[WorkerState]


class WaitingTicket(NamedTuple):
    ticket_id: TicketId
    order: int
    position: int
    estimated_wait_s: float


class Queue(WireModel):
    """The queue's length, and the door's tickets whose position or estimate changed."""

    type: Literal["queue"] = "queue"
    length: int
    longest_wait_s: float
    tickets: list[WaitingTicket]


class Assigned(OfTicket):
    type: Literal["assigned"] = "assigned"
    order: int
    worker: str
    is_cache_hit: bool


class Refused(OfTicket):
    type: Literal["refused"] = "refused"
    code: ErrorCode
    message: str


class SessionCommand(WireModel):
    """An administrator ends a session, or its client stops the current reply over HTTP."""

    type: Literal["session"] = "session"
    session_id: str
    command: Literal["end", "stop"]


FromDoor = Annotated[
    Enter | Leave | StatusChanged | Unreachable | Load, Field(discriminator="type")
]
FromDesk = Annotated[
    Welcome | Workers | Queue | Assigned | Refused | SessionCommand, Field(discriminator="type")
]
FROM_DOOR: Final[TypeAdapter[list[FromDoor]]] = TypeAdapter(list[FromDoor])
FROM_DESK: Final[TypeAdapter[list[FromDesk]]] = TypeAdapter(list[FromDesk])


def desk_place(settings: Settings) -> WorkerPlace:
    if settings.service.desk is None:
        raise ValueError("service.desk: say where the desk listens, as host:port")
    return worker_place(settings.service.desk)


def shared_secret(settings: Settings) -> str:
    if settings.security.worker_secret is None:
        raise ValueError("security.worker_secret: a desk and its doors need one, the same for all")
    return settings.security.worker_secret.get_secret_value()


BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})  # methods
# Hop-by-hop headers. Source: RFC 9110, section 7.6.1.
HOP_HEADERS: Final = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding "
    "upgrade date".split()
)
# Checked by the door, or set by it.
CLIENT_HEADERS: Final = frozenset(
    "origin x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split()
) | {WORKER_SECRET_HEADER.lower()}


class DeskHttp:
    def __init__(self, settings: Settings, access: AccessPolicy) -> None:
        tls = client_context(settings)
        self._access = access
        self._url = httpx.URL(f"{'https' if tls else 'http'}://{desk_place(settings).netloc}")
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
        # The path as it came: decoded, a name with a question mark would be cut off there.
        place = request.scope["raw_path"] + b"?" * bool(request.url.query)
        place += request.scope["query_string"]
        dropped = HOP_HEADERS | CLIENT_HEADERS
        headers = [(name, value) for name, value in request.headers.items() if name not in dropped]
        headers += [
            (WORKER_SECRET_HEADER, self._secret),
            ("X-Forwarded-For", self._access.client_address(request) or "unknown"),
            ("X-Forwarded-Proto", "https" if self._access.is_secure(request) else "http"),
        ]
        forwarded = self._http.build_request(
            request.method,
            self._url.copy_with(raw_path=place),
            headers=headers,
            content=request.stream() if has_body else None,
            extensions=SNI,
        )
        try:
            answer = await self._http.send(forwarded, stream=True)
        except httpx.HTTPError:
            return error_answer(DeskAwayError(), request.url.path)
        body, status = answer.aiter_raw(), answer.status_code
        response = ClosingResponse(body, answer.aclose, status_code=status)
        response.raw_headers = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.decode("latin-1").lower() not in HOP_HEADERS
        ]
        return response
