"""Slots: never two owners of one, nobody overtakes, and nothing is lost when somebody gives up."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from core.errors import WorkerBusyError
from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from core.serving import slots
from core.serving.slots import Lease, Owner, Slots

LONG_S = 60.0


def owner(name: str = "s", kind: RequestType = RequestType.AUDIO_DUPLEX) -> Owner:
    return Owner(name, kind)


def make(count: int = 1) -> Slots:
    return Slots(count, lambda: 0.0)


def test_first_come_first_served() -> None:
    async def scenario() -> None:
        slots, served = make(), []
        first = await slots.take(owner(), LONG_S)

        async def wait(number: int) -> None:
            lease = await slots.take(owner(str(number)), LONG_S)
            served.append(number)
            await asyncio.sleep(0)
            lease.give_back()

        waiting = [asyncio.create_task(wait(number)) for number in range(5)]
        await asyncio.sleep(0)
        assert served == []
        first.give_back()
        await asyncio.gather(*waiting)
        assert served == list(range(5)) and not slots.owners

    asyncio.run(scenario())


def test_a_newcomer_does_not_overtake_who_was_just_given_the_slot() -> None:
    async def scenario() -> None:
        slots = make()
        first = await slots.take(owner("a"), LONG_S)
        waiting = asyncio.create_task(slots.take(owner("b"), LONG_S))
        await asyncio.sleep(0)
        first.give_back()  # b holds it from now on, though it has not run yet
        with pytest.raises(WorkerBusyError):
            await slots.take(owner("c"), 0.0)
        assert (await waiting).owner.session_id == "b"

    asyncio.run(scenario())


def test_a_lease_is_given_back_once() -> None:
    async def scenario() -> None:
        slots = make(2)
        one, two = await slots.take(owner(), LONG_S), await slots.take(owner(), LONG_S)
        one.give_back()
        one.give_back()
        assert len(slots.owners) == 1
        two.give_back()
        assert not slots.owners

    asyncio.run(scenario())


def test_who_waits_too_long_is_refused_and_leaves_the_line() -> None:
    async def scenario() -> None:
        slots = make()
        first = await slots.take(owner(), LONG_S)
        with pytest.raises(WorkerBusyError):
            await slots.take(owner(), 0.0)
        first.give_back()
        assert not slots.owners
        (await slots.take(owner(), 0.0)).give_back()

    asyncio.run(scenario())


def test_too_long_a_line_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "WAITING_MAX", 1)

    async def scenario() -> None:
        slots = make()
        first = await slots.take(owner(), LONG_S)
        waiting = asyncio.create_task(slots.take(owner(), LONG_S))
        await asyncio.sleep(0)
        with pytest.raises(WorkerBusyError):
            await slots.take(owner(), LONG_S)
        first.give_back()
        (await waiting).give_back()

    asyncio.run(scenario())


def test_giving_up_in_the_moment_of_being_served_loses_no_slot() -> None:
    async def scenario() -> None:
        slots = make()
        first = await slots.take(owner(), LONG_S)
        waiting = asyncio.create_task(slots.take(owner("b"), LONG_S))
        await asyncio.sleep(0)
        first.give_back()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not slots.owners
        (await slots.take(owner("c"), 0.0)).give_back()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_taking_giving_back_and_giving_up(seed: int) -> None:
    async def scenario() -> None:
        draw, slots, count = random.Random(seed), make(3), Counter[str]()

        async def session(number: int) -> None:
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(0)
            try:
                lease: Lease = await slots.take(owner(str(number)), LONG_S)
            except asyncio.CancelledError:
                count["gave up"] += 1
                raise
            count["now"] += 1
            try:
                assert count["now"] <= 3 and len(slots.owners) <= 3
                for _ in range(draw.randrange(3)):
                    await asyncio.sleep(0)
            finally:
                count["now"] -= 1
                lease.give_back()

        tasks = [asyncio.create_task(session(number)) for number in range(30)]
        for _ in range(12):
            await asyncio.sleep(0)
            draw.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not slots.owners
        (await slots.take(owner(), 0.0)).give_back()

    asyncio.run(scenario())


def test_what_a_worker_does_is_what_its_owners_do_cleaning_up_included() -> None:
    for kind, status in (
        (RequestType.CHAT, WorkerStatus.BUSY_CHAT),
        (RequestType.STREAMING, WorkerStatus.BUSY_STREAMING),
        (RequestType.HALF_DUPLEX_AUDIO, WorkerStatus.BUSY_HALF_DUPLEX),
        (RequestType.OMNI_DUPLEX, WorkerStatus.DUPLEX_ACTIVE),
    ):
        assert owner(kind=kind).status is status
    paused = owner()
    paused.machine_status = lambda: WorkerStatus.DUPLEX_PAUSED
    assert paused.status is WorkerStatus.DUPLEX_PAUSED


def test_the_mean_time_is_of_those_that_ended() -> None:
    async def scenario() -> None:
        now_s = 0.0
        slots = Slots(2, lambda: now_s)
        one = await slots.take(owner(), LONG_S)
        await slots.take(owner(), LONG_S)
        assert slots.mean_ms == 0.0
        now_s = 3.0
        one.give_back()
        assert slots.mean_ms == 3_000.0 and slots.total_leases == 2

    asyncio.run(scenario())
