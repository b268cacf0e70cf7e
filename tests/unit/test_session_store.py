"""Conversations retained between turns: found by history hash, bounded, evicted by age."""

from __future__ import annotations

from typing import cast

from core.history import CacheOptions, compute_history_hash, next_history_hash
from core.modes import Threads
from core.protocols.effects import Prefill, Retain
from core.schemas import streaming
from core.schemas.common import Message, Role
from core.schemas.streaming import WorkerPrefill
from core.serving.fake_backend import FakeBackend, FakeStreamingView, FakeTimes
from core.serving.session_handler import SessionThreads
from core.serving.slots import Conversation, SessionStore
from tests.system.loops import in_loop
from tests.unit.test_session_handlers import ANSWER, FEED, MESSAGE, QUICK, Bench, bench


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
        for socket in (made, other):
            kept = made.runtime.store.newest
            assert kept is not None and view in (None, kept.view)
            view = kept.view
            more = streaming.WorkerPrefill(messages=MESSAGE.messages, expect_hash=kept.history_hash)
            await socket.do(Prefill(more), ANSWER, Retain())
            assert isinstance(view, Moving)
            moves.append(view.moves)
        assert moves == [0, 1]
        await other.handler.release()
