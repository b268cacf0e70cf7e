"""What a relay needs of the pool, whichever process has it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from core.schemas.queue import RequestType
from gateway_modules.queue.directory import KnownWorkers
from gateway_modules.queue.ticket import ReturnTickets, Ticket
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import WorkerConnection


class Pool(Protocol):
    """`WorkerPool` in the same process, or `DeskClient` where the pool is another process."""

    client: WorkerClient
    tickets: ReturnTickets

    @property
    def directory(self) -> KnownWorkers:
        """The workers, as far as they are known here."""

    @property
    def is_open(self) -> bool:
        """It was started and not stopped."""

    @property
    def queue_length(self) -> int:
        """How many requests wait."""

    @property
    def longest_wait_s(self) -> float:
        """The longest estimate of all that wait."""

    @property
    def ready_count(self) -> int:
        """Workers that are busy or idle, as far as requests can be assigned to them."""

    async def start(self) -> None:
        """Start to track the workers."""

    async def stop(self) -> None:
        """Refuse new and waiting requests. Running ones continue."""

    def gather(self, gathering_s: float) -> None:
        """Assign nobody for so long, if those who waited at an earlier gateway may come back."""

    def close_intake(self) -> None:
        """Refuse new and waiting requests from now on."""

    async def wait_until_quiet(self, limit_s: float) -> bool:
        """Wait at most `limit_s` until nobody waits or is served."""

    def check_intake(self, client: str | None) -> None:
        """Raise what would refuse a new request of this client now, as far as that is known."""

    def refresh_estimates(self) -> None:
        """Bring the estimates of tickets up to date."""

    def ticket(
        self,
        request_type: str,
        session_id: str | None = None,
        history_hash: str | None = None,
        *,
        client: str | None = None,
        order: int | None = None,
    ) -> AbstractContextManager[Ticket]:
        """Have a ticket for the block; see `WorkerPool.ticket`."""

    def adopt(
        self, worker: WorkerConnection, request_type: RequestType, session_id: str | None
    ) -> Ticket:
        """Return a ticket, to `leave`, of a session that occupies its worker already."""

    def leave(self, ticket: Ticket) -> None:
        """Leave the queue or release the worker; the second time nothing happens."""
