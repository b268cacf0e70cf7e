"""Timers, bounded awaits and the await that sees a task through."""

from __future__ import annotations

import asyncio

import pytest

from core.protocols.events import TimerFired, TimerName
from core.serving.queues import Bound, LoopScheduler, Timers, await_end
from tests.fakes.clock import ManualScheduler, settle

IDLE, PAUSE = TimerName.IDLE, TimerName.PAUSE


def test_timers() -> None:
    async def test() -> None:
        clock = ManualScheduler()
        fired: list[TimerFired] = []
        timers = Timers(clock, fired.append)
        timers.start(IDLE, 5.0)
        timers.start(PAUSE, 3.0)
        timers.start(IDLE, 10.0)  # anew
        await clock.advance(6.0)
        assert fired == [TimerFired(PAUSE, at_s=3.0)]
        assert timers.take_in(fired[0])
        assert not timers.take_in(fired[0]), "each counts once"
        await clock.advance(6.0)
        timers.stop(IDLE)  # it has run out, but nobody has taken it in
        assert not timers.take_in(fired[1])
        timers.start(IDLE, 1.0)
        timers.stop_all()
        assert clock.waiting == 0

    asyncio.run(test())


def test_a_bounded_await_ends_in_time() -> None:
    async def test() -> None:
        clock = ManualScheduler()
        never = asyncio.Event()
        task = asyncio.create_task(Bound(clock).run(never.wait(), 5.0))
        await clock.advance(4.9)
        assert not task.done()
        await clock.advance(0.2)
        with pytest.raises(TimeoutError):
            await task
        assert await Bound(clock).run(asyncio.sleep(0, "done"), 5.0) == "done"
        assert clock.waiting == 0

    asyncio.run(test())


def test_an_expired_bound_waits_for_nothing_any_more() -> None:
    async def test() -> None:
        clock = ManualScheduler()
        bound = Bound(clock)
        task = asyncio.create_task(bound.run(asyncio.Event().wait(), 5.0))
        await settle()
        bound.expire()
        with pytest.raises(TimeoutError):
            await task
        with pytest.raises(TimeoutError):
            await bound.run(asyncio.Event().wait(), 5.0)

    asyncio.run(test())


def test_cancelling_a_bounded_await_is_no_timeout() -> None:
    async def test() -> None:
        clock = ManualScheduler()
        task = asyncio.create_task(Bound(clock).run(asyncio.Event().wait(), 5.0))
        await settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert clock.waiting == 0

    asyncio.run(test())


def test_a_task_is_seen_through_however_often_one_is_cancelled() -> None:
    async def test() -> None:
        ready = asyncio.Event()

        async def work() -> None:
            await ready.wait()

        inner = asyncio.create_task(work())
        outer = asyncio.create_task(await_end(inner))
        for _ in range(3):
            await settle()
            outer.cancel()
        await settle()
        assert not outer.done() and not inner.done()
        ready.set()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert inner.done() and not inner.cancelled()

    asyncio.run(test())


def test_the_loops_own_clock() -> None:
    async def test() -> None:
        scheduler = LoopScheduler()
        called = asyncio.Event()
        before = scheduler.now_s()
        scheduler.call_later(0.001, called.set)
        await called.wait()
        assert scheduler.now_s() > before

    asyncio.run(test())
