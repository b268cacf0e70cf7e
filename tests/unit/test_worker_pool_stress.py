"""Many requests at once: everybody is served, in order, and nobody is served twice."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from core.errors import QueueFullError
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_pool import WorkerPool
from tests.fakes.pools import ask, make_pool, workers_of
from tests.fakes.virtual_time import in_virtual_time

KINDS = ["chat", "streaming", "duplex"]


async def be_served(
    pool: WorkerPool, kind: str, served: list[str], *, marks_again: bool = False
) -> None:
    """Wait, work for a moment, release; some callers mark their worker busy once more."""
    ticket = pool.enqueue(kind, history_hash="h" if kind == "streaming" else None)
    worker = await ticket.wait()
    await asyncio.sleep(random.Random(len(served)).uniform(0.001, 0.01))
    if marks_again:
        worker.mark_busy(WorkerStatus.BUSY_CHAT, kind)
    served.append(kind)
    pool.release_worker(worker, kind, 0.01)


def release_all(pool: WorkerPool) -> None:
    """End what the workers were busy with at the beginning."""
    for worker in workers_of(pool):
        pool.release_worker(worker, "duplex", 1.0)


@in_virtual_time
async def test_a_hundred_at_once_get_a_hundred_positions() -> None:
    pool = make_pool(3, max_queue_size=200, are_busy=True)

    async def enqueue() -> int:
        return ask(pool, "chat")[0].position

    positions = await asyncio.gather(*[enqueue() for _ in range(100)])
    assert sorted(positions) == list(range(1, 101))
    assert pool.queue_length == 100


@in_virtual_time
@pytest.mark.parametrize("marks_again", [False, True])
async def test_two_hundred_are_served_by_three_workers(marks_again: bool) -> None:
    pool = make_pool(3, max_queue_size=300, are_busy=True)
    served: list[str] = []
    tasks = [
        asyncio.create_task(be_served(pool, "chat", served, marks_again=marks_again))
        for _ in range(200)
    ]
    await asyncio.sleep(0.01)
    release_all(pool)
    await asyncio.gather(*tasks)
    assert len(served) == 200
    assert (pool.queue_length, pool.idle_count) == (0, 3)


@in_virtual_time
async def test_fifty_rapid_releases() -> None:
    pool = make_pool(3, are_busy=True)
    futures = [ask(pool, "chat")[1] for _ in range(50)]
    while any(worker.is_busy for worker in workers_of(pool)):
        for worker in workers_of(pool):
            pool.release_worker(worker, "chat", 0.1)
    assert all(future.done() for future in futures)
    assert pool.queue_length == 0


@in_virtual_time
async def test_fifty_of_each_type() -> None:
    pool = make_pool(5, max_queue_size=200, are_busy=True)
    served: list[str] = []
    order = KINDS * 50
    tasks = [asyncio.create_task(be_served(pool, kind, served)) for kind in order]
    await asyncio.sleep(0.01)
    release_all(pool)
    await asyncio.gather(*tasks)
    assert sorted(served) == sorted(order)


@in_virtual_time
async def test_cancelling_half_serves_the_other_half() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    places = [ask(pool, "chat") for _ in range(100)]
    for ticket, _ in places[::2]:
        assert pool.cancel(ticket.ticket_id)
    assert pool.queue_length == 50
    for _, future in places[1::2]:
        assert not future.done()
        pool.release_worker(worker, "chat", 0.1)
        assert future.result() is worker
    assert all(future.cancelled() for _, future in places[::2])


@in_virtual_time
async def test_cancelling_all_empties_the_queue() -> None:
    pool = make_pool(are_busy=True)
    for ticket, _ in [ask(pool, "chat") for _ in range(50)]:
        pool.cancel(ticket.ticket_id)
    assert pool.queue_length == 0


@in_virtual_time
async def test_mixed_types_fill_the_queue_alike() -> None:
    pool = make_pool(max_queue_size=5, are_busy=True)
    for kind in ["chat", "streaming", "duplex", "chat", "streaming"]:
        ask(pool, kind, history_hash="h")
    with pytest.raises(QueueFullError):
        ask(pool, "duplex")


@in_virtual_time
async def test_a_hundred_one_after_the_other_between_releases() -> None:
    pool = make_pool(5, max_queue_size=200, are_busy=True)
    served: list[str] = []

    async def produce() -> None:
        for _ in range(100):
            await be_served(pool, "chat", served, marks_again=True)

    producing = asyncio.create_task(produce())
    await asyncio.sleep(0.005)
    release_all(pool)
    await producing
    assert len(served) == 100
    assert pool.queue_length == 0


@in_virtual_time
async def test_positions_have_no_holes_whatever_happens() -> None:
    pool = make_pool(2, max_queue_size=50, are_busy=True)
    draw = random.Random(7)
    waiting = [ask(pool, "chat")[0] for _ in range(20)]
    for _ in range(300):
        match draw.choice(["cancel", "release", "enqueue"]):
            case "cancel" if pool.queue_length:
                chosen = draw.choice([ticket for ticket in waiting if ticket.position])
                assert pool.cancel(chosen.ticket_id)
            case "release":
                pool.release_worker(draw.choice(workers_of(pool)))
            case "enqueue" if pool.queue_length < pool.max_queue_size:
                waiting.append(ask(pool, draw.choice(KINDS))[0])
        positions = [item.position for item in pool.get_queue_status().items]
        assert positions == list(range(1, pool.queue_length + 1))


def calls_of(act: Callable[[], object]) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


SMALL, LARGE = (8, 2), (64, 58)  # workers, slots of each
CALLS_PER_WORKER = 20


@in_virtual_time
@pytest.mark.parametrize("occupied", [0.0, 0.9, 1.0])
async def test_dispatch_looks_at_workers_and_not_at_their_sessions(occupied: float) -> None:
    """Health answers, releases and polls call it hundreds of times a second on a large service."""
    for workers, slots in (SMALL, LARGE):
        pool = make_pool(workers, slots=slots, max_queue_size=10_000)
        tickets = [pool.enqueue("omni_duplex") for _ in range(int(workers * slots * occupied))]
        for _ in range(500 if occupied == 1.0 else 0):
            pool.enqueue("omni_duplex")
        pool._dispatch_next()  # orders the free slots of those that changed
        assert calls_of(pool._dispatch_next) <= CALLS_PER_WORKER * workers
        if occupied == 0.9:
            assert calls_of(partial(pool.enqueue, "chat")) <= CALLS_PER_WORKER * workers + 500
            pool.leave(tickets[0])
