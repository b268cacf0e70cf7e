"""Which workers there are and how they are: listed or found by name in DNS, and asked in turns.

A worker that is not listed any more gets nothing new, and is forgotten when its last conversation
has ended. Assigns and releases nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import structlog

from core.errors import WorkerUnreachableError
from core.schemas.worker import ModelFacts, WorkerHealth, WorkerStatus
from gateway_modules.queue.worker_connection import UNANSWERED, WorkerConnection
from settings.workers import WorkerPlace, worker_place

LOOK_UP_PERIOD_S: Final = 5.0  # ours: DNS of container networks says that an answer is old by then
NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})

POLL_PERIOD_S = 5.0  # between polls of a worker in service; docs/specification/service.md#3.5
SILENT_PERIOD_S = 1.0  # after a miss: between polls, and for each answer, until patience ends
IMPATIENT_PERIOD_S = 2.0  # of one that is not, same; ours: or whose capacity may grow any moment
CONFIRM_PERIOD_S = 0.25  # of one that still has to say that a session is gone
CONFIRM_LIMIT_S = 5.0  # after that the impatient period will do; same section

LOG: Final = structlog.get_logger("directory")

Probe = Callable[[WorkerConnection], Awaitable[WorkerHealth]]
"""Asks one worker; raises WorkerUnreachableError if it does not answer in time."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a name; raises OSError if that cannot be known now."""


async def resolve(name: str, port: int) -> list[str]:
    """Ask the system's resolver; a name that does not exist has no addresses.

    Of a name with addresses of both kinds one kind is returned, or each worker would come twice.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in NO_SUCH_NAME:
            return []
        raise
    return [str(entry[4][0]) for entry in found if entry[0] == found[0][0]]


class KnownWorkers:
    def __init__(self) -> None:
        self.workers: dict[str, WorkerConnection] = {}

    def is_served_beside(self, worker: WorkerConnection) -> bool:
        return any(w.is_in_service for w in self.workers.values() if w is not worker)

    def has_room_beside(self, worker: WorkerConnection) -> bool:
        return any(w.room for w in self.workers.values() if w is not worker)

    def is_anybody_left(self) -> bool:
        gone = (WorkerStatus.OFFLINE, WorkerStatus.ERROR)
        return any(w.status not in gone and not w.is_retiring for w in self.workers.values())

    def report_unreachable(self, worker: WorkerConnection) -> None:
        """Give a worker that could not be reached nothing new until it answers again."""
        worker.suspect()


class HealthMonitor:
    def __init__(self, probe: Probe, after_round: Callable[[WorkerConnection], None]) -> None:
        self.is_running = False
        self._probe = probe
        self._after_round = after_round
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: dict[WorkerConnection, asyncio.Event] = {}
        self._log = structlog.get_logger("health")

    def start(self, workers: Iterable[WorkerConnection]) -> None:
        self.is_running = True
        for worker in workers:
            self.add(worker)

    def add(self, worker: WorkerConnection) -> None:
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
        event = self._wake.get(worker)
        if event is not None:
            event.set()

    async def check(self, worker: WorkerConnection) -> bool:
        """Ask one worker once; return whether the answer, or the miss, still held when it came."""
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


def loaded_model(workers: Iterable[WorkerConnection]) -> ModelFacts | None:
    for worker in workers:
        latest = worker.service.latest
        is_there = worker.status not in (WorkerStatus.OFFLINE, WorkerStatus.ERROR)
        if is_there and latest is not None and latest.model is not None:
            return latest.model
    return None


def poll_delay_s(worker: WorkerConnection, confirming_s: float | None) -> float:
    """`confirming_s`: how long it was asked whether a session is gone; None: nothing to ask."""
    if confirming_s is not None and confirming_s < CONFIRM_LIMIT_S:
        return CONFIRM_PERIOD_S
    if worker.is_silent:
        return SILENT_PERIOD_S
    service = worker.service
    is_changing = service.is_restarting or service.capacity < service.announced_slots
    if confirming_s is not None or is_changing or not worker.is_answering:
        return IMPATIENT_PERIOD_S
    return POLL_PERIOD_S


class Directory(KnownWorkers):
    def __init__(
        self,
        listed: Sequence[str],
        probe: Probe,
        after_round: Callable[[], None],
        clock: Callable[[], datetime],
    ) -> None:
        """`listed` is as for `worker_place`; `after_round` is called after each answer or miss."""
        super().__init__()
        self.monitor = HealthMonitor(probe, self._after_poll)
        self._after_round = after_round
        self._clock = clock
        self.resolve: Resolve = resolve
        self._listed = _places(listed)
        self._answers: dict[WorkerPlace, Sequence[str]] = {}
        self._problems: dict[WorkerPlace, str] = {}
        self._leaving: list[WorkerConnection] = []
        self._task: asyncio.Task[None] | None = None
        self._update()

    def start(self) -> None:
        self.monitor.start(self.workers.values())
        self._task = asyncio.create_task(self._watch(), name="directory")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self.monitor.stop()

    @property
    def listed(self) -> list[str]:
        return [f"{'dns:' * place.is_looked_up}{place.netloc}" for place in self._listed]

    async def replace(self, listed: Sequence[str]) -> None:
        """List other workers; those that are in both lists notice nothing."""
        self._listed = _places(listed)
        await self._look_up()

    def forget_left(self) -> None:
        for worker in [one for one in self._leaving if not one.is_serving]:
            self._leaving.remove(worker)
            del self.workers[worker.worker_id]
            self.monitor.remove(worker)
            LOG.info("worker left", worker_id=worker.worker_id)

    def recheck(self, worker: WorkerConnection) -> None:
        self.monitor.poke(worker)
        self._after_round()

    def report_unreachable(self, worker: WorkerConnection) -> None:
        super().report_unreachable(worker)
        self.monitor.poke(worker)

    def _after_poll(self, worker: WorkerConnection) -> None:
        if self.workers.get(worker.worker_id) is worker:  # else it left while it was asked
            self._take_name(worker)
        self._after_round()

    def _take_name(self, worker: WorkerConnection) -> None:
        """Call a worker what it calls itself; of two of one name the first keeps it."""
        name = _own_name(worker)
        if name is None or name == worker.worker_id:
            return
        other = self.workers.get(name)
        if other is not None and _own_name(other) == name:
            problem = f"{other.place.netloc} is called {name} too; start one with --name."
            if worker.service.note_error(problem, self._clock()):
                LOG.warning("name taken", worker_id=worker.worker_id, reason=problem)
            return
        if other is not None:  # its name was only its place in the list
            other.worker_id = other.place.netloc
        worker.worker_id = name
        by_name = {one.worker_id: one for one in self.workers.values()}
        self.workers.clear()  # not replaced: others hold it
        self.workers.update(by_name)
        LOG.info("worker named", worker_id=name, address=worker.place.netloc)

    async def _watch(self) -> None:
        while True:
            if any(place.is_looked_up for place in self._listed):
                await self._look_up()
            await asyncio.sleep(LOOK_UP_PERIOD_S)

    async def _look_up(self) -> None:
        for place in self._listed:
            if not place.is_looked_up:
                continue
            problem = ""
            try:
                self._answers[place] = await self.resolve(place.host, place.port)
            except OSError as error:  # what was known stays true
                problem = str(error)
            if problem and problem != self._problems.get(place):
                LOG.warning("name not looked up", name=place.host, reason=problem)
            self._problems[place] = problem
        self._update()
        self._after_round()

    def _update(self) -> None:
        """Have a connection to each worker that is listed, and let the others end."""
        known = {worker.place: worker for worker in self.workers.values()}
        wanted: dict[WorkerPlace, str] = {}  # and what it is called until it says so itself
        for index, place in enumerate(self._listed):
            if place.is_looked_up:
                found = [WorkerPlace(host, place.port) for host in self._answers.get(place, ())]
                wanted |= {one: one.netloc for one in found}
            else:
                wanted[place] = f"worker_{index}"
        for place, worker in known.items():
            worker.has_left = place not in wanted
        for place, name in wanted.items():
            if place not in known:
                name = place.netloc if name in self.workers else name
                worker = self.workers[name] = WorkerConnection(name, place, self._clock)
                self.monitor.add(worker)
        self._leaving = [worker for worker in self.workers.values() if worker.has_left]


def _own_name(worker: WorkerConnection) -> str | None:
    return worker.service.latest.worker_id if worker.service.latest else None


def _places(listed: Sequence[str]) -> list[WorkerPlace]:
    places = [worker_place(text) for text in listed]
    if len(set(places)) < len(places):
        raise ValueError(f"a worker address comes twice: {', '.join(listed)}")
    return places
