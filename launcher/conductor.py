"""Control loop of a cluster: the number of seats, and the gateway's list of workers.

It may be restarted at any time, since the posts report all the state it needs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from launcher.posts import Cluster
from launcher.run_folder import Phase
from launcher.scaling import FRONT, SEAT, Bounds, Decision, PostStatus, Scaling

PERIOD_S: Final = 0.5
ANSWER_S: Final = 0.3  # a later response is used in the next iteration
FIRST_ANSWERS_S: Final = 5.0  # for all posts to respond to a new conductor before it lists any
END_MARGIN_S: Final = 15.0  # for a post to exit after its sessions have ended
NO_MACHINE: Final = "waiting for a machine"

log = logging.getLogger(__name__)


class ClusterError(Exception):
    """The cluster cannot be used; the text gives the reason."""


class Engine(Protocol):
    """Runs posts on machines, see `RayEngine`; the synchronous methods may block."""

    def names(self) -> Collection[str]: ...
    def create(self, name: str, cluster: Cluster) -> None: ...
    def kill(self, name: str) -> None: ...
    def draining_nodes(self) -> Collection[str]: ...
    def request(self, seats: int) -> None: ...
    async def status(self, name: str) -> PostStatus: ...
    async def list_workers(self, name: str, addresses: Sequence[str]) -> int | None: ...
    async def stop(self, name: str) -> None: ...


@dataclass(frozen=True)
class ClusterStatus:
    bounds: Bounds
    want: int
    waiting: int
    posts: Sequence[PostStatus]

    @property
    def is_serving(self) -> bool:
        ready = [post.name for post in self.posts if post.phase is Phase.READY]
        return FRONT in ready and any(name.startswith(SEAT) for name in ready)


class Conductor:
    """The control loop. Created inside a running event loop."""

    def __init__(
        self,
        engine: Engine,
        cluster: Cluster,
        bounds: Bounds,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._cluster, self._clock = engine, cluster, clock
        self._scaling = Scaling(bounds)
        self._known: dict[str, PostStatus] = {}
        self._asked: dict[str, asyncio.Task[PostStatus]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._decision = Decision(bounds.least, (), frozenset(), ())
        self._requested = self._waiting = 0
        self._answer_s = FIRST_ANSWERS_S
        self._run = asyncio.get_running_loop().create_task(self._repeat())

    async def orders(self) -> tuple[Cluster, Bounds]:
        return self._cluster, self._scaling.bounds

    async def status(self) -> ClusterStatus:
        posts = sorted(self._known.values(), key=lambda post: (len(post.name), post.name))
        want = self._decision.want
        return ClusterStatus(self._scaling.bounds, want, self._waiting, posts)

    async def close(self) -> None:
        tasks = [self._run, *self._asked.values(), *self._ending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def step(self) -> None:
        names = await asyncio.to_thread(self._engine.names)
        await self._ask(names)
        if FRONT not in names:
            await asyncio.to_thread(self._engine.create, FRONT, self._cluster)
        leaving = await asyncio.to_thread(self._engine.draining_nodes)
        seats = [post for name, post in self._known.items() if name.startswith(SEAT)]
        self._decision = self._scaling.decide(seats, self._waiting, self._clock(), leaving)
        if self._requested != self._decision.want:
            self._requested = self._decision.want
            await asyncio.to_thread(self._engine.request, self._requested)
        for name in self._decision.create:
            log.info("creating %s", name)
            await asyncio.to_thread(self._engine.create, name, self._cluster)
        await self._list(names)
        self._end_in_background(self._decision.end)

    async def _repeat(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:  # process boundary: the next iteration retries
                log.exception("an iteration failed")
            await asyncio.sleep(PERIOD_S)

    async def _ask(self, names: Collection[str]) -> None:
        """Query every post; one that does not respond keeps its last status."""
        gone = [self._asked.pop(name) for name in list(self._asked) if name not in names]
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        for name in names:
            if name not in self._asked:
                self._asked[name] = asyncio.create_task(self._engine.status(name))
        if self._asked:
            await asyncio.wait(self._asked.values(), timeout=self._answer_s)
        self._answer_s = ANSWER_S
        known = {name: self._known.get(name) for name in names}
        for name, task in list(self._asked.items()):
            if task.done():
                del self._asked[name]
                known[name] = known[name] if task.exception() else task.result()
        self._known = {
            name: post or PostStatus(name, Phase.STARTING, note=NO_MACHINE)
            for name, post in sorted(known.items())
        }

    async def _list(self, names: Collection[str]) -> None:
        """Send the front the list of workers, and read its queue length."""
        if FRONT not in names:
            return
        addresses = [
            post.address
            for name, post in self._known.items()
            if post.address and name.startswith(SEAT) and name not in self._decision.draining
        ]
        listing = asyncio.wait_for(self._engine.list_workers(FRONT, addresses), ANSWER_S)
        # The next iteration repeats it; meanwhile the front may be moving to another machine.
        (waiting,) = await asyncio.gather(listing, return_exceptions=True)
        self._waiting = waiting if isinstance(waiting, int) else self._waiting

    def _end_in_background(self, names: Sequence[str]) -> None:
        self._ending = {name: task for name, task in self._ending.items() if name in self._known}
        for name, task in list(self._ending.items()):
            if task.done() and (error := task.exception()):
                log.error("%s was not ended and is tried again: %s", name, error)
                del self._ending[name]
        for name in names:
            if name not in self._ending:
                self._ending[name] = asyncio.create_task(self._end(name))

    async def _end(self, name: str) -> None:
        log.info("ending %s", name)
        if self._known[name].note != NO_MACHINE:
            limit_s = self._cluster.settings.service.drain_timeout_s + END_MARGIN_S
            stopping = asyncio.wait_for(self._engine.stop(name), limit_s)
            await asyncio.gather(stopping, return_exceptions=True)  # it is killed below
        await asyncio.to_thread(self._engine.kill, name)
