"""A ticket: one request from its place in the queue to the slot it releases.

Its estimate, and the signed return ticket by which every gateway that has the same key knows the
place, so that nothing of the queue is stored.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self

from pydantic import SecretStr

from core.errors import OmniError
from core.files import ensure_token
from core.schemas.queue import SESSION_SECRET_BYTES, RequestType
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.models import QueueItem
from gateway_modules.queue.scheduling import EtaTracker, Forecast
from gateway_modules.queue.worker_connection import WorkerConnection, utc_now

TICKET_BYTES = 6  # "q_" and twice as many digits; docs/specification/service.md#3.1
UPDATE_PERIOD_S = 3.0  # between two `queue_update`; docs/specification/service.md#2.2
REFRESH = timedelta(seconds=0.25)


@dataclass(eq=False)
class Ticket:
    """A request from its place in the queue to the slot it releases when its block ends.

    Only its pool makes one, moves it and ends it.

    Attributes:
        ticket_id: "q_" and 12 hexadecimal digits.
        request_type: What the place is for.
        session_id: Whose it is, if known.
        enqueued_at: When it was drawn, with time zone.
        leave: Leaves the queue or releases the worker; the second time nothing happens.
        history_hash: History that it continues; "" if none.
        client: Whom its wait counts against, if anybody.
        owner: Hash of the secret that its client shows; "" if it has none.
        order: Its place among all others, those of other gateways too; see `ReturnTickets`.
        position: 1 is next, 0 is assigned, no longer waiting, or not known yet.
        estimated_wait_s: Estimated wait from now.
        assigned: The worker, None while it waits and if it is refused.
        is_cache_hit: The worker should hold exactly the history that was asked for.
        refusal: Why there will be no worker.
        has_started: Its session really began, so its duration counts for estimates.
        kept_hash: History that the worker's cache holds when the slot is released.
        changed: Set when position, worker or refusal changed.
    """

    ticket_id: str
    request_type: RequestType
    session_id: str | None
    enqueued_at: datetime
    leave: Callable[[Ticket], None]
    history_hash: str = ""
    client: str | None = None
    owner: str = ""
    order: int = 0
    position: int = 0
    estimated_wait_s: float = 0.0
    assigned: WorkerConnection | None = None
    is_cache_hit: bool = False
    refusal: OmniError | None = None
    has_started: bool = False
    kept_hash: str | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave(self)

    @property
    def is_waiting(self) -> bool:
        """It has neither a worker nor a refusal."""
        return self.assigned is None and self.refusal is None

    @property
    def cancelled(self) -> bool:
        """Cancelled by the client, by an administrator or at shutdown."""
        return self.refusal is not None

    @property
    def worker(self) -> WorkerConnection:
        """The worker; ask only when one is assigned."""
        assert self.assigned is not None, "no worker is assigned"
        return self.assigned

    def end_wait(
        self,
        outcome: WorkerConnection | OmniError,
        *,
        is_cache_hit: bool = False,
    ) -> None:
        """Assign the worker, or refuse."""
        self.position, self.estimated_wait_s = 0, 0.0
        if isinstance(outcome, OmniError):
            self.refusal = outcome
        else:
            self.assigned, self.is_cache_hit = outcome, is_cache_hit
        self.changed.set()

    def item(self, now: datetime) -> QueueItem:
        """Describe a place in the queue."""
        return QueueItem(
            ticket_id=self.ticket_id,
            request_type=self.request_type,
            session_id=self.session_id,
            position=self.position,
            estimated_wait_s=self.estimated_wait_s,
            enqueued_at=self.enqueued_at,
            wait_elapsed_s=round(max(0.0, (now - self.enqueued_at).total_seconds()), 1),
        )

    async def wait(
        self, on_wait: OnWait | None = None, period_s: float = UPDATE_PERIOD_S
    ) -> WorkerConnection:
        """Wait for its worker.

        Args:
            on_wait: Awaited if there is a wait at all: first, at every change of position, and
            period_s: at least so often.

        Raises:
            OmniError: It was cancelled or refused.
        """
        while self.is_waiting:
            self.changed.clear()
            if on_wait is not None and self.position:
                await on_wait(self)
            with suppress(TimeoutError):
                async with asyncio.timeout(period_s):
                    await self.changed.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.worker

    def note_started(self) -> None:
        self.has_started = True

    def retain(self, cached_hash: str) -> None:
        """Say which history the worker's cache holds when the slot is released; "": none."""
        self.kept_hash = cached_hash or None

    def update_status(self, status: WorkerStatus) -> None:
        """Say that a duplex session was paused or continues."""
        if self.assigned is not None:
            self.assigned.update_duplex_status(status, self.ticket_id)


OnWait = Callable[[Ticket], Awaitable[None]]
"""Reports its place to a waiting client."""


class Estimates:
    """How long each ticket waits, as of a moment ago.

    One look at every session and every waiting request takes 20 ms with 46,400 of them, so it is
    taken four times a second at most; what is drawn in between is put behind the others.
    """

    def __init__(self, eta_tracker: EtaTracker) -> None:
        """Start without an estimate; `eta_tracker` has the durations of requests."""
        self._eta_tracker = eta_tracker
        self._made_at: datetime | None = None
        self._forecast = Forecast(())

    def is_fresh(self, now: datetime) -> bool:
        """A refresh would change nothing yet."""
        return self._made_at is not None and abs(now - self._made_at) < REFRESH

    def refresh(
        self,
        queue: Iterable[Ticket],
        workers: Iterable[WorkerConnection],
        now: datetime,
        *,
        is_forced: bool,
    ) -> None:
        """Estimate every wait anew, unless that was done just now and it is not forced."""
        if self.is_fresh(now) and not is_forced:
            return
        eta_s = {kind: self._eta_tracker.get_eta(kind) for kind in RequestType}
        self._made_at = now
        self._forecast = Forecast(left for worker in workers for left in worker.occupied_s(eta_s))
        for ticket in queue:
            ticket.estimated_wait_s = self._forecast.add(eta_s[ticket.request_type])

    def add(self, ticket: Ticket, now: datetime) -> None:
        """Estimate the wait of a ticket behind all others, right after `is_fresh`."""
        assert self._made_at is not None, "nothing was estimated yet"
        wait_s = self._forecast.add(self._eta_tracker.get_eta(ticket.request_type))
        age_s = (now - self._made_at).total_seconds()
        ticket.estimated_wait_s = round(max(0.0, wait_s - age_s), 1)


TICKET_LIFE_S: Final = 60  # without being confirmed; as long as a session waits for its client
KEY_BYTES: Final = 32
TICKET_FILE: Final = "ticket_secret"  # there as long as somebody may have a ticket
MARK_BYTES: Final = 16  # of the signature
MICROSECONDS: Final = 1_000_000


def new_ticket_id() -> str:
    return f"q_{secrets.token_hex(TICKET_BYTES)}"


def new_session_secret() -> str:
    """Return the secret of a new session."""
    return secrets.token_hex(SESSION_SECRET_BYTES)


def is_same_secret(shown: str, secret: str) -> bool:
    """Compare a secret that somebody shows in constant time."""
    return hmac.compare_digest(shown.encode("utf-8", "surrogatepass"), secret.encode())


def hash_of(secret: str) -> str:
    """Return what names a secret to those who must not learn it."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class ReturnTickets:
    """Signs places in the queue: `order.confirmed.signature`, all numbers decimal.

    Attributes:
        is_gathering: An earlier gateway may have left people waiting, who come back now.
        has_holders: This one does.
    """

    def __init__(
        self,
        key: bytes | None = None,
        clock: Callable[[], datetime] = utc_now,
        *,
        is_gathering: bool = False,
    ) -> None:
        """Start without any ticket issued.

        Args:
            key: Signs; None takes a random one, which no other gateway knows.
            clock: Returns the time with its zone.
            is_gathering: See the attribute.
        """
        self.is_gathering = is_gathering
        self.has_holders = False
        self.key = key or secrets.token_bytes(KEY_BYTES)
        self._clock = clock
        self._last = 0
        self._spent: OrderedDict[int, float] = OrderedDict()  # those of the last `TICKET_LIFE_S`

    def draw(self) -> int:
        """Return a place behind all others: microseconds since 1970, or a little more."""
        self._last = max(self._last + 1, int(self._clock().timestamp() * MICROSECONDS))
        return self._last

    def issue(self, order: int, session_id: str, kind: str) -> str:
        """Return a ticket for a place, confirmed now."""
        named = f"{order}.{int(self._clock().timestamp())}"
        return f"{named}.{self._mark(named, session_id, kind)}"

    def read(self, ticket: str, session_id: str, kind: str) -> int | None:
        """Return the place of a ticket; None if it is not of this session, too old or spent."""
        named, _, mark = ticket.rpartition(".")
        if not is_same_secret(mark, self._mark(named, session_id, kind)):
            return None
        order, confirmed_s = map(int, named.split("."))
        if self._clock().timestamp() - confirmed_s > TICKET_LIFE_S or self.is_spent(order):
            return None
        self._last = max(self._last, order)
        return order

    def is_spent(self, order: int) -> bool:
        """Whether a worker was assigned to this place not long ago."""
        return order in self._spent

    def spend(self, order: int) -> None:
        """Revoke the ticket of a place: a worker was assigned."""
        now_s = self._clock().timestamp()
        self._spent[order] = now_s
        while now_s - next(iter(self._spent.values())) > TICKET_LIFE_S:
            self._spent.popitem(last=False)

    def _mark(self, named: str, session_id: str, kind: str) -> str:
        signed = f"{named}/{session_id}/{kind}".encode("utf-8", "surrogatepass")
        mark = hmac.digest(self.key, signed, "sha256")[:MARK_BYTES]
        return base64.urlsafe_b64encode(mark).decode().rstrip("=")


def opened_tickets(configured: SecretStr | None, data_dir: Path) -> ReturnTickets:
    """Return what signs places in the queue, as the gateway before did if its key is known.

    Never with another secret: a holder of a ticket could try out guesses of it.

    Raises:
        OSError: The key can be neither read nor written.
    """
    if configured is not None:
        return ReturnTickets(configured.get_secret_value().encode(), is_gathering=True)
    file = data_dir / TICKET_FILE
    is_gathering = file.exists()
    return ReturnTickets(ensure_token(file, KEY_BYTES).encode(), is_gathering=is_gathering)
