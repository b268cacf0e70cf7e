"""One request's place: first in the queue, then on a worker. Leaving gives back what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from core.errors import QueueCancelledError, ShuttingDownError
from core.schemas.worker import WorkerStatus
from gateway_modules.line import QueueEntry
from gateway_modules.models import LONG_REQUESTS, QueueTicket
from gateway_modules.worker_connection import WorkerConnection

if TYPE_CHECKING:
    from gateway_modules.worker_pool import WorkerPool

UPDATE_PERIOD_S = 3.0  # between two `queue_update`; docs/specification/service.md#2.2

OnWait = Callable[[QueueTicket], Awaitable[None]]
"""Tells a waiting client where it stands."""


class Place:
    """What a handler holds from queueing until it is done with its worker.

    Made by `WorkerPool.assigned` and `WorkerPool.place`, which see to it that it is left.
    """

    def __init__(self, pool: WorkerPool, entry: QueueEntry) -> None:
        """Hold an entry of a pool."""
        self._pool = pool
        self._entry = entry
        self._has_started = False
        self._cached_hash: str | None = None

    @property
    def ticket(self) -> QueueTicket:
        """Position and estimate, kept up to date."""
        return self._entry.ticket

    @property
    def is_assigned(self) -> bool:
        """A worker is ours."""
        return self._entry.worker is not None

    @property
    def worker(self) -> WorkerConnection:
        """The worker; ask only when one is assigned."""
        worker = self._entry.worker
        assert worker is not None, "no worker is assigned"
        return worker

    @property
    def is_cache_hit(self) -> bool:
        """The worker should hold exactly the history that was asked for."""
        return self._entry.is_cache_hit

    async def wait(
        self, on_wait: OnWait | None = None, period_s: float = UPDATE_PERIOD_S
    ) -> WorkerConnection:
        """Wait for a worker.

        Args:
            on_wait: Awaited first if there is a wait at all, then at every change of position and
                at least every `period_s`.
            period_s: See there.

        Returns:
            The worker; it is marked busy.

        Raises:
            QueueCancelledError: The ticket was cancelled.
            ShuttingDownError: The pool was stopped.
        """
        entry = self._entry
        if on_wait is None:
            await asyncio.wait(
                [entry.future]
            )  # unlike `await future`, leaves it alone if cancelled
        while on_wait is not None and not entry.future.done():
            entry.changed.clear()
            self._pool.refresh_estimates()
            await on_wait(entry.ticket)
            try:
                async with asyncio.timeout(period_s):
                    await entry.changed.wait()
            except TimeoutError:
                continue
        if not self.is_assigned:
            raise ShuttingDownError() if self._pool.is_stopped else QueueCancelledError()
        return self.worker

    def note_started(self) -> None:
        """Say that the session really began, so that its duration counts for estimates."""
        self._has_started = True

    def retain(self, cached_hash: str) -> None:
        """Say which history the worker's cache holds when this place is left."""
        self._cached_hash = cached_hash or None

    def update_status(self, status: WorkerStatus) -> None:
        """Say that a duplex session was paused or goes on."""
        if self.is_assigned:
            self.worker.update_duplex_status(status, self.ticket.ticket_id)

    def leave(self) -> None:
        """Give up the wait or give back the worker; the second time nothing happens."""
        ticket, worker = self.ticket, self._entry.worker
        if worker is None:
            self._pool.cancel(ticket.ticket_id)
            return
        self._pool.release_worker(
            worker,
            duration_s=worker.elapsed_s(ticket.ticket_id) if self._has_started else None,
            cached_hash=self._cached_hash,
            ticket_id=ticket.ticket_id,
            must_confirm=ticket.request_type in LONG_REQUESTS,
        )
