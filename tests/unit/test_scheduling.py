"""Timers, and the await that sees a task through."""

from __future__ import annotations

import asyncio

import pytest

from core.protocols.events import TimerFired, TimerName
from core.serving.connection import Timers
from core.serving.wire import await_end
from tests.fakes.clock import settle, timers_left
from tests.fakes.virtual_time import in_virtual_time
from tests.system.loops import in_loop

IDLE, PAUSE = TimerName.IDLE, TimerName.PAUSE


@in_virtual_time
async def test_timers() -> None:
    fired: list[TimerFired] = []
    timers = Timers(fired.append)
    timers.start(IDLE, 5.0)
    timers.start(PAUSE, 3.0)
    timers.start(IDLE, 10.0)  # anew
    await asyncio.sleep(6.0)
    assert fired == [TimerFired(PAUSE)]
    assert timers.claim(fired[0])
    assert not timers.claim(fired[0]), "each counts once"
    await asyncio.sleep(6.0)
    timers.stop(IDLE)  # it has expired, but nobody has claimed it
    assert not timers.claim(fired[1])
    timers.start(IDLE, 1.0)
    timers.stop(IDLE)
    assert timers_left() == 0


@in_loop
async def test_a_task_is_awaited_despite_repeated_cancellation() -> None:
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
