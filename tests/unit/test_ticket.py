"""A place in the queue or on a worker is given back, however its holder ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from core.errors import QueueCancelledError, ShuttingDownError
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_connection import UPDATE_PERIOD_S, Ticket
from gateway_modules.queue.worker_pool import WorkerPool
from tests.fakes.pools import (
    ask,
    assigned,
    freshest,
    idle_count,
    make_pool,
    new_ticket,
    release,
    workers_of,
)
from tests.fakes.virtual_time import FakeClock, in_virtual_time, let_others_run

MAX_TURNS = 30  # far more turns of the loop than any scenario here takes


@in_virtual_time
async def test_the_slot_is_held_for_the_block() -> None:
    pool = make_pool()
    async with assigned(pool, "chat", "someone") as ticket:
        assert ticket.assigned
        assert ticket.worker.tasks[0].session_id == "someone"
        assert idle_count(pool) == 0
    assert idle_count(pool) == 1


@in_virtual_time
async def test_an_error_in_the_block_releases_the_slot() -> None:
    pool = make_pool()
    with pytest.raises(ZeroDivisionError):
        async with assigned(pool, "chat"):
            _ = 1 / 0
    assert idle_count(pool) == 1


@in_virtual_time
async def test_a_waiting_client_is_notified_at_once_at_changes_and_every_three_seconds() -> None:
    clock = FakeClock()
    pool = make_pool(are_busy=True, clock=clock)
    (worker,) = workers_of(pool)
    ahead, _ = ask(pool, "chat")
    loop = asyncio.get_running_loop()
    told: list[tuple[float, int, float]] = []

    async def tell(ticket: Ticket) -> None:
        told.append((loop.time(), ticket.position, ticket.estimated_wait_s))

    async def wait() -> None:
        async with assigned(pool, "chat", on_wait=tell):
            pass

    task = asyncio.create_task(wait())
    await asyncio.sleep(2 * UPDATE_PERIOD_S + 1)
    clock.advance(10)
    pool.cancel(ahead.ticket_id)
    await asyncio.sleep(1)
    release(pool, worker)
    await task
    assert told == [(0.0, 2, 100.0), (3.0, 2, 100.0), (6.0, 2, 100.0), (7.0, 1, 80.0)]


@in_virtual_time
async def test_a_client_served_at_once_is_not_notified() -> None:
    async def tell(ticket: Ticket) -> None:
        raise AssertionError(ticket)

    async with assigned(make_pool(), "chat", on_wait=tell):
        pass


@in_virtual_time
@pytest.mark.parametrize("kind", ["admin", "shutdown"])
async def test_a_cancelled_ticket_is_an_error_not_a_cancellation(kind: str) -> None:
    pool = make_pool(are_busy=True)

    async def wait() -> None:
        async with assigned(pool, "chat"):
            raise AssertionError("assigned")

    task = asyncio.create_task(wait())
    await let_others_run()
    if kind == "admin":
        pool.cancel(next(iter(pool.get_queue_status().items)).ticket_id)
    else:
        await pool.stop()
    with pytest.raises(QueueCancelledError if kind == "admin" else ShuttingDownError):
        await task


@in_virtual_time
async def test_only_started_sessions_update_the_estimates() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    async with assigned(pool, "chat"):
        clock.advance(5)
    assert pool.eta_tracker.get_status().ema_chat_samples == 0
    async with assigned(pool, "chat") as ticket:
        ticket.has_started = True
        clock.advance(7)
    assert pool.eta_tracker.get_status().ema_chat_s == 7.0


@in_virtual_time
async def test_the_cache_is_retained_only_on_request() -> None:
    pool = make_pool()
    (worker,) = workers_of(pool)
    async with assigned(pool, "streaming", history_hash="A") as ticket:
        assert not ticket.is_cache_hit
        ticket.kept_hash = "B"
    assert freshest(worker).cached_hash == "B"
    with pytest.raises(ZeroDivisionError):
        async with assigned(pool, "streaming", history_hash="B") as ticket:
            assert ticket.is_cache_hit
            _ = 1 / 0
    assert freshest(worker).cached_hash is None


@in_virtual_time
async def test_pausing_shows_in_the_status_of_its_own_session() -> None:
    pool = make_pool(slots=2)
    (worker,) = workers_of(pool)
    async with assigned(pool, "audio_duplex"), assigned(pool, "omni_duplex") as ticket:
        ticket.update_status(WorkerStatus.DUPLEX_PAUSED)
        paused = [task.status for task in worker.tasks]
        assert sorted(paused) == ["duplex_active", "duplex_paused"]
        ticket.update_status(WorkerStatus.DUPLEX_ACTIVE)
        assert {task.status for task in worker.tasks} == {WorkerStatus.DUPLEX_ACTIVE}
        ticket.update_status(WorkerStatus.IDLE)
        assert worker.status is WorkerStatus.DUPLEX_ACTIVE
    async with assigned(pool, "chat") as ticket:
        ticket.update_status(WorkerStatus.DUPLEX_PAUSED)
        assert worker.status is WorkerStatus.BUSY_CHAT


@in_virtual_time
async def test_a_client_that_leaves_the_queue_takes_no_worker() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    with pool.enqueue(new_ticket("chat")) as ticket:
        assert ticket.position == 1
    assert pool.queue_length == 0
    assert ticket.refusal is not None
    release(pool, worker)
    assert idle_count(pool) == 1


Scenario = Callable[[WorkerPool], Awaitable[None]]


async def hold(pool: WorkerPool) -> None:
    async def tell(ticket: Ticket) -> None:
        await asyncio.sleep(0)

    async with assigned(pool, "streaming", history_hash="A", on_wait=tell) as ticket:
        ticket.has_started = True
        for _ in range(3):
            await asyncio.sleep(0)
        ticket.kept_hash = "B"
        await asyncio.sleep(0)


async def wait_first(pool: WorkerPool) -> None:
    """The same with the waiting inside the block."""
    with pool.enqueue(new_ticket("half_duplex_audio")) as ticket:
        await asyncio.sleep(0)
        await ticket.wait()
        await asyncio.sleep(0)


@pytest.mark.parametrize("scenario", [hold, wait_first])
@pytest.mark.parametrize("released_at", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("is_released_first", [True, False])
def test_a_holder_cancelled_at_any_await_leaves_nothing_behind(
    scenario: Scenario, released_at: int | None, is_released_first: bool
) -> None:
    """The worker becomes free before, after and in the very turn of the cancellation.

    With `released_at` None it is free from the start.
    """

    @in_virtual_time
    async def cancel_after(turns: int) -> bool:
        pool = make_pool(are_busy=released_at is not None)
        (worker,) = workers_of(pool)
        task = asyncio.ensure_future(scenario(pool))
        for turn in range(max(turns, released_at or 0) + 1):
            if turn == released_at and is_released_first:
                release(pool, worker)
            if turn == turns:
                task.cancel()
            if turn == released_at and not is_released_first:
                release(pool, worker)
            await asyncio.sleep(0)
        await asyncio.wait([task])
        assert pool.queue_length == 0
        assert not worker.tasks
        assert ask(pool, "chat")[1].done(), "the worker is lost"
        return task.cancelled()

    was_cancelled = [cancel_after(turns) for turns in range(MAX_TURNS)]
    assert was_cancelled[0]
    assert not was_cancelled[-1], "the scenario must end by itself in the end"
