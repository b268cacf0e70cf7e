"""Asks every worker how it is, again and again, and hands the answers to the connections.

Owns one task a worker. Never assigns or releases anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from core.errors import WorkerUnreachableError
from core.schemas.worker import WorkerHealth
from gateway_modules.queue.worker_connection import UNANSWERED, WorkerConnection

PERIOD_S = 5.0  # between polls of a worker in service; docs/specification/service.md#3.5
SILENT_PERIOD_S = 1.0  # after a miss: between polls, and for each answer, until patience ends
IMPATIENT_PERIOD_S = 2.0  # of one that is not, same; ours: or whose capacity may grow any moment
CONFIRM_PERIOD_S = 0.25  # of one that still has to say that a session is gone
CONFIRM_LIMIT_S = 5.0  # after that the impatient period will do; same section

Probe = Callable[[WorkerConnection], Awaitable[WorkerHealth]]
"""Asks one worker; raises WorkerUnreachableError if it does not answer in time."""


class HealthMonitor:
    """Polls workers until stopped."""

    def __init__(self, probe: Probe, after_round: Callable[[WorkerConnection], None]) -> None:
        """Take what it needs; `start` begins.

        Args:
            probe: Asks one worker.
            after_round: Called after each answer or miss; work may be possible now.
        """
        self.is_running = False
        self._probe = probe
        self._after_round = after_round
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: dict[WorkerConnection, asyncio.Event] = {}
        self._log = structlog.get_logger("health")

    def start(self, workers: Iterable[WorkerConnection]) -> None:
        """Begin polling; each worker is asked at once."""
        self.is_running = True
        for worker in workers:
            self.add(worker)

    def add(self, worker: WorkerConnection) -> None:
        """Poll one more worker, once polling has begun."""
        if not self.is_running:
            return
        wake = self._wake[worker] = asyncio.Event()
        name = f"health {worker.worker_id}"
        task = asyncio.create_task(self._watch(worker, wake), name=name)
        self._tasks = {each for each in self._tasks if not each.done() or each.exception()} | {task}

    def remove(self, worker: WorkerConnection) -> None:
        """Poll a worker no more; its task ends by itself."""
        wake = self._wake.pop(worker, None)
        if wake is not None:
            wake.set()

    async def stop(self) -> None:
        """End polling and wait until it has ended.

        Raises:
            BaseExceptionGroup: A poller failed unexpectedly.
        """
        self.is_running = False
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [
            result
            for result in results
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError)
        ]
        if failures:
            raise BaseExceptionGroup("health polling failed", failures)

    def poke(self, worker: WorkerConnection) -> None:
        """Ask this worker now instead of at the end of its period."""
        event = self._wake.get(worker)
        if event is not None:
            event.set()

    async def check(self, worker: WorkerConnection) -> bool:
        """Ask one worker once and handle the answer.

        Returns:
            Whether the answer still held when it came; a miss counts as an answer.
        """
        before, epoch = worker.status, worker.service.epoch
        try:
            async with asyncio.timeout(SILENT_PERIOD_S if worker.is_silent else None):
                sample = await self._probe(worker)
        except (WorkerUnreachableError, TimeoutError) as error:
            # The cause says more, such as that a certificate is wrong.
            reason = str(error.__cause__ or error) or UNANSWERED
            if worker.observe_miss(reason):
                self._log.warning("worker lost", worker_id=worker.worker_id, reason=reason)
        else:
            worker.observe(sample, epoch)
            if worker.status is not before:
                self._log.info(
                    "worker changed",
                    worker_id=worker.worker_id,
                    was=before.value,
                    status=worker.status.value,
                )
        is_current = epoch == worker.service.epoch
        self._after_round(worker)
        return is_current

    async def _watch(self, worker: WorkerConnection, wake: asyncio.Event) -> None:
        confirming_s = 0.0
        while self._wake.get(worker) is wake:
            wake.clear()
            is_current = await self.check(worker)
            must_confirm = not is_current or worker.service.other_sessions > 0
            delay_s = poll_delay_s(worker, confirming_s if must_confirm else None)
            confirming_s = confirming_s + delay_s if must_confirm else 0.0
            try:
                async with asyncio.timeout(delay_s):
                    await wake.wait()
                    confirming_s = 0.0
            except TimeoutError:
                continue


def poll_delay_s(worker: WorkerConnection, confirming_s: float | None) -> float:
    """Return how long to wait before asking again.

    Args:
        worker: Whom.
        confirming_s: How long it has been asked whether a session is gone; None: nothing to ask.
    """
    if confirming_s is not None and confirming_s < CONFIRM_LIMIT_S:
        return CONFIRM_PERIOD_S
    if worker.is_silent:
        return SILENT_PERIOD_S
    service = worker.service
    is_changing = service.is_restarting or service.capacity < service.announced_slots
    if confirming_s is not None or is_changing or not worker.is_answering:
        return IMPATIENT_PERIOD_S
    return PERIOD_S
