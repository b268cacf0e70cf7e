"""What doors and their desk say to each other over one WebSocket a door.

Each text is a JSON list of messages. Tickets have the names that their doors give them. Nothing of
a conversation passes here: a door has its own sockets to the workers.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from core.errors import ErrorCode
from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from core.schemas.worker import ModelFacts, WorkerStatus
from gateway_modules.queue.ticket import TICKET_BYTES

DOOR_PATH: Final = "/internal/door"
DOOR_ID: Final = "X-Door-Id"  # header: a door that connects again ends its earlier connection

TicketId = Annotated[str, Field(pattern=rf"^q_[0-9a-f]{{{2 * TICKET_BYTES}}}$")]
Name = Annotated[str, Field(max_length=limits.ID_MAX_CHARS)]


class Enter(WireModel):
    """A request wants a worker.

    `order` is the place in the queue that it has already, and `is_return` that its client showed
    a return ticket for it: unlike the door's own word, such a ticket may be spent.
    """

    type: Literal["enter"] = "enter"
    ticket_id: TicketId
    request_type: RequestType
    session_id: Name | None = None
    history_hash: str = ""
    client: str | None = None
    order: int | None = None
    is_return: bool = False


class Adopt(WireModel):
    """A session runs on a worker already: it was resumed, or it outlived the earlier desk."""

    type: Literal["adopt"] = "adopt"
    ticket_id: TicketId
    request_type: RequestType
    session_id: Name | None = None
    worker: str


class Leave(WireModel):
    """A request needs its place or its worker no more."""

    type: Literal["leave"] = "leave"
    ticket_id: TicketId
    has_started: bool = False
    kept_hash: str | None = None


class StatusChanged(WireModel):
    """A duplex session was paused or continues."""

    type: Literal["status"] = "status"
    ticket_id: TicketId
    status: WorkerStatus


class Unreachable(WireModel):
    """The door could not reach a worker."""

    type: Literal["unreachable"] = "unreachable"
    worker: str


class Welcome(WireModel):
    """The first message of a desk: the key of return tickets, which doors sign and check."""

    type: Literal["welcome"] = "welcome"
    ticket_key: str = Field(repr=False, description="In hexadecimal digits.")


class WorkerState(WireModel):
    """What doors know of a worker."""

    worker_id: str
    host: str
    port: int
    status: WorkerStatus
    slots: int
    room: int
    misses: int
    is_retiring: bool
    is_draining: bool
    model: ModelFacts | None
    transcribes_by: Literal["whisper", "model"] | None


class Workers(WireModel):
    """The workers, whenever something of that changed."""

    type: Literal["workers"] = "workers"
    workers: list[WorkerState]


class WaitingTicket(NamedTuple):
    """A ticket of the door in the queue."""

    ticket_id: TicketId
    order: int
    position: int
    estimated_wait_s: float


class Queue(WireModel):
    """The queue, and those of the door's tickets whose place or estimate changed."""

    type: Literal["queue"] = "queue"
    length: int
    longest_wait_s: float
    tickets: list[WaitingTicket]


class Assigned(WireModel):
    """A ticket has a worker."""

    type: Literal["assigned"] = "assigned"
    ticket_id: TicketId
    order: int
    worker: str
    is_cache_hit: bool


class Refused(WireModel):
    """A ticket was refused or cancelled."""

    type: Literal["refused"] = "refused"
    ticket_id: TicketId
    code: ErrorCode
    message: str


class EndSession(WireModel):
    """An administrator ends a session."""

    type: Literal["end_session"] = "end_session"
    session_id: str


FromDoor = Annotated[
    Enter | Adopt | Leave | StatusChanged | Unreachable, Field(discriminator="type")
]
FromDesk = Annotated[
    Welcome | Workers | Queue | Assigned | Refused | EndSession, Field(discriminator="type")
]
FROM_DOOR: Final[TypeAdapter[list[FromDoor]]] = TypeAdapter(list[FromDoor])
FROM_DESK: Final[TypeAdapter[list[FromDesk]]] = TypeAdapter(list[FromDesk])
