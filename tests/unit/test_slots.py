"""Slots are never lost and nobody overtakes; conversations between turns are found by hash."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import cast

import pytest

from core.errors import WorkerBusyError
from core.history import CacheOptions, compute_history_hash, next_history_hash
from core.modes import Threads
from core.protocols.effects import Prefill, Retain
from core.protocols.events import CacheMissed
from core.schemas import streaming
from core.schemas.common import Message, Role
from core.schemas.queue import RequestType
from core.schemas.streaming import WorkerPrefill
from core.schemas.worker import WorkerStatus
from core.serving import slots
from core.serving.fake_backend import FakeBackend, FakeStreamingView, FakeTimes
from core.serving.session_handler import SessionThreads
from core.serving.slots import Conversation, Owner, SessionStore, Slots
from tests.system.loops import in_loop
from tests.unit.test_session_handlers import ANSWER, FEED, MESSAGE, QUICK, Bench, bench

LONG_S = 60.0


def owner(name: str = "s", kind: RequestType = RequestType.AUDIO_DUPLEX) -> Owner:
    return Owner(name, kind)


def make(count: int = 1) -> Slots:
    return Slots(count, lambda: 0.0)


async def take(slots: Slots, name: str = "s", wait_s: float = LONG_S) -> Owner:
    """Take a slot for a new owner."""
    new = owner(name)
    await slots.take(new, wait_s)
    return new


async def is_free(slots: Slots) -> bool:
    """Return whether nobody holds a slot, and one can be taken at once."""
    before = slots.owners
    slots.give_back(await take(slots, wait_s=0.0))
    return not before


@in_loop
async def test_first_come_first_served() -> None:
    slots, served = make(), []
    first = await take(slots)

    async def wait(number: int) -> None:
        mine = await take(slots, str(number))
        served.append(number)
        await asyncio.sleep(0)
        slots.give_back(mine)

    waiting = [asyncio.create_task(wait(number)) for number in range(5)]
    await asyncio.sleep(0)
    assert served == []
    slots.give_back(first)
    await asyncio.gather(*waiting)
    assert served == list(range(5)) and not slots.owners


@in_loop
async def test_a_newcomer_does_not_overtake_who_was_just_given_the_slot() -> None:
    slots = make()
    first = await take(slots, "a")
    waiting = asyncio.create_task(take(slots, "b"))
    await asyncio.sleep(0)
    slots.give_back(first)  # b holds it from now on, though it has not run yet
    with pytest.raises(WorkerBusyError):
        await take(slots, "c", 0.0)
    assert (await waiting).session_id == "b"


@in_loop
async def test_a_slot_is_given_back_once() -> None:
    slots = make(2)
    one, two = await take(slots), await take(slots)
    slots.give_back(one)
    slots.give_back(one)
    assert slots.owners == [two]
    slots.give_back(two)
    assert not slots.owners


@in_loop
async def test_who_waits_too_long_is_refused_and_leaves_the_line() -> None:
    slots = make()
    first = await take(slots)
    with pytest.raises(WorkerBusyError):
        await take(slots, wait_s=0.0)
    slots.give_back(first)
    assert await is_free(slots)


@in_loop
async def test_too_long_a_line_is_refused_at_once() -> None:
    made = make()
    first = await take(made)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slots, "WAITING_MAX", 1)
        waiting = asyncio.create_task(take(made))
        await asyncio.sleep(0)
        with pytest.raises(WorkerBusyError):
            await take(made)
    made.give_back(first)
    made.give_back(await waiting)
    assert not made.owners


@in_loop
async def test_giving_up_in_the_moment_of_being_served_loses_no_slot() -> None:
    slots = make()
    first = await take(slots)
    waiting = asyncio.create_task(take(slots, "b"))
    await asyncio.sleep(0)
    slots.give_back(first)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await is_free(slots)


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_any_order_of_taking_giving_back_and_giving_up(seed: int) -> None:
    draw, slots, count = random.Random(seed), make(3), Counter[str]()

    async def session(number: int) -> None:
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)
        mine = await take(slots, str(number))
        count["now"] += 1
        try:
            assert count["now"] <= 3 and len(slots.owners) <= 3
            for _ in range(draw.randrange(3)):
                await asyncio.sleep(0)
        finally:
            count["now"] -= 1
            slots.give_back(mine)

    tasks = [asyncio.create_task(session(number)) for number in range(30)]
    for _ in range(12):
        await asyncio.sleep(0)
        draw.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert await is_free(slots)


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


@in_loop
async def test_the_mean_time_is_of_those_that_ended() -> None:
    now_s = 0.0
    slots = Slots(2, lambda: now_s)
    one, _ = await take(slots), await take(slots)
    assert slots.mean_ms == 0.0
    now_s = 3.0
    slots.give_back(one)
    assert slots.mean_ms == 3_000.0 and slots.total_grants == 2


# --- conversations between turns ---


def message(text: str, role: Role = Role.USER) -> Message:
    return Message(role=role, content=text)


def fake_view() -> FakeStreamingView:
    return FakeStreamingView(FakeTimes(), cast(SessionThreads, None))


def conversation(text: str) -> Conversation:
    made = Conversation(fake_view())
    made.add_messages(WorkerPrefill(messages=[message(text)]))
    made.settle()
    return made


def test_the_hash_is_that_of_the_next_request() -> None:
    asked = WorkerPrefill(messages=[message("Be nice", Role.SYSTEM), message("Hi")], omni_mode=True)
    made = Conversation(fake_view())
    made.add_messages(asked)
    made.add_reply("Hello!")
    options = CacheOptions(omni_mode=True)
    assert made.settle() == next_history_hash(asked.messages, "Hello!", options)
    more = WorkerPrefill(messages=[message("More")])
    made.add_messages(more)
    made.add_reply("Fine.")
    told = [*asked.messages, message("Hello!", Role.ASSISTANT), *more.messages]
    assert made.settle() == next_history_hash(told, "Fine.", options)


def test_a_turn_that_is_rolled_back_is_not_part_of_the_history() -> None:
    made = conversation("Hi")
    before = made.history_hash
    made.mark()
    made.add_messages(WorkerPrefill(messages=[message("More")]))
    made.roll_back()
    assert made.settle() == before == compute_history_hash([message("Hi")])


def test_a_conversation_is_taken_once() -> None:
    store, made = SessionStore(2), conversation("Hi")
    assert store.keep(made, 0) == []
    assert made.history_hash and store.newest is made and len(store) == 1
    assert store.take("0" * 64) is None
    assert store.take(made.history_hash) is made
    assert store.take(made.history_hash) is None and store.newest is None


def test_the_least_recently_used_is_evicted_first() -> None:
    store = SessionStore(2)
    one, two, three = (conversation(text) for text in "abc")
    assert store.keep(one, 0) == store.keep(two, 0) == []
    assert one.history_hash and store.take(one.history_hash) is one
    assert store.keep(one, 0) == []
    assert store.keep(three, 0) == [two]


def test_active_sessions_reduce_the_capacity() -> None:
    store = SessionStore(2)
    one, two = conversation("a"), conversation("b")
    store.keep(one, 0)
    store.keep(two, 0)
    assert store.make_room(0) == []
    assert store.make_room(1) == [one]
    assert store.make_room(2) == [two]
    assert store.make_room(5) == [] and len(store) == 0


def test_of_two_with_the_same_history_the_newer_is_retained() -> None:
    store, one, two = SessionStore(4), conversation("a"), conversation("a")
    store.keep(one, 0)
    assert store.keep(two, 0) == [one]
    assert store.make_room(4) == [two] and len(store) == 0


@in_loop
async def test_another_socket_that_continues_a_conversation_takes_it_over() -> None:
    """Its threads and its voice count from then on; on the same socket nothing changes."""

    class Moving(FakeStreamingView):
        moves = 0

        def use_threads(self, threads: Threads) -> None:
            super().use_threads(threads)
            self.moves += 1

    class Backend(FakeBackend):
        def open_streaming(self, threads: Threads) -> FakeStreamingView:
            return Moving(QUICK, threads)

    async with bench(Backend(QUICK)) as made:
        other = Bench(made.runtime)
        view, moves = None, list[int]()
        await made.do(FEED, ANSWER, Retain())
        for socket in (made, other, made):
            kept = made.runtime.store.newest
            assert kept is not None and view in (None, kept.view)
            view = kept.view
            more = streaming.WorkerPrefill(messages=MESSAGE.messages, expect_hash=kept.history_hash)
            await socket.do(Prefill(more), ANSWER, Retain())
            assert isinstance(view, Moving)
            moves.append(view.moves)
        assert moves == [0, 1, 2]
        await other.handler.release()


@in_loop
async def test_a_socket_is_not_given_what_another_one_has_added() -> None:
    async with bench(FakeBackend(QUICK)) as made:
        await made.do(FEED, ANSWER, Retain())
        kept, other = made.runtime.store.newest, Bench(made.runtime)
        assert kept is not None
        more = streaming.WorkerPrefill(messages=MESSAGE.messages, expect_hash=kept.history_hash)
        await other.do(Prefill(more), ANSWER, Retain())
        await other.handler.release()
        later = streaming.WorkerPrefill(messages=MESSAGE.messages)
        assert await made.do(Prefill(later)) == CacheMissed()


@in_loop
async def test_an_old_reading_of_the_memory_frees_no_conversation_in_vain() -> None:
    """Neither before the first is freed nor after it, which makes room for those that remain."""
    async with bench(FakeBackend(QUICK), slots=4) as made:
        runtime, store = made.runtime, made.runtime.store
        runtime.engine.watch(lambda: 0.1 * (4 - len(store)))
        for text in "abc":
            assert store.keep(conversation(text), 0) == []
        runtime.engine.gauge.value = 0.1
        await runtime.evict_surplus()
        assert [each.history_hash for each in store._kept] == [conversation("c").history_hash]
        runtime.engine.gauge.value = 0.1  # as read before there was room again
        await runtime.evict_surplus()
        assert len(store) == 1
