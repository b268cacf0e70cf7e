"""Who is connected now: how many, from where, and under which session id."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Final

from pydantic import AwareDatetime, Field

from core.errors import RateLimitedError, SessionInUseError
from core.protocols.events import Event
from core.protocols.queueing import QueueingPhase
from core.schemas.common import WireModel
from core.schemas.queue import RequestType
from gateway_modules.relay.relay import Relay

# A page that opens a new socket as soon as it has closed the old one must find its id free.
TAKEOVER_GRACE_S: Final = 1.0


class SessionInfo(WireModel):
    """One connected session, or a conversation that a worker still has cached."""

    session_id: str = Field(description="The session; empty for a remembered conversation.")
    request_type: RequestType | None = Field(None, description="What it is.")
    worker_id: str | None = Field(None, description="Its worker, if it has one now.")
    phase: QueueingPhase | None = Field(None, description="Where it stands.")
    messages_hash: str | None = Field(None, description="Start of its history's hash.")
    last_active: AwareDatetime | None = Field(None, description="When it began, or was used.")


class SessionList(WireModel):
    """Answer to `GET /sessions`."""

    total: int = Field(ge=0, description="How many there are.")
    sessions: list[SessionInfo] = Field(description="All of them.")


class LiveSessions:
    """The connected clients. At most `max_connections`; one more is refused."""

    def __init__(
        self, max_connections: int, per_client: int, grace_s: float = TAKEOVER_GRACE_S
    ) -> None:
        self._max_connections = max_connections
        self._per_client = per_client
        self._grace_s = grace_s
        self._total = 0
        self._by_client: Counter[str] = Counter()
        self._relays: dict[str, tuple[Relay, datetime]] = {}
        self._left = asyncio.Event()  # set when somebody leaves, and replaced by another

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Count a socket for the block, or raise RateLimitedError; client "" is exempt."""
        if self._total >= self._max_connections:
            raise RateLimitedError("The server has as many connections as it may have.")
        if client and self._by_client[client] >= self._per_client:
            raise RateLimitedError("There are too many connections of your address.")
        self._total += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self._total -= 1
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]

    @asynccontextmanager
    async def entered(self, relay: Relay) -> AsyncIterator[None]:
        """Have a session id for the block; SessionInUseError while another live socket has it."""
        session_id = relay.request.session_id
        try:
            async with asyncio.timeout(self._grace_s):
                while session_id in self._relays:
                    await self._left.wait()
        except TimeoutError:
            raise SessionInUseError() from None
        self._relays[session_id] = relay, datetime.now(UTC)
        try:
            yield
        finally:
            del self._relays[session_id]
            left, self._left = self._left, asyncio.Event()
            left.set()

    def get(self, session_id: str) -> Relay | None:
        known = self._relays.get(session_id)
        return known[0] if known else None

    def relays(self) -> list[Relay]:
        return [relay for relay, _ in self._relays.values()]

    def ids_of(self, session_secret: str) -> frozenset[str]:
        return frozenset(
            relay.request.session_id for relay in self.relays() if relay.request.has(session_secret)
        )

    def infos(self) -> list[SessionInfo]:
        return [
            SessionInfo(
                session_id=relay.request.session_id,
                request_type=relay.request.request_type,
                worker_id=relay.worker_id,
                phase=relay.phase,
                last_active=since,
            )
            for relay, since in self._relays.values()
        ]

    def post_to_all(self, event: Event) -> None:
        for relay in self.relays():
            relay.post(event)

    async def wait_until_empty(self, limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while self._relays:
                    await self._left.wait()
        except TimeoutError:
            return False
        return True
