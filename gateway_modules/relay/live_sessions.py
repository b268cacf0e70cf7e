"""Connected clients: limits on their number, and their relays by session id."""

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
from gateway_modules.web.limits import subtract

# A page may open a new socket right after closing the old one under the same id.
TAKEOVER_GRACE_S: Final = 1.0


class SessionInfo(WireModel):
    """A connected session, or a conversation in a worker's cache."""

    session_id: str = Field(description="Session id; empty for a cached conversation.")
    request_type: RequestType | None = Field(None, description="Request type.")
    worker_id: str | None = Field(None, description="Its worker, if assigned.")
    phase: QueueingPhase | None = Field(None, description="Its phase.")
    messages_hash: str | None = Field(None, description="Prefix of its history's hash.")
    last_active: AwareDatetime | None = Field(None, description="When it began, or was last used.")


class SessionList(WireModel):
    """Answer to `GET /sessions`."""

    total: int = Field(ge=0, description="Number of sessions.")
    sessions: list[SessionInfo] = Field(description="All sessions.")


class LiveSessions:
    """The connected clients; more than `max_connections` are refused."""

    def __init__(
        self, max_connections: int, per_client: int, grace_s: float = TAKEOVER_GRACE_S
    ) -> None:
        self._max_connections = max_connections
        self._per_client = per_client
        self._grace_s = grace_s
        self._total = 0
        self._by_client: Counter[str] = Counter()
        self._relays: dict[str, tuple[Relay, datetime]] = {}
        self._left = asyncio.Event()  # set when a session ends, then replaced

    @contextmanager
    def counted(self, client: str) -> Iterator[None]:
        """Count a socket for the block; RateLimitedError if too many. Client "" is exempt."""
        if self._total >= self._max_connections:
            raise RateLimitedError("The server has reached its limit of connections.")
        if client and self._by_client[client] >= self._per_client:
            raise RateLimitedError("There are too many connections from your address.")
        self._total += 1
        self._by_client[client] += 1
        try:
            yield
        finally:
            self._total -= 1
            subtract(self._by_client, client)

    @asynccontextmanager
    async def entered(self, relay: Relay) -> AsyncIterator[None]:
        """Own the session id for the block; SessionInUseError while another live socket has it."""
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
