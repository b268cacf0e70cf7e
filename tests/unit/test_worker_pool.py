"""The queue and who gets a worker: order, capacity, cancellation, release."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import QueueFullError as ProjectQueueFullError
from gateway_modules.queue.models import GatewayWorkerStatus
from gateway_modules.queue.worker_pool import QueueFullError, WorkerPool
from tests.fakes.pools import make_pool, workers_of
from tests.fakes.virtual_time import in_virtual_time, let_others_run

BUSY_TYPES = {
    "chat": GatewayWorkerStatus.BUSY_CHAT,
    "streaming": GatewayWorkerStatus.BUSY_STREAMING,
    "half_duplex_audio": GatewayWorkerStatus.BUSY_HALF_DUPLEX,
    "audio_duplex": GatewayWorkerStatus.DUPLEX_ACTIVE,
    "omni_duplex": GatewayWorkerStatus.DUPLEX_ACTIVE,
    "duplex": GatewayWorkerStatus.DUPLEX_ACTIVE,
}


# Order.


@in_virtual_time
async def test_three_requests_are_served_in_order() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    places = [pool.enqueue(kind) for kind in ("chat", "streaming", "duplex")]
    assert [ticket.position for ticket, _ in places] == [1, 2, 3]
    for number, (ticket, future) in enumerate(places):
        assert not future.done()
        pool.release_worker(worker, "duplex", 5.0)
        assert future.result() is worker
        assert [one.position for one, _ in places[number:]] == list(range(3 - number))
        assert worker.status is BUSY_TYPES[ticket.request_type]


@in_virtual_time
async def test_a_newcomer_never_overtakes_even_when_a_worker_is_free() -> None:
    """A drained worker that is free must not let the second in line past the first."""
    pool = make_pool(2, are_busy=True)
    first, second = workers_of(pool)
    _, waiting = pool.enqueue("chat")
    pool.drain_worker("worker_0")
    pool.release_worker(first)
    _, newcomer = pool.enqueue("chat")
    assert not waiting.done()
    assert not newcomer.done()
    pool.drain_worker("worker_0", is_draining=False)
    assert waiting.result() is first
    assert not newcomer.done()
    pool.release_worker(second)
    assert newcomer.result() is second


@in_virtual_time
async def test_who_lost_a_worker_goes_first_even_past_a_full_queue() -> None:
    pool = make_pool(are_busy=True, max_queue_size=1)
    (worker,) = workers_of(pool)
    _, waiting = pool.enqueue("chat")
    pool.pause_intake()
    with pool.place("chat", goes_first=True) as place:
        assert place.ticket.position == 1
        pool.release_worker(worker)
        assert place.is_assigned and not waiting.done()
    assert waiting.result() is worker


@in_virtual_time
async def test_each_release_serves_one() -> None:
    pool = make_pool(2, are_busy=True)
    first, second = workers_of(pool)
    futures = [pool.enqueue("chat")[1] for _ in range(3)]
    pool.release_worker(first, "chat", 1.0)
    pool.release_worker(second, "chat", 1.0)
    assert [future.done() for future in futures] == [True, True, False]
    assert futures[0].result() is first
    assert futures[1].result() is second


@in_virtual_time
async def test_mixed_types_stay_in_order() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    kinds = ["chat", "streaming", "duplex", "half_duplex", "audio_duplex", "chat", "omni_duplex"]
    futures = [pool.enqueue(kind, history_hash="h")[1] for kind in kinds]
    for number in range(len(kinds)):
        pool.release_worker(worker)
        assert [future.done() for future in futures].count(True) == number + 1
        assert futures[number].done()


# Immediate assignment and capacity.


@in_virtual_time
async def test_with_a_free_worker_nobody_enters_the_queue() -> None:
    pool = make_pool(3)
    for kind in ("chat", "streaming", "duplex"):
        ticket, future = pool.enqueue(kind, "someone")
        assert future.done()
        assert (ticket.position, ticket.estimated_wait_s, ticket.cancelled) == (0, 0.0, False)
        assert future.result().current_session_id == "someone"
    assert pool.queue_length == 0
    assert (pool.idle_count, pool.busy_count, pool.duplex_count) == (0, 3, 1)


@in_virtual_time
async def test_ticket_names() -> None:
    pool = make_pool(are_busy=True)
    names = {pool.enqueue("chat")[0].ticket_id for _ in range(50)}
    assert len(names) == 50
    assert all(len(name) == 14 and name.startswith("q_") for name in names)
    assert all(int(name[2:], 16) >= 0 for name in names)


@in_virtual_time
async def test_a_full_queue_refuses_at_exactly_its_size() -> None:
    pool = make_pool(max_queue_size=10, are_busy=True)
    tickets = [pool.enqueue(kind)[0] for kind in list(BUSY_TYPES) + ["chat"] * 4]
    assert pool.queue_full
    with pytest.raises(WorkerPool.QueueFullError, match=r"Queue full \(10 requests\)"):
        pool.enqueue("duplex")
    assert pool.queue_length == 10
    pool.cancel(tickets[0].ticket_id)
    assert not pool.queue_full
    assert pool.enqueue("chat")[0].position == 10
    assert QueueFullError is WorkerPool.QueueFullError is ProjectQueueFullError


@in_virtual_time
async def test_only_those_who_wait_count_against_the_capacity() -> None:
    pool = make_pool(3, max_queue_size=1)
    assert all(pool.enqueue("chat")[1].done() for _ in range(3))
    assert not pool.enqueue("chat")[1].done()
    with pytest.raises(QueueFullError):
        pool.enqueue("chat")


@in_virtual_time
async def test_a_queue_of_size_zero_still_assigns() -> None:
    pool = make_pool(max_queue_size=0)
    assert pool.enqueue("chat")[1].done()
    with pytest.raises(QueueFullError):
        pool.enqueue("chat")


@in_virtual_time
async def test_one_client_may_not_fill_the_queue() -> None:
    pool = make_pool(are_busy=True, max_waiting_per_client=2)
    for _ in range(2):
        pool.enqueue("chat", client="greedy")
    with pytest.raises(QueueFullError):
        pool.enqueue("chat", client="greedy")
    assert pool.enqueue("chat", client="modest")[0].position == 3
    assert pool.enqueue("chat")[0].position == 4


@in_virtual_time
async def test_an_unknown_request_type_is_refused_at_once() -> None:
    pool = make_pool()
    with pytest.raises(ValueError, match="telepathy"):
        pool.enqueue("telepathy")
    assert pool.idle_count == 1


# Cancelling.


@in_virtual_time
async def test_cancelling_renumbers_those_behind() -> None:
    pool = make_pool(are_busy=True)
    places = [pool.enqueue("chat") for _ in range(3)]
    (first, _), (second, future), (third, _) = places
    assert pool.cancel(second.ticket_id)
    assert future.cancelled()
    assert second.cancelled
    assert [first.position, third.position] == [1, 2]
    assert pool.queue_length == 2
    assert not pool.cancel(second.ticket_id)


@in_virtual_time
async def test_cancelling_the_unknown_or_the_assigned_changes_nothing() -> None:
    pool = make_pool()
    ticket, future = pool.enqueue("chat")
    assert not pool.cancel("q_000000000000")
    assert not pool.cancel(ticket.ticket_id)
    assert not ticket.cancelled
    assert not future.cancelled()
    assert pool.busy_count == 1


@in_virtual_time
async def test_cancelling_dispatches() -> None:
    """A worker that became idle unnoticed is found when someone leaves the queue."""
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    head, _ = pool.enqueue("chat")
    _, future = pool.enqueue("chat")
    worker.mark_idle()
    pool.cancel(head.ticket_id)
    assert future.result() is worker


@in_virtual_time
async def test_a_waiter_cancelled_at_its_future_leaves_no_gap() -> None:
    pool = make_pool(are_busy=True)
    head, future = pool.enqueue("chat")
    second, _ = pool.enqueue("chat")

    async def wait() -> None:
        await future

    task = asyncio.create_task(wait())
    await let_others_run()
    task.cancel()
    await let_others_run()
    assert pool.queue_length == 1
    assert (second.position, head.cancelled) == (1, True)


@in_virtual_time
async def test_dispatch_skips_a_future_that_was_just_cancelled() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    _, gone = pool.enqueue("chat")
    _, future = pool.enqueue("chat")
    gone.cancel()
    pool.release_worker(worker)
    assert future.result() is worker


# Releasing.


@in_virtual_time
async def test_a_release_teaches_the_estimates() -> None:
    pool = make_pool()
    for _ in range(3):
        _, future = pool.enqueue("chat")
        pool.release_worker(future.result(), duration_s=4.0)
    assert pool.eta_tracker.get_eta("chat") == pytest.approx(4.0)
    _, future = pool.enqueue("chat")
    pool.release_worker(future.result(), "streaming", 1.0)
    assert pool.eta_tracker.get_status().ema_streaming_samples == 1


@in_virtual_time
async def test_releasing_twice_changes_nothing() -> None:
    pool = make_pool()
    ticket, future = pool.enqueue("chat")
    worker = future.result()
    pool.release_worker(worker, ticket_id=ticket.ticket_id)
    _, second = pool.enqueue("chat", "second")
    pool.release_worker(worker, ticket_id=ticket.ticket_id)
    assert second.done()
    assert worker.current_session_id == "second"
    pool.release_worker(worker)
    pool.release_worker(worker)
    assert worker.is_idle


@in_virtual_time
async def test_a_worker_that_went_offline_stays_offline_after_its_release() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    _, future = pool.enqueue("chat")
    for _ in range(3):
        worker.observe_miss()
    pool.release_worker(worker)
    assert worker.status is GatewayWorkerStatus.OFFLINE
    assert not future.done()
