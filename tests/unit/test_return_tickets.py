"""Places in the queue that outlive their gateway: who may come back, where to, and for how long."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.queue.worker_pool import TICKET_LIFE_S, ReturnTickets, WorkerPool
from tests.fakes.pools import make_pool, new_ticket, release, workers_of
from tests.fakes.virtual_time import FakeClock, in_virtual_time

KEY = b"the same at both gateways"
GATHERING_S = 5.0
KIND = "duplex"


def gateway(clock: FakeClock, *, awaits_returns: bool, slots: int = 1) -> WorkerPool:
    pool = make_pool(are_busy=not awaits_returns, clock=clock, slots=slots)
    pool.tickets = ReturnTickets(KEY, clock, awaits_returns=awaits_returns)
    return pool


def enter(pool: WorkerPool, session_id: str, shown: str = "") -> Ticket:
    order = pool.tickets.read(shown, session_id, KIND)
    return pool.enqueue(new_ticket("audio_duplex", session_id, order=order or 0))


@in_virtual_time
async def test_a_killed_gateway_loses_no_position_and_lets_nobody_overtake() -> None:
    clock = FakeClock()
    before = gateway(clock, awaits_returns=False)
    waiting = [enter(before, f"old_{number}") for number in range(60)]
    held = {
        f"old_{number}": before.tickets.issue(ticket.order, f"old_{number}", KIND)
        for number, ticket in enumerate(waiting)
    }
    clock.advance(2)  # it is killed, and another one starts
    after = gateway(clock, awaits_returns=True)
    after.hold_for_returns(GATHERING_S)
    arrivals = [*held, *(f"new_{number}" for number in range(40))]
    random.Random(17).shuffle(arrivals)
    tickets = [enter(after, session_id, held.get(session_id, "")) for session_id in arrivals]
    await asyncio.sleep(GATHERING_S / 2)
    assert all(ticket.is_waiting for ticket in tickets), "nobody is assigned meanwhile"
    await asyncio.sleep(GATHERING_S)
    (worker,) = workers_of(after)
    served: list[str | None] = []
    while worker.tasks:
        (task,) = worker.tasks
        served.append(task.session_id)
        release(after, worker)
    newcomers = [session_id for session_id in arrivals if session_id.startswith("new")]
    assert served == [*held, *newcomers], "places lost, or inversions"


@in_virtual_time
async def test_estimates_include_the_time_in_which_nobody_is_assigned() -> None:
    clock = FakeClock()
    pool = gateway(clock, awaits_returns=True)
    pool.hold_for_returns(GATHERING_S)
    first, second = enter(pool, "first"), enter(pool, "second")
    duration_s = pool.eta_tracker.get_eta("audio_duplex")
    assert first.estimated_wait_s == GATHERING_S
    assert second.estimated_wait_s == GATHERING_S + duration_s
    clock.advance(2)
    pool.refresh_estimates()
    assert first.estimated_wait_s == GATHERING_S - 2
    for worker in workers_of(pool):  # as right after a restart, before any has answered
        worker.mark_offline()
    pool.refresh_estimates(is_forced=True)
    assert first.estimated_wait_s == GATHERING_S - 2


@in_virtual_time
async def test_a_late_return_precedes_newer_requests() -> None:
    clock = FakeClock()
    before, after = gateway(clock, awaits_returns=False), gateway(clock, awaits_returns=True)
    ticket = enter(before, "old")
    held = before.tickets.issue(ticket.order, "old", KIND)
    clock.advance(1)
    after.hold_for_returns(0.0)
    await asyncio.sleep(1)
    served, newcomer = enter(after, "first"), enter(after, "second")
    late = enter(after, "old", held)
    assert (served.assigned is not None, late.position, newcomer.position) == (True, 1, 2)
    assert newcomer.estimated_wait_s > late.estimated_wait_s


def test_a_return_ticket_is_for_one_session_and_lasts_a_minute() -> None:
    clock = FakeClock()
    tickets = ReturnTickets(KEY, clock)
    order = tickets.draw()
    held = tickets.issue(order, "mine", KIND)
    assert ReturnTickets(KEY, clock).read(held, "mine", KIND) == order
    assert ReturnTickets(b"another", clock).read(held, "mine", KIND) is None
    assert tickets.read(held, "other", KIND) is None
    assert tickets.read(held, "mine", "half_duplex") is None
    clock.advance(TICKET_LIFE_S / 2)
    renewed = tickets.issue(order, "mine", KIND)
    clock.advance(TICKET_LIFE_S / 2 + 1)
    assert tickets.read(held, "mine", KIND) is None
    assert tickets.read(renewed, "mine", KIND) == order


@pytest.mark.parametrize("shown", ["", ".", "..", "1.2.3", "a.b.c", "-1.0.", "\ud800", "1" * 5_000])
def test_an_invalid_return_ticket_is_ignored(shown: str) -> None:
    assert ReturnTickets(KEY).read(shown, "mine", KIND) is None


@in_virtual_time
async def test_a_cancelled_position_cannot_be_regained_and_one_that_was_left_can() -> None:
    pool = gateway(FakeClock(), awaits_returns=False)
    cancelled, left = enter(pool, "mine"), enter(pool, "other")
    of_cancelled = pool.tickets.issue(cancelled.order, "mine", KIND)
    of_left = pool.tickets.issue(left.order, "other", KIND)
    assert pool.cancel(cancelled.ticket_id)
    pool.leave(left)
    assert pool.tickets.read(of_cancelled, "mine", KIND) is None
    assert pool.tickets.read(of_left, "other", KIND) == left.order


@in_virtual_time
async def test_a_ticket_is_spent_once_a_worker_is_assigned() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    served = enter(pool, "mine")
    held = pool.tickets.issue(served.order, "mine", KIND)
    assert served.assigned and pool.tickets.read(held, "mine", KIND) is None
    for number in range(5):  # what is known of spent ones is bounded by their life
        clock.advance(TICKET_LIFE_S)
        pool.tickets.spend(number)
    assert len(pool.tickets._spent) == 2


def test_positions_increase_strictly_even_if_the_clock_goes_back() -> None:
    clock = FakeClock()
    tickets = ReturnTickets(KEY, clock)
    first, second = tickets.draw(), tickets.draw()
    later = ReturnTickets(KEY, clock)
    held = tickets.issue(second + 9, "mine", KIND)
    clock.advance(-5)
    assert later.read(held, "mine", KIND) == second + 9
    assert first < second < second + 9 < later.draw()


@in_virtual_time
async def test_nobody_overtakes_who_waits_at_doors_when_a_new_desks_clock_is_behind() -> None:
    clock = FakeClock()
    before = gateway(clock, awaits_returns=False)
    waiting = [enter(before, f"old_{number}") for number in range(2)]
    clock.advance(-3_600)  # another machine, or the clock was set
    after = gateway(clock, awaits_returns=False)
    kept = [
        after.enqueue(new_ticket("audio_duplex", one.session_id, order=one.order))
        for one in waiting
    ]
    newcomer = enter(after, "new")
    assert [ticket.position for ticket in [*kept, newcomer]] == [1, 2, 3]
