"""The queue and who gets a worker: order, capacity, cancellation, release."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

import pytest

from core.errors import QueueFullError
from core.schemas.worker import WorkerStatus
from tests.fakes.pools import (
    ask,
    assigned,
    busy_count,
    count,
    end_sessions,
    idle_count,
    make_pool,
    new_ticket,
    release,
    workers_of,
)
from tests.fakes.virtual_time import FakeClock, in_virtual_time, let_others_run

BUSY_TYPES = {
    "chat": WorkerStatus.BUSY_CHAT,
    "streaming": WorkerStatus.BUSY_STREAMING,
    "half_duplex_audio": WorkerStatus.BUSY_HALF_DUPLEX,
    "audio_duplex": WorkerStatus.DUPLEX_ACTIVE,
    "omni_duplex": WorkerStatus.DUPLEX_ACTIVE,
    "duplex": WorkerStatus.DUPLEX_ACTIVE,
}


# Order.


@in_virtual_time
async def test_three_requests_are_served_in_order() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    places = [ask(pool, kind) for kind in ("chat", "streaming", "duplex")]
    assert [ticket.position for ticket, _ in places] == [1, 2, 3]
    for number, (ticket, future) in enumerate(places):
        assert not future.done()
        release(pool, worker)
        assert future.result() is worker
        assert [one.position for one, _ in places[number:]] == list(range(3 - number))
        assert worker.status is BUSY_TYPES[ticket.request_type]


@in_virtual_time
async def test_a_newcomer_never_overtakes_even_when_a_worker_is_free() -> None:
    """A drained worker that is free must not let the second in line past the first."""
    pool = make_pool(2, are_busy=True)
    first, second = workers_of(pool)
    _, waiting = ask(pool, "chat")
    pool.drain_worker(first)
    release(pool, first)
    _, newcomer = ask(pool, "chat")
    assert not waiting.done()
    assert not newcomer.done()
    pool.drain_worker(first, is_draining=False)
    assert waiting.result() is first
    assert not newcomer.done()
    release(pool, second)
    assert newcomer.result() is second


@in_virtual_time
async def test_a_request_that_lost_its_worker_goes_first_even_if_the_queue_is_full() -> None:
    pool = make_pool(are_busy=True, max_queue_size=1)
    (worker,) = workers_of(pool)
    _, waiting = ask(pool, "chat")
    pool.is_intake_paused = True
    with pool.enqueue(new_ticket("chat", order=1)) as ticket:
        assert ticket.position == 1
        release(pool, worker)
        assert ticket.assigned and not waiting.done()
    assert waiting.result() is worker


@in_virtual_time
async def test_each_release_serves_one() -> None:
    pool = make_pool(2, are_busy=True)
    first, second = workers_of(pool)
    futures = [ask(pool, "chat")[1] for _ in range(3)]
    release(pool, first)
    release(pool, second)
    assert [future.done() for future in futures] == [True, True, False]
    assert futures[0].result() is first
    assert futures[1].result() is second


@in_virtual_time
async def test_mixed_types_stay_in_order() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    kinds = ["chat", "streaming", "duplex", "half_duplex", "audio_duplex", "chat", "omni_duplex"]
    futures = [ask(pool, kind, history_hash="h")[1] for kind in kinds]
    for number in range(len(kinds)):
        release(pool, worker)
        assert [future.done() for future in futures].count(True) == number + 1
        assert futures[number].done()


# Immediate assignment and capacity.


@in_virtual_time
async def test_with_a_free_worker_requests_do_not_queue() -> None:
    pool = make_pool(3)
    for kind in ("chat", "streaming", "duplex"):
        ticket, future = ask(pool, kind, "someone")
        assert future.done()
        assert (ticket.position, ticket.estimated_wait_s, ticket.refusal) == (0, 0.0, None)
        assert future.result().tasks[0].session_id == "someone"
    assert pool.queue_length == 0
    assert (idle_count(pool), busy_count(pool)) == (0, 3)
    assert count(pool, WorkerStatus.DUPLEX_ACTIVE) == 1


@in_virtual_time
async def test_ticket_names() -> None:
    pool = make_pool(are_busy=True)
    names = {ask(pool, "chat")[0].ticket_id for _ in range(50)}
    assert len(names) == 50
    assert all(len(name) == 14 and name.startswith("q_") for name in names)
    assert all(int(name[2:], 16) >= 0 for name in names)


@in_virtual_time
async def test_a_full_queue_refuses_at_exactly_its_size() -> None:
    pool = make_pool(max_queue_size=10, are_busy=True)
    tickets = [ask(pool, kind)[0] for kind in list(BUSY_TYPES) + ["chat"] * 4]
    with pytest.raises(QueueFullError, match=r"Queue full \(10 requests\)"):
        ask(pool, "duplex")
    assert pool.queue_length == 10
    pool.cancel(tickets[0].ticket_id)
    assert ask(pool, "chat")[0].position == 10


@in_virtual_time
async def test_only_waiting_requests_count_towards_the_limit() -> None:
    pool = make_pool(3, max_queue_size=1)
    assert all(ask(pool, "chat")[1].done() for _ in range(3))
    assert not ask(pool, "chat")[1].done()
    with pytest.raises(QueueFullError):
        ask(pool, "chat")


@in_virtual_time
async def test_a_queue_of_size_zero_still_assigns() -> None:
    pool = make_pool(max_queue_size=0)
    assert ask(pool, "chat")[1].done()
    with pytest.raises(QueueFullError):
        ask(pool, "chat")


@in_virtual_time
async def test_waiting_requests_are_limited_per_client() -> None:
    pool = make_pool(are_busy=True, max_waiting_per_client=2)
    for _ in range(2):
        ask(pool, "chat", client="greedy")
    with pytest.raises(QueueFullError):
        ask(pool, "chat", client="greedy")
    assert ask(pool, "chat", client="modest")[0].position == 3
    assert ask(pool, "chat")[0].position == 4


@in_virtual_time
async def test_positions_to_return_to_count_for_the_limit_per_client() -> None:
    pool = make_pool(are_busy=True, max_waiting_per_client=2)
    orders = [pool.tickets.draw() for _ in range(3)]
    for order in orders[:2]:
        ask(pool, "chat", client="greedy", order=order)
    with pytest.raises(QueueFullError):
        ask(pool, "chat", client="greedy", order=orders[2])
    ask(pool, "chat", client="greedy", order=orders[1])  # of a socket not known to be lost
    pool.tickets.spend(orders[2])  # its worker was lost: it had waited already
    ask(pool, "chat", client="greedy", order=orders[2])
    assert pool.queue_length == 4


# Cancelling.


@in_virtual_time
async def test_cancelling_renumbers_those_behind() -> None:
    pool = make_pool(are_busy=True)
    places = [ask(pool, "chat") for _ in range(3)]
    (first, _), (second, future), (third, _) = places
    assert pool.cancel(second.ticket_id)
    assert future.cancelled()
    assert second.refusal is not None
    assert [first.position, third.position] == [1, 2]
    assert pool.queue_length == 2
    assert not pool.cancel(second.ticket_id)


@in_virtual_time
async def test_cancelling_the_unknown_or_the_assigned_changes_nothing() -> None:
    pool = make_pool()
    ticket, future = ask(pool, "chat")
    assert not pool.cancel("q_000000000000")
    assert not pool.cancel(ticket.ticket_id)
    assert ticket.refusal is None
    assert not future.cancelled()
    assert busy_count(pool) == 1


@in_virtual_time
async def test_cancelling_dispatches() -> None:
    """A worker that became idle unnoticed is found when someone leaves the queue."""
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    head, _ = ask(pool, "chat")
    _, future = ask(pool, "chat")
    end_sessions(worker)
    pool.cancel(head.ticket_id)
    assert future.result() is worker


@in_virtual_time
async def test_a_waiter_that_is_cancelled_leaves_no_gap() -> None:
    pool = make_pool(are_busy=True)

    async def wait() -> None:
        async with assigned(pool, "chat"):
            raise AssertionError("assigned")

    task = asyncio.create_task(wait())
    await let_others_run()
    second, _ = ask(pool, "chat")
    assert second.position == 2
    task.cancel()
    await let_others_run()
    assert (pool.queue_length, second.position) == (1, 1)


# Releasing.


@in_virtual_time
async def test_a_release_updates_the_estimates() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    for _ in range(3):
        _, future = ask(pool, "chat")
        clock.advance(4)
        release(pool, future.result())
    assert pool.eta_tracker.get_eta("chat") == pytest.approx(4.0)
    assert pool.eta_tracker.get_status().ema_streaming_samples == 0


@in_virtual_time
async def test_releasing_twice_changes_nothing() -> None:
    pool = make_pool()
    ticket, future = ask(pool, "chat")
    worker = future.result()
    pool.leave(ticket)
    _, second = ask(pool, "chat", "second")
    pool.leave(ticket)
    assert second.done()
    assert worker.tasks[0].session_id == "second"
    release(pool, worker)
    release(pool, worker)
    assert worker.status == "idle"


@in_virtual_time
async def test_a_worker_that_went_offline_stays_offline_after_its_release() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    _, future = ask(pool, "chat")
    for _ in range(3):
        worker.observe_miss()
    release(pool, worker)
    assert worker.status is WorkerStatus.OFFLINE
    assert not future.done()


# Cost.


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
async def test_the_cost_of_dispatch_is_independent_of_the_sessions(occupied: float) -> None:
    """Health answers, releases and polls call it hundreds of times a second on a large service."""
    for workers, slots in (SMALL, LARGE):
        pool = make_pool(workers, slots=slots, max_queue_size=10_000)
        tickets = [
            pool.enqueue(new_ticket("omni_duplex")) for _ in range(int(workers * slots * occupied))
        ]
        for _ in range(500 if occupied == 1.0 else 0):
            pool.enqueue(new_ticket("omni_duplex"))
        pool._dispatch_next()  # orders the free slots of those that changed
        assert calls_of(pool._dispatch_next) <= CALLS_PER_WORKER * workers
        if occupied == 0.9:
            assert (
                calls_of(partial(pool.enqueue, new_ticket("chat")))
                <= CALLS_PER_WORKER * workers + 500
            )
            pool.leave(tickets[0])
