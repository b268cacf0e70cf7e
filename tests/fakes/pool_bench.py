"""A pool, its model and the loop they live in; what the random lives of a pool are made of."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from datetime import timedelta

from hypothesis.stateful import RuleBasedStateMachine

from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import Ticket, WorkerConnection
from gateway_modules.queue.worker_pool import WorkerPool
from tests.fakes.pool_model import ModelAnswer, ModelWorker, PoolModel
from tests.fakes.pools import answer
from tests.fakes.virtual_time import FakeClock, VirtualTimeLoop, let_others_run

SETTLED = 12  # turns after which every handler has come to its next stop
REMEMBERED = 6  # moments of the past from which an answer may come

Act = Callable[[], None]


class SilentClient(WorkerClient):
    """Never hears of a worker; the machine itself speaks for the workers."""

    async def health(self, worker: WorkerConnection) -> WorkerHealth:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


class PoolBench(RuleBasedStateMachine):
    """Holds a pool and its model, does things to both in chosen turns, compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(tick=timedelta(microseconds=1))
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.tickets: list[Ticket] = []
        self.handlers: list[asyncio.Task[None]] = []
        self.doors: dict[int, asyncio.Future[str]] = {}
        self.burst: list[Act] = []
        self.past: list[deque[tuple[int, int]]] = []
        self.prepare(1, 0)

    def prepare(self, workers: int, capacity: int) -> None:
        self.model = PoolModel(workers, capacity)
        self.starts = [self.clock.now] * workers
        self.pool = WorkerPool(
            [f"w:{port}" for port in range(1, workers + 1)],
            max_queue_size=capacity,
            client=SilentClient(),
            clock=self.clock,
        )
        self.workers = list(self.pool.workers.values())
        self.past = [deque([(0, 0)], maxlen=REMEMBERED) for _ in self.workers]
        self.runner.run(self.pool.start())

    # Turns of the loop.

    def now(self, act: Act, *, together: bool = False) -> None:
        """Do it: at once, or in one turn with the next thing that is done at once."""
        self.burst.append(act)
        if not together:
            self.settle(SETTLED)

    def settle(self, turns: int) -> None:
        burst, self.burst = self.burst, []

        async def play() -> None:
            for act in burst:
                self.note_epochs()
                act()
                self.compare()
            await let_others_run(turns)

        self.runner.run(play())
        self.compare()
        for task in [task for task in self.handlers if task.done()]:
            self.handlers.remove(task)
            if not task.cancelled():
                task.result()

    def note_epochs(self) -> None:
        for past, worker, model in zip(self.past, self.workers, self.model.workers, strict=True):
            past.append((worker.service.epoch, model.changes))

    # Telling the model.

    def drop(self, number: int, *, only_if: bool = True) -> None:
        if only_if:
            self.model.leave(number, None, confirms=False)

    def raw_served(self) -> list[int]:
        """Requests that are served and have no handler."""
        return sorted(set(self.model.served_by) - set(self.doors))

    def say_idle(self, index: int, slots: int) -> None:
        told = ModelAnswer("idle", slots, None, False, self.age(index))
        self.tell(index, told, WorkerStatus.IDLE, epoch=None)

    def age(self, index: int) -> float:
        """When the worker's process began, s on the machine's clock."""
        return self.starts[index].timestamp()

    def tell(self, index: int, told: ModelAnswer, status: WorkerStatus, epoch: int | None) -> None:
        """Hand the same answer to pool and model; None: it was asked for just now."""
        worker, model = self.workers[index], self.model.workers[index]
        sample = answer(
            status,
            slots=told.slots,
            active_sessions=told.active,
            kv_cache_length=0 if told.is_empty else 7,
            boot_id=str(self.age(index)),
        )
        is_stale = epoch is not None and epoch != worker.service.epoch
        worker.observe(sample, worker.service.epoch if epoch is None else epoch)
        self.pool._dispatch_next()
        self.model.answer(model, told, is_stale=is_stale)

    # What must hold at any moment.

    def compare(self) -> None:
        model, waiting = self.model, list(self.pool._queue.values())
        assert waiting == [self.tickets[one] for one in model.queue]
        assert [ticket.position for ticket in waiting] == list(range(1, len(waiting) + 1))
        assert len(waiting) <= model.capacity
        assert all(ticket.estimated_wait_s >= 0 for ticket in self.tickets)
        last_served = max(self.ever_served(), default=-1)
        assert all(number > last_served for number in model.queue), "somebody overtook"
        for worker, expected in zip(self.workers, model.workers, strict=True):
            self.compare_worker(worker, expected)
            assert not (waiting and worker.available_slots), "somebody waits for nothing"
        for number, index in model.served_by.items():
            assert self.tickets[number].worker is self.workers[index]

    def compare_worker(self, worker: WorkerConnection, expected: ModelWorker) -> None:
        held = [task.ticket_id for task in worker.tasks]
        assert len(set(held)) == len(held), "a request has two slots"
        holders = [slot.holder for slot in expected.slots if slot.holder is not None]
        assert sorted(held) == sorted(self.tickets[holder].ticket_id for holder in holders)
        unused = [slot for slot in expected.by_value() if slot.cache is not None]
        assert list(worker.caches) == [slot.cache for slot in unused], "longest ago first"
        assert len(worker.slot_caches) == len(expected.slots)
        assert worker.available_slots == len(expected.usable())
        assert worker.is_in_service == (expected.is_up and not expected.is_draining)
        assert worker.service.foreign_sessions == expected.others

    def ever_served(self) -> list[int]:
        return [number for number, ticket in enumerate(self.tickets) if ticket.assigned is not None]
