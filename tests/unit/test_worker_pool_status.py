"""What people see and do: estimates, status, pausing, draining, the end."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import NoWorkerError, ShuttingDownError
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.estimates import EtaConfig, EtaTracker
from gateway_modules.queue.worker_pool import WorkerPool
from tests.fakes.pools import (
    ask,
    busy_count,
    count,
    end_sessions,
    make_pool,
    release,
    set_status,
    status_of,
    workers_of,
)
from tests.fakes.virtual_time import FakeClock, in_virtual_time, let_others_run


@in_virtual_time
async def test_estimates_grow_with_the_position() -> None:
    pool = make_pool(are_busy=True)
    waits = [ask(pool, "chat")[0].estimated_wait_s for _ in range(3)]
    assert waits == [90.0, 100.0, 110.0]


@in_virtual_time
async def test_estimates_shrink_as_tasks_progress() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    ask(pool, "streaming")
    clock.advance(5)
    ticket, _ = ask(pool, "chat")
    assert ticket.estimated_wait_s == 10.0
    clock.advance(3)
    again = pool.get_ticket(ticket.ticket_id)
    assert again is not None
    assert again.estimated_wait_s == 7.0
    clock.advance(2)
    assert pool.get_queue_status().items[0].estimated_wait_s == 5.0
    assert pool.get_queue_status().items[0].wait_elapsed_s == 5.0


@in_virtual_time
async def test_estimates_count_from_the_start_of_what_runs() -> None:
    pool = WorkerPool(["localhost:1"], eta_tracker=EtaTracker(EtaConfig(eta_chat_s=15.0)))
    (worker,) = workers_of(pool)
    set_status(worker, WorkerStatus.IDLE)
    ask(pool, "chat")
    worker.tasks[0].started_s -= 5
    ticket, _ = ask(pool, "chat")
    assert 9.0 <= ticket.estimated_wait_s <= 10.1
    (task,) = pool.get_queue_status().running_tasks
    assert 9.0 <= task.estimated_remaining_s <= 10.1


@in_virtual_time
@pytest.mark.parametrize("moved_s", [-3_600.0, 3_600.0])
async def test_estimates_and_measurements_do_not_change_when_the_clock_is_set(
    moved_s: float,
) -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    ask(pool, "chat")
    clock.advance(4)
    clock.move(moved_s)
    ticket, _ = ask(pool, "chat")
    assert ticket.estimated_wait_s == 6.0
    (task,) = pool.get_queue_status().running_tasks
    assert (task.elapsed_s, task.estimated_remaining_s) == (4.0, 6.0)
    release(pool, workers_of(pool)[0])
    assert pool.eta_tracker.get_status().ema_chat_s == pytest.approx(4.0)


@in_virtual_time
async def test_an_overrun_task_counts_with_a_minimum_and_is_shown_with_zero() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    ask(pool, "chat")
    clock.advance(20)
    assert ask(pool, "chat")[0].estimated_wait_s == 15.0
    (task,) = pool.get_queue_status().running_tasks
    assert (task.elapsed_s, task.estimated_remaining_s) == (20.0, 0.0)


@in_virtual_time
async def test_two_staggered_workers_and_three_waiting() -> None:
    clock = FakeClock()
    pool = make_pool(2, clock=clock)
    pool.update_eta_config(EtaConfig(eta_chat_s=20.0))
    ask(pool, "chat")
    clock.advance(5)
    ask(pool, "chat")
    clock.advance(5)
    waits = [ask(pool, "chat")[0].estimated_wait_s for _ in range(3)]
    assert waits == [10.0, 15.0, 30.0]


@in_virtual_time
async def test_changed_settings_update_estimates_at_once() -> None:
    pool = make_pool()
    ask(pool, "chat")
    ticket, _ = ask(pool, "chat")
    status = pool.update_eta_config(EtaConfig(eta_chat_s=42.0))
    assert ticket.estimated_wait_s == 42.0
    assert (status.config.eta_chat_s, status.config.eta_streaming_s) == (42.0, 15.0)


@in_virtual_time
async def test_a_loading_worker_counts_as_soon_free_and_a_draining_one_never() -> None:
    pool = make_pool(2, are_busy=True)
    end_sessions(workers_of(pool)[1])
    set_status(workers_of(pool)[1], WorkerStatus.LOADING)
    assert ask(pool, "chat")[0].estimated_wait_s == 15.0
    pool.drain_worker(workers_of(pool)[1])
    assert ask(pool, "chat")[0].estimated_wait_s == 100.0
    pool.drain_worker(workers_of(pool)[0])
    assert ask(pool, "chat")[0].estimated_wait_s == 0.0


# Status.


@in_virtual_time
async def test_queue_status_and_look_up() -> None:
    pool = make_pool(2, are_busy=True)
    ask(pool, "chat")
    ticket, _ = ask(pool, "streaming", session_id="s1")
    status = pool.get_queue_status()
    assert (status.queue_length, status.max_queue_size) == (2, 1000)
    assert [item.request_type for item in status.items] == ["chat", "streaming"]
    assert [item.session_id for item in status.items] == [None, "s1"]
    assert [task.request_type for task in status.running_tasks] == ["duplex", "duplex"]
    assert pool.get_ticket(ticket.ticket_id) is ticket
    assert pool.get_ticket("q_000000000000") is None


@in_virtual_time
async def test_service_status_counts_every_worker_once() -> None:
    pool = make_pool(7)
    states = ["idle", "loading", "error", "offline", "busy_chat", "duplex_active", "duplex_paused"]
    for worker, state in zip(workers_of(pool), states, strict=True):
        set_status(worker, WorkerStatus(state))
    told = status_of(pool)
    assert told.total_workers == 7
    assert (told.idle_workers, told.loading_workers, told.error_workers) == (1, 1, 1)
    assert (told.offline_workers, told.busy_workers, told.duplex_workers) == (1, 3, 2)


@in_virtual_time
async def test_only_workers_in_service_are_assigned() -> None:
    for state in WorkerStatus:
        pool = make_pool()
        (worker,) = workers_of(pool)
        set_status(worker, state)
        assert ask(pool, "chat")[1].done() == (state is WorkerStatus.IDLE)


def test_addresses() -> None:
    pool = WorkerPool(["gpu1", "gpu1:9000", "[::1]:7", "10.0.0.1:22400"])
    found = [worker.place.netloc for worker in workers_of(pool)]
    assert found == ["gpu1:22400", "gpu1:9000", "[::1]:7", "10.0.0.1:22400"]
    assert count(pool, WorkerStatus.OFFLINE) == 4
    for wrong in ("", "a/b", "a:b", "http://a:1"):
        with pytest.raises(ValueError, match=r"."):
            WorkerPool([wrong])
    with pytest.raises(ValueError, match="twice"):
        WorkerPool(["a:1", "a:1"])


# Administration and the end.


@in_virtual_time
async def test_paused_intake_refuses_new_requests_and_serves_waiting_ones() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    _, future = ask(pool, "chat")
    pool.is_intake_paused = True
    with pytest.raises(NoWorkerError):
        ask(pool, "chat")
    assert status_of(pool).is_intake_paused
    release(pool, worker)
    assert future.done()
    pool.is_intake_paused = False
    assert ask(pool, "chat")[0].position == 1


@in_virtual_time
async def test_a_drained_worker_finishes_and_gets_no_new_sessions() -> None:
    pool = make_pool(2)
    _, future = ask(pool, "duplex")
    worker = future.result()
    pool.drain_worker(worker)
    assert worker.status.is_busy
    release(pool, worker)
    assert ask(pool, "chat")[1].result() is not worker
    assert ask(pool, "chat")[0].position == 1
    assert worker.is_draining


@in_virtual_time
async def test_stop_refuses_all_waiting_requests() -> None:
    pool = make_pool(are_busy=True)
    places = [ask(pool, "chat") for _ in range(3)]
    await pool.stop()
    assert all(future.cancelled() for _, future in places)
    assert all(ticket.refusal is not None for ticket, _ in places)
    assert pool.queue_length == 0
    assert busy_count(pool) == 1
    with pytest.raises(ShuttingDownError):
        ask(pool, "chat")
    await pool.stop()


@in_virtual_time
async def test_the_pool_is_idle_without_waiting_or_running_requests() -> None:
    pool = make_pool(are_busy=True)
    (worker,) = workers_of(pool)
    ticket, _ = ask(pool, "chat")
    assert not await pool.wait_until_idle(5.0)
    waiting = asyncio.create_task(pool.wait_until_idle(60.0))
    await let_others_run()
    pool.cancel(ticket.ticket_id)
    await let_others_run()
    assert not waiting.done()
    release(pool, worker)
    assert await waiting
