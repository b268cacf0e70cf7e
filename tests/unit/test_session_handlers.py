"""Signals apply to the right work, begun or not; slots are released after the caches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from core.errors import (
    GenerationFailedError,
    ModelError,
    OmniError,
    OneVoiceError,
    ShuttingDownError,
    WorkerBusyError,
)
from core.modes import Threads
from core.protocols import events
from core.protocols.effects import Generate, Prefill, Retain, Rollback, WorkEffect
from core.schemas import streaming
from core.schemas.chat import ChatRequest
from core.schemas.common import Message, Role
from core.schemas.queue import RequestType
from core.schemas.streaming import StreamingChunk, StreamingRequest
from core.serving import runtime, session_handler, slots
from core.serving.fake_backend import FakeBackend, FakeStreamingView, FakeTimes
from core.serving.runtime import WorkerRuntime
from core.serving.session_handler import SessionThreads
from core.serving.slots import Owner
from core.serving.turn_handlers import ChatHandler, StreamingHandler
from tests.system.loops import in_loop

LOOKS, LOOK_S = 60_000, 0.002
LIMIT_S = 120.0
QUICK, NEVER = (FakeTimes(prefill_ms=0, piece_ms=piece_ms) for piece_ms in (1, 60_000))
MESSAGE = streaming.WorkerPrefill(
    messages=[Message(role=Role.USER, content="Hi")], clear_kv_cache=True
)
FEED, ANSWER = Prefill(MESSAGE), Generate(streaming.Generate())


async def soon(is_true: Callable[[], bool]) -> None:
    for _ in range(LOOKS):
        if is_true():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError("it never came true")


class Bench:
    """A handler and its emitted events."""

    def __init__(self, runtime: WorkerRuntime) -> None:
        self.runtime = runtime
        self.handler = StreamingHandler(runtime, Owner("s", RequestType.STREAMING))
        self.emitted: list[events.Event] = []

    async def emit(self, event: events.Event) -> None:
        self.emitted.append(event)

    def ask(self, *effects: WorkEffect) -> asyncio.Task[None]:
        """Request work as the serve loop does: expected at once, begun later."""
        for _ in effects:
            self.handler.expect()
        return asyncio.create_task(self._carry_out(effects))

    async def _carry_out(self, effects: Sequence[WorkEffect]) -> None:
        for effect in effects:
            await self.handler.perform(effect, self.emit)

    async def do(self, *effects: WorkEffect) -> events.Event | None:
        """Carry out effects; return the last event."""
        for effect in effects:
            await self.ask(effect)
        return self.emitted[-1] if self.emitted else None


@asynccontextmanager
async def bench(backend: FakeBackend, slots: int = 1) -> AsyncIterator[Bench]:
    """Yield a handler; its slot is free at the end."""
    runtime = WorkerRuntime(lambda: backend, slots)
    await runtime.load()
    made = Bench(runtime)
    try:
        yield made
        await made.handler.release()
        assert not runtime.slots.owners
    finally:
        runtime.close()


@in_loop
async def test_an_interruption_before_the_work_begins_cancels_it() -> None:
    async with bench(FakeBackend(NEVER)) as made:
        await made.do(FEED)
        work = made.ask(ANSWER)
        made.handler.interrupt()
        await work
        done = made.emitted[-1]
        assert isinstance(done, events.GenerateDone) and done.stopped and done.text == ""


@in_loop
async def test_an_interruption_after_the_work_has_ended_has_no_effect() -> None:
    async with bench(FakeBackend(QUICK)) as made:
        await made.do(FEED)
        made.handler.interrupt()
        done = await made.do(ANSWER)
        assert isinstance(done, events.GenerateDone) and not done.stopped and done.text


@in_loop
async def test_problems_of_unused_input_are_reported_after_the_prefill() -> None:
    """Clients of the documented protocols expect `prepared` as the next message."""

    class Forgetful(FakeStreamingView):
        def take_notices(self) -> list[OmniError]:
            return [OneVoiceError()]

    class Backend(FakeBackend):
        def open_streaming(self, threads: Threads) -> FakeStreamingView:
            return Forgetful(QUICK, threads)

    async with bench(Backend(QUICK)) as made:
        await made.do(FEED)
        kinds = [type(event) for event in made.emitted]
        assert kinds == [events.PrefillDone, events.EngineWarning]


@in_loop
async def test_an_interruption_applies_to_the_last_requested_work() -> None:
    """Not to the finalize before it, which still runs."""
    async with bench(FakeBackend(QUICK)) as made:
        await made.do(FEED, ANSWER)
        work = made.ask(Retain(), FEED)
        made.handler.interrupt()
        await work
        assert len(made.runtime.store) == 1, "the turn before is kept"
        assert made.emitted[-1] == events.PrefillDone(), "nothing was fed"


@in_loop
async def test_an_interrupted_reply_keeps_what_was_said() -> None:
    async with bench(FakeBackend(FakeTimes(prefill_ms=0, piece_ms=500))) as made:
        await made.do(FEED)
        work = made.ask(ANSWER)
        await soon(lambda: any(isinstance(event, events.ChunkReady) for event in made.emitted))
        made.handler.interrupt()
        await work
        done = made.emitted[-1]
        assert isinstance(done, events.GenerateDone) and done.stopped and done.text
        await made.do(Retain())
        kept = made.runtime.store.newest
        assert kept and kept.history[-1] == {
            "role": "assistant",
            "content": [{"type": "text", "text": done.text}],
        }


@in_loop
async def test_a_cancelled_session_frees_everything() -> None:
    async with bench(FakeBackend(NEVER)) as made:
        await made.do(FEED)
        work = made.ask(ANSWER)
        await asyncio.sleep(0.01)
        made.handler.cancel()
        await work
        await made.do(Rollback(), Retain())
        assert len(made.runtime.store) == 0


class Broken(FakeStreamingView):
    """Fails while it is fed, or while it answers."""

    fails_at = "reply"

    async def feed_request(self, request: StreamingRequest) -> str:
        if self.fails_at == "prefill":
            raise RuntimeError("secret of the machine")
        return await super().feed_request(request)

    async def reply(self, wanted: streaming.Generate) -> AsyncGenerator[StreamingChunk, None]:
        async with aclosing(super().reply(wanted)) as pieces:
            yield await anext(pieces)
        raise RuntimeError("secret of the machine")


class BrokenBackend(FakeBackend):
    """Opens failing conversations on a device that may be broken."""

    fails_at = "reply"
    is_device_broken = False

    def open_streaming(self, threads: Threads) -> FakeStreamingView:
        view = Broken(self.times, threads)
        view.fails_at = self.fails_at
        return view

    def tidy(self) -> None:
        if self.is_device_broken:
            raise RuntimeError("an illegal memory access was encountered")

    def check(self) -> None:
        if self.is_device_broken:
            raise ModelError("The device does not work any more.")


@pytest.mark.parametrize("place", ["prefill", "reply"])
@in_loop
async def test_a_failure_is_reported_without_details_and_can_be_undone(place: str) -> None:
    backend = BrokenBackend(QUICK)
    backend.fails_at = place
    async with bench(backend) as made:
        failed = await made.do(*((FEED,) if place == "prefill" else (FEED, ANSWER)))
        assert isinstance(failed, events.TurnFailed) and failed.can_rollback
        assert isinstance(failed.error, GenerationFailedError)
        assert "secret" not in failed.error.message
        await made.do(Rollback(), Retain())
        assert not made.runtime.slots.owners and len(made.runtime.store) == 0


@pytest.mark.parametrize("is_broken", [True, False])
@in_loop
async def test_the_device_is_checked_after_a_failure(is_broken: bool) -> None:
    backend = BrokenBackend(QUICK)
    backend.is_device_broken = is_broken
    async with bench(backend) as made:
        await made.do(FEED, ANSWER)
    assert (made.runtime.progress.error is not None) == is_broken


class Stubborn(FakeStreamingView):
    """Ignores cancellation until the test releases it."""

    def __init__(self, threads: Threads, go_on: threading.Event) -> None:
        super().__init__(QUICK, threads)
        self.go_on = go_on
        self.begun = threading.Event()

    async def feed_request(self, request: StreamingRequest) -> str:
        def hang() -> str:
            self.begun.set()
            assert self.go_on.wait(LIMIT_S)
            return ""

        return await self._threads.run(hang)


class StubbornBackend(FakeBackend):
    """Opens conversations that hang."""

    def __init__(self) -> None:
        super().__init__(QUICK)
        self.go_on = threading.Event()
        self.talks: list[Stubborn] = []

    def open_streaming(self, threads: Threads) -> Stubborn:
        self.talks.append(Stubborn(threads, self.go_on))
        return self.talks[-1]


async def hang(made: Bench, backend: StubbornBackend) -> asyncio.Task[None]:
    """Begin work that hangs, and cancel it."""
    work = made.ask(FEED)
    await soon(lambda: bool(backend.talks) and backend.talks[-1].begun.is_set())
    made.handler.cancel()
    return work


@in_loop
async def test_a_call_that_hangs_ends_its_own_session_and_not_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_handler, "HANG_LIMIT_S", 0.01)
    backend = StubbornBackend()
    async with bench(backend) as made:
        await (await hang(made, backend))
        await made.handler.release()
        runtime, slots = made.runtime, made.runtime.slots
        assert not slots.owners and runtime.error is None
        await slots.take(Owner("next", RequestType.CHAT), 0)
        assert await SessionThreads(runtime.threads, None).run(lambda: "works") == "works"
        slots.give_back(*slots.owners)
        backend.go_on.set()


@in_loop
async def test_abandoned_calls_are_bounded_and_one_more_keeps_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_handler, "HANG_LIMIT_S", 0.0)
    monkeypatch.setattr(runtime, "HANGING_MAX", 0)
    backend = StubbornBackend()
    async with bench(backend) as made:
        work = await hang(made, backend)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not work.done() and made.runtime.slots.owners
        assert made.runtime.error is None
        backend.go_on.set()
        await work


@pytest.mark.parametrize("failures, is_lost", [(1, False), (2, True)])
@in_loop
async def test_a_conversation_that_cannot_be_closed_keeps_its_slot(
    failures: int, is_lost: bool
) -> None:
    class Sticky(FakeStreamingView):
        left = failures

        async def close(self) -> None:
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("the memory is still in use")

    class StickyBackend(FakeBackend):
        def open_streaming(self, threads: Threads) -> FakeStreamingView:
            return Sticky(QUICK, threads)

    async with bench(StickyBackend(QUICK), slots=2) as made:
        await made.do(FEED)
        await made.handler.release()
        slots = made.runtime.slots
        assert not slots.owners and slots.capacity == (1 if is_lost else 2)
        assert made.runtime.error is None, "one slot is left"
        if is_lost:
            for lost in (slots.count, slots.count + 1):  # a retained conversation may fail, too
                slots.lost = lost
                assert made.runtime.error and made.runtime.health().status == "error"


@in_loop
async def test_a_broken_device_stays_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_handler, "HANG_LIMIT_S", 0.01)
    backend = StubbornBackend()
    async with bench(backend) as made:
        work = await hang(made, backend)
        made.runtime.progress.error = "The device does not work any more."
        backend.go_on.set()
        await work
        await made.handler.release()
        assert made.runtime.error == "The device does not work any more."


@in_loop
async def test_an_unresponsive_engine_fails_the_worker_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "ENGINE_LIMIT_S", 0.0)
    go_on, begun = threading.Event(), threading.Event()
    async with bench(FakeBackend(QUICK)) as made:
        await soon(lambda: made.runtime.error is None)
        made.runtime.engine.submit(begun.set)
        held = made.runtime.engine.submit(lambda: go_on.wait(LIMIT_S))
        assert begun.wait(LIMIT_S)
        await soon(lambda: made.runtime.error == "The engine does not answer.")
        go_on.set()
        await asyncio.wrap_future(held)
        await soon(lambda: made.runtime.error is None)


@in_loop
async def test_a_turn_without_a_slot_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "BUSY_WAIT_S", 0.01)
    async with bench(FakeBackend(QUICK)) as made:
        other = Owner("other", RequestType.DUPLEX)
        await made.runtime.slots.take(other, 0)
        failed = await made.do(FEED)
        assert isinstance(failed, events.TurnFailed) and not failed.can_rollback
        assert isinstance(failed.error, WorkerBusyError)
        made.runtime.slots.give_back(other)


@in_loop
async def test_a_session_ends_in_order_without_an_engine() -> None:
    async with bench(FakeBackend(QUICK)) as made:
        await made.do(FEED)
        made.runtime.threads.failures = 1  # the device has to be checked
        made.runtime.engine.close()
        await made.handler.release()
        assert made.runtime.progress.error is None, "the device is not what has failed"


@in_loop
async def test_a_chat_that_a_shutdown_cuts_off_says_so() -> None:
    runtime = WorkerRuntime(lambda: FakeBackend(FakeTimes(prefill_ms=60_000)), 1)
    await runtime.load()
    handler = ChatHandler(runtime, Owner("s", RequestType.CHAT))
    answer = asyncio.create_task(handler.respond(ChatRequest(messages=MESSAGE.messages)))
    await asyncio.sleep(0.01)
    handler.cancel()
    with pytest.raises(ShuttingDownError):
        await answer
    await handler.release()
    assert not runtime.slots.owners
    runtime.close()
