"""Service discovery and health checks: workers are listed by address or by a name in DNS.

A worker that is no longer listed gets no new sessions and is removed when its last one ends.
Nothing is assigned or released here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Final

import structlog

from core.errors import WorkerUnreachableError
from core.schemas.worker import ModelFacts, WorkerHealth, WorkerStatus
from gateway_modules.queue.worker_connection import (
    OUT_OF_SERVICE,
    UNANSWERED,
    Clock,
    WorkerConnection,
)
from gateway_modules.web.limits import happens
from settings.workers import WorkerPlace, worker_place

LOOK_UP_PERIOD_S: Final = 5.0  # the usual TTL of container networks' DNS
NO_SUCH_NAME: Final = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})
DOWN: Final = frozenset({WorkerStatus.OFFLINE, WorkerStatus.ERROR})

# Between two polls of a worker. Source of the first three: docs/specification/service.md#3.5.
POLL_PERIOD_S = 5.0  # in service
SILENT_PERIOD_S = 1.0  # after a missed poll, until it is offline; also the limit of each answer
FAST_PERIOD_S = 2.0  # out of service, or while its capacity may grow
CONFIRM_PERIOD_S = 0.25  # while it has to confirm the end of a session
CONFIRM_LIMIT_S = 5.0  # afterwards `FAST_PERIOD_S`

LOG: Final = structlog.get_logger("directory")


async def resolve(name: str, port: int) -> list[str]:
    """Ask the system's resolver; a name that does not exist has no addresses.

    If a name has IPv4 and IPv6 addresses, only one family is returned: otherwise each worker would
    be listed twice. Raises OSError on a temporary failure, UnicodeError for what cannot be a name.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in NO_SUCH_NAME:
            return []
        raise
    return [str(entry[4][0]) for entry in found if entry[0] == found[0][0]]


@dataclass(eq=False, repr=False)
class WorkerSet:
    workers: dict[str, WorkerConnection] = field(default_factory=dict, init=False)

    @property
    def ready_count(self) -> int:
        return sum(worker.status not in OUT_OF_SERVICE for worker in self.workers.values())

    def at(self, netloc: str) -> WorkerConnection | None:
        """Return the worker at "host:port", if there is one."""
        return next((w for w in self.workers.values() if w.place.netloc == netloc), None)

    def is_other_in_service(self, worker: WorkerConnection) -> bool:
        return any(w.is_in_service for w in self.workers.values() if w is not worker)

    def is_other_free(self, worker: WorkerConnection) -> bool:
        return any(w.available_slots for w in self.workers.values() if w is not worker)

    def has_live_worker(self) -> bool:
        """Whether waiting makes sense: some worker is, or will be, able to serve."""
        return any(w.status not in DOWN and not w.is_retiring for w in self.workers.values())

    def report_unreachable(self, worker: WorkerConnection) -> None:
        """Take a worker that could not be reached out of service until it answers again."""
        worker.mark_offline()


def loaded_model(workers: Iterable[WorkerConnection]) -> ModelFacts | None:
    for worker in workers:
        latest = worker.service.latest
        if worker.status not in DOWN and latest is not None and latest.model is not None:
            return latest.model
    return None


def poll_delay_s(worker: WorkerConnection, confirming_s: float | None) -> float:
    """Return the time to the next poll; `confirming_s` is how long a session's end is unconfirmed.

    None if nothing has to be confirmed.
    """
    if confirming_s is not None and confirming_s < CONFIRM_LIMIT_S:
        return CONFIRM_PERIOD_S
    if worker.is_silent:
        return SILENT_PERIOD_S
    service = worker.service
    is_changing = service.is_restarting or service.capacity < service.announced_slots
    if confirming_s is not None or is_changing or not worker.is_answering:
        return FAST_PERIOD_S
    return POLL_PERIOD_S


@dataclass(eq=False, repr=False)
class Directory(WorkerSet):
    """The workers of this process, polled by one task each."""

    addresses: InitVar[Sequence[str]]  # as for `worker_place`
    # Raises WorkerUnreachableError if the worker does not answer in time.
    _probe: Callable[[WorkerConnection], Awaitable[WorkerHealth]]
    _after_poll: Callable[[], None]
    _clock: Clock
    is_running: bool = False
    drained: set[str] = field(default_factory=set)  # names, of workers not yet found too
    _answers: dict[WorkerPlace, Sequence[str]] = field(default_factory=dict)
    _problems: dict[WorkerPlace, str] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self, addresses: Sequence[str]) -> None:
        self.resolve = resolve  # replaced in tests
        self._listed = _places(addresses)
        self._update()

    def start(self) -> None:
        self.is_running = True
        self._tasks.add(asyncio.create_task(self._watch_names(), name="directory"))
        for worker in self.workers.values():
            self._start_polling(worker)

    async def stop(self) -> None:
        """Stop polling; ExceptionGroup of what made polling fail before."""
        self.is_running = False
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        if failures := [result for result in results if isinstance(result, Exception)]:
            raise ExceptionGroup("health polling failed", failures)

    @property
    def is_known(self) -> bool:
        """Whether each listed name has been looked up."""
        return all(place in self._answers for place in self._listed if place.is_looked_up)

    @property
    def listed(self) -> list[str]:
        return [str(place) for place in self._listed]

    async def replace(self, listed: Sequence[str]) -> None:
        """Replace the list; workers in both lists are not affected."""
        self._listed = _places(listed)
        await self._look_up()

    def forget_left(self) -> None:
        """Remove the workers that are no longer listed and serve no session."""
        for worker in [one for one in self.workers.values() if one.has_left and not one.tasks]:
            del self.workers[worker.worker_id]
            worker.wake.set()  # its task ends by itself
            LOG.info("worker left", worker_id=worker.worker_id)

    def recheck(self, worker: WorkerConnection) -> None:
        """Poll a worker now, and assign it what it may take already."""
        worker.wake.set()
        self._after_poll()

    def report_unreachable(self, worker: WorkerConnection) -> None:
        super().report_unreachable(worker)
        worker.wake.set()

    def _start_polling(self, worker: WorkerConnection) -> None:
        name = f"health {worker.worker_id}"
        task = asyncio.create_task(self._poll_repeatedly(worker), name=name)
        self._tasks = {each for each in self._tasks if not each.done() or each.exception()} | {task}

    async def _poll_repeatedly(self, worker: WorkerConnection) -> None:
        confirming_s = 0.0
        while self._knows(worker):
            worker.wake.clear()
            must_confirm = not await self._poll(worker) or worker.service.foreign_sessions > 0
            delay_s = poll_delay_s(worker, confirming_s if must_confirm else None)
            confirming_s = confirming_s + delay_s if must_confirm else 0.0
            if await happens(worker.wake, delay_s):
                confirming_s = 0.0

    def _knows(self, worker: WorkerConnection) -> bool:
        return self.workers.get(worker.worker_id) is worker

    async def _poll(self, worker: WorkerConnection) -> bool:
        """Poll a worker once; return whether the result was current, that is of this epoch."""
        before, epoch = worker.status, worker.service.epoch
        try:
            async with asyncio.timeout(SILENT_PERIOD_S if worker.is_silent else None):
                sample = await self._probe(worker)
        except (WorkerUnreachableError, TimeoutError) as error:
            # The cause is more specific, for example a certificate that does not match; that of a
            # timeout is only its own cancellation.
            cause = error if isinstance(error, TimeoutError) else error.__cause__ or error
            reason = str(cause) or UNANSWERED
            if worker.observe_miss(reason):
                LOG.warning("worker lost", worker_id=worker.worker_id, reason=reason)
        else:
            worker.observe(sample, epoch)
            status = worker.status
            if status is not before:
                LOG.info("worker changed", worker_id=worker.worker_id, was=before, status=status)
        is_current = epoch == worker.service.epoch
        if self._knows(worker):  # else it left during the poll
            self._take_name(worker)
        if worker.service.latest is not None:  # else its name is only its place in the list
            worker.is_draining |= worker.worker_id in self.drained
        self._after_poll()
        return is_current

    def _take_name(self, worker: WorkerConnection) -> None:
        """Adopt the name a worker reports; of two listed workers with one name the first keeps it.

        One that is no longer listed loses its name to the worker that replaces it.
        """
        name = _own_name(worker)
        if name is None or name == worker.worker_id or worker.has_left:
            return
        other = self.workers.get(name)
        if other is not None and not other.has_left and _own_name(other) == name:
            problem = f"{other.place.netloc} is called {name} too; start one with --name."
            if worker.service.record_error(problem, self._clock()):
                LOG.warning("name taken", worker_id=worker.worker_id, reason=problem)
            return
        if other is not None:  # it is leaving, or was only named after its place in the list
            other.worker_id = other.place.netloc
        worker.worker_id = name
        by_name = {one.worker_id: one for one in self.workers.values()}
        self.workers.clear()  # in place: the pool shares this dict
        self.workers.update(by_name)
        LOG.info("worker named", worker_id=name, address=worker.place.netloc)

    async def _watch_names(self) -> None:
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
            except (OSError, UnicodeError) as error:  # the earlier answer remains in use
                problem = str(error)
                if problem != self._problems.get(place):
                    LOG.warning("name not looked up", name=place.host, reason=problem)
            self._problems[place] = problem
        self._update()
        self._after_poll()

    def _update(self) -> None:
        """Add a connection for each newly listed worker, and retire those no longer listed."""
        known = {worker.place: worker for worker in self.workers.values()}
        wanted: dict[WorkerPlace, str] = {}  # with a name until it reports its own
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
                if self.is_running:
                    self._start_polling(worker)


def _own_name(worker: WorkerConnection) -> str | None:
    return worker.service.latest.worker_id if worker.service.latest else None


def _places(listed: Sequence[str]) -> list[WorkerPlace]:
    places = [worker_place(text) for text in listed]
    if len(set(places)) < len(places):
        raise ValueError(f"a worker address comes twice: {', '.join(listed)}")
    return places
