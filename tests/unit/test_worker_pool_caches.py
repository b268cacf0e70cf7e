"""Which worker a request goes to: caches first, then load; one slot or several."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gateway_modules.routes.queue import caches
from tests.fakes.pools import (
    ask,
    busy_count,
    freshest,
    idle_count,
    make_pool,
    new_ticket,
    release,
    set_cache,
    workers_of,
)
from tests.fakes.virtual_time import FakeClock, in_virtual_time


@in_virtual_time
async def test_a_streaming_request_finds_its_history() -> None:
    pool = make_pool(2)
    first, second = workers_of(pool)
    set_cache(second, "A")
    _, future = ask(pool, "streaming", history_hash="A")
    assert future.result() is second
    assert freshest(second).cached_hash == "A"
    assert first.status == "idle"


@in_virtual_time
async def test_a_hit_refreshes_the_time_of_its_cache() -> None:
    clock = FakeClock()
    pool = make_pool(2, clock=clock)
    first, second = workers_of(pool)
    set_cache(first, "A", clock.now - timedelta(minutes=10))
    set_cache(second, "B", clock.now - timedelta(minutes=5))
    _, future = ask(pool, "streaming", history_hash="A")
    release(pool, future.result(), cached_hash="A")
    assert freshest(first).last_cache_used_at == clock.now
    assert ask(pool, "streaming", history_hash="C")[1].result() is second
    assert freshest(second).cached_hash is None


@in_virtual_time
@pytest.mark.parametrize("kind", ["streaming", "chat", "duplex"])
async def test_a_worker_without_a_cache_is_preferred(kind: str) -> None:
    pool = make_pool(2)
    first, second = workers_of(pool)
    set_cache(first, "A", datetime.now())
    assert ask(pool, kind, history_hash="B")[1].result() is second
    assert freshest(first).cached_hash == "A"


@in_virtual_time
@pytest.mark.parametrize("kind", ["streaming", "chat", "duplex"])
async def test_the_least_recently_used_cache_is_evicted(kind: str) -> None:
    pool = make_pool(2)
    first, second = workers_of(pool)
    set_cache(first, "A", datetime.now())
    set_cache(second, "B", datetime.now() - timedelta(hours=1))
    assert ask(pool, kind, history_hash="C")[1].result() is second
    assert (freshest(second).cached_hash, freshest(second).last_cache_used_at) == (None, None)
    assert freshest(first).cached_hash == "A"


@in_virtual_time
async def test_two_users_keep_to_their_workers() -> None:
    clock = FakeClock()
    pool = make_pool(2, clock=clock)
    seen: dict[str, set[str]] = {"ann": set(), "bob": set()}
    for turn in range(4):
        for user in seen:
            asked = f"{user} {turn}" if turn else ""
            _, future = ask(pool, "streaming", user, asked)
            worker = future.result()
            seen[user].add(worker.worker_id)
            clock.advance(1)
            release(pool, worker, cached_hash=f"{user} {turn + 1}")
    assert [len(workers) for workers in seen.values()] == [1, 1]
    assert seen["ann"] != seen["bob"]


@in_virtual_time
async def test_a_release_sets_or_clears_the_hash() -> None:
    pool = make_pool()
    worker = ask(pool, "streaming")[1].result()
    release(pool, worker, cached_hash="new")
    assert freshest(worker).cached_hash == "new"
    ask(pool, "streaming", history_hash="new")
    release(pool, worker, cached_hash=None)
    assert (freshest(worker).cached_hash, freshest(worker).last_cache_used_at) == (None, None)


@in_virtual_time
async def test_cache_hashes_are_truncated() -> None:
    pool = make_pool(2)
    set_cache(workers_of(pool)[0], "0123456789abcdef")
    shown = caches(pool.workers.values()).workers
    assert [cache.cached_hash for cache in shown] == ["0123456789ab…", None]


# Slots.


@in_virtual_time
async def test_slots_are_filled_evenly_and_released_by_ticket() -> None:
    pool = make_pool(2, slots=2)
    first, second = workers_of(pool)
    places = [ask(pool, "duplex", f"s{number}") for number in range(5)]
    assert [future.result().worker_id for _, future in places[:4]] == [
        "worker_0",
        "worker_1",
        "worker_0",
        "worker_1",
    ]
    assert pool.queue_length == 1
    assert (busy_count(pool), len(pool.get_queue_status().running_tasks)) == (2, 4)
    assert [task.session_id for task in first.tasks] == ["s0", "s2"]
    release(pool, first, ticket=places[2][0])
    assert {task.session_id for task in first.tasks} == {"s0", "s4"}
    assert [worker.available_slots for worker in workers_of(pool)] == [0, 0]
    release(pool, second, ticket=places[1][0])
    assert [worker.available_slots for worker in workers_of(pool)] == [0, 1]
    assert idle_count(pool) == 0


@in_virtual_time
async def test_each_slot_remembers_its_own_history() -> None:
    clock = FakeClock()
    pool = make_pool(slots=2, clock=clock)
    (worker,) = workers_of(pool)
    for name in ("A", "B"):
        ticket, _ = ask(pool, "streaming")
        clock.advance(1)
        release(pool, worker, cached_hash=name, ticket=ticket)
    for name in ("A", "B"):
        with pool.enqueue(new_ticket("streaming", history_hash=name)) as ticket:
            assert ticket.is_cache_hit
            ticket.kept_hash = name
    assert [cache.cached_hash for cache in caches(pool.workers.values()).workers] == ["A…", "B…"]
