"""The model's thread: calls between passes, tasks side by side, failures, cancellation."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, cast

import pytest

from core.engine import WorkCancelledError
from core.engine import engine as engine_module
from core.engine.engine import Engine, Heartbeat
from core.engine.passes import Task, run_pass
from core.errors import GenerationFailedError, ShuttingDownError
from MiniCPMO45.engine.steps import Emit, Steps, Vocode
from tests.fakes.batching import at_once
from tests.fakes.serving import QUIET

LIMIT_S = 120.0


class Countdown(Task[int]):
    """A task of so many passes, which pauses where it emits."""

    def __init__(self, passes: int, emits_at: Sequence[int] = ()) -> None:
        super().__init__(cast(Any, None))
        self.left = passes
        self.threads: set[str] = set()
        self.is_closed = False
        self.has_begun = threading.Event()
        self._emits_at = emits_at

    @property
    def has_ended(self) -> bool:
        return self.left == 0 or self.is_closed

    @property
    def is_paused(self) -> bool:
        return self.has_ended or self.left in self._emits_at

    def take(self) -> int:
        if self.is_closed:
            raise WorkCancelledError
        return self.left

    def close(self) -> None:
        self.is_closed = True
        self.settle()

    def settle(self) -> None:
        if self.is_paused and not self.paused.done():
            self.paused.set_result(None)


class Together:
    """Passes that remember which tasks went together."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.fails = False
        self.may_run = threading.Event()
        self.may_run.set()

    def __call__(self, tasks: Sequence[Countdown]) -> None:
        for task in tasks:
            task.has_begun.set()
        self.may_run.wait(LIMIT_S)
        if self.fails:
            raise RuntimeError("broken")
        self.sizes.append(len(tasks))
        for task in tasks:
            if not task.has_ended:
                task.left -= 1
                task.threads.add(threading.current_thread().name)
                task.settle()


def begin(engine: Engine, task: Countdown, due_s: float | None = None) -> Countdown:
    task.due_s, task._engine = due_s, engine
    return task


async def run(engine: Engine, task: Countdown) -> int:
    """Run a task to its end and return its result."""
    async for _ in begin(engine, task):
        pass
    return task.result


def run_on(engine: Engine, work: Callable[[], Any]) -> Any:
    return engine.submit(work).result(LIMIT_S)


def hold(engine: Engine) -> threading.Event:
    """Occupy the thread until the event that is returned is set."""
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(LIMIT_S)

    engine.submit(wait)
    assert begun.wait(LIMIT_S)
    return go_on


@pytest.fixture
def passes() -> Together:
    return Together()


@pytest.fixture
def engine(passes: Together) -> Iterator[Engine]:
    made = Engine(QUIET)
    made.run_pass = cast(Any, passes)
    yield made
    passes.may_run.set()
    made.close()


async def test_calls_run_on_its_thread_and_give_their_results_back(engine: Engine) -> None:
    assert await engine.call(lambda: threading.current_thread().name) == "engine"
    with pytest.raises(ZeroDivisionError):
        await engine.call(lambda: 1 // 0)


async def test_a_call_runs_even_if_its_caller_is_cancelled(engine: Engine) -> None:
    done, go_on = threading.Event(), hold(engine)
    waiting = asyncio.create_task(engine.call(done.set))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    go_on.set()
    assert done.wait(LIMIT_S)
    assert run_on(engine, lambda: True), "it still works"


async def test_tasks_go_side_by_side_on_its_thread_alone(engine: Engine, passes: Together) -> None:
    tasks = [Countdown(3), Countdown(5)]
    passes.may_run.clear()
    running = [asyncio.create_task(run(engine, task)) for task in tasks]
    await asyncio.sleep(0)
    passes.may_run.set()
    assert await asyncio.gather(*running) == [0, 0], "their results"
    assert all(task.threads == {"engine"} for task in tasks)
    assert 2 in passes.sizes and sum(passes.sizes) == 8


async def test_a_stream_yields_what_is_emitted_and_pauses_there(engine: Engine) -> None:
    stream = begin(engine, Countdown(9, emits_at=(6, 2)), due_s=7.0)
    assert stream.left == 9, "it begins when it is asked for"
    assert [value async for value in stream] == [6, 2]
    assert (stream.result, stream.due_s) == (0, 7.0)


async def test_a_stream_that_is_left_is_closed(engine: Engine) -> None:
    stream = begin(engine, Countdown(9, emits_at=(6,)))
    await anext(stream)
    await stream.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert stream.is_closed and stream.left == 6


async def test_cancelling_the_caller_closes_the_task_between_two_passes(
    engine: Engine, passes: Together
) -> None:
    task = Countdown(1_000_000)
    passes.may_run.clear()
    running = asyncio.create_task(run(engine, task))
    await asyncio.to_thread(task.has_begun.wait, LIMIT_S)
    running.cancel()
    await asyncio.sleep(0)
    assert not running.done() and not task.is_closed, "it waits for the pass under way"
    passes.may_run.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert task.is_closed and task.left == 999_999


async def test_cancelling_again_waits_for_no_pass_that_hangs(
    engine: Engine, passes: Together
) -> None:
    task = Countdown(1_000_000)
    passes.may_run.clear()
    running = asyncio.create_task(run(engine, task))
    await asyncio.to_thread(task.has_begun.wait, LIMIT_S)
    for _ in range(2):
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not task.is_closed
    passes.may_run.set()
    assert run_on(engine, lambda: task.is_closed), "the engine closes it as soon as it can"


def test_on_its_own_thread_a_task_runs_alone(engine: Engine, passes: Together) -> None:
    task = Countdown(2)
    run_on(engine, lambda: engine.resume(task))
    assert task.has_ended and passes.sizes == [1, 1]


def test_calls_come_between_the_passes_of_a_long_task(engine: Engine) -> None:
    task = Countdown(1_000_000)
    seen: list[int] = []
    done = engine.resume(task)
    for _ in range(3):
        seen.append(run_on(engine, lambda: task.left))
    run_on(engine, task.close)
    done.result(LIMIT_S)
    assert seen == sorted(seen, reverse=True)


async def test_a_broken_pass_is_raised_at_every_caller_and_closes_the_tasks(
    engine: Engine, passes: Together
) -> None:
    tasks = [Countdown(1), Countdown(1)]
    passes.fails = True
    found = await asyncio.gather(*(run(engine, task) for task in tasks), return_exceptions=True)
    assert [type(each) for each in found] == [GenerationFailedError] * 2
    assert all(task.is_closed for task in tasks)
    passes.fails = False
    engine.resume(Countdown(1)).result(LIMIT_S)


async def test_too_much_waiting_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "WAITING_MAX", 2)
    freed, go_on = threading.Event(), hold(engine)
    waiting = [engine.submit(lambda: None) for _ in range(2)]
    with pytest.raises(GenerationFailedError):
        engine.submit(lambda: None)
    refused = Countdown(1)
    running = asyncio.create_task(run(engine, refused))
    freeing = asyncio.create_task(engine.call(freed.set, is_bounded=False))
    await asyncio.sleep(0)
    go_on.set()
    await freeing
    with pytest.raises(GenerationFailedError):
        await running
    assert freed.is_set() and refused.is_closed, "what frees something is never refused"
    for each in waiting:
        each.result(LIMIT_S)


async def test_a_closed_engine_refuses_what_waits_and_what_comes(engine: Engine) -> None:
    go_on = hold(engine)
    waiting = engine.submit(lambda: None)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while True:  # until the engine has learnt of it
        try:
            engine.submit(lambda: None)
        except ShuttingDownError:
            break
    go_on.set()
    closing.join(LIMIT_S)
    with pytest.raises(ShuttingDownError):
        waiting.result(LIMIT_S)
    with pytest.raises(ShuttingDownError):
        await run(engine, Countdown(1))


def test_an_engine_that_hangs_refuses_what_waits(
    engine: Engine, passes: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "JOIN_LIMIT_S", 0.01)
    passes.may_run.clear()
    task = Countdown(1)
    done = engine.resume(task)
    assert task.has_begun.wait(LIMIT_S)
    with pytest.raises(FutureTimeoutError):
        done.result(0)
    engine.close()
    with pytest.raises(ShuttingDownError):
        done.result(LIMIT_S)
    passes.fails = True
    passes.may_run.set()
    engine.close()
    assert engine.problem(LIMIT_S) is None, "what was refused meanwhile does not end the thread"


def test_whatever_is_raised_belongs_to_the_caller_alone(engine: Engine) -> None:
    class Vague(Countdown):
        @property
        def is_paused(self) -> bool:
            raise RuntimeError("no state")

    with pytest.raises(SystemExit):
        run_on(engine, sys.exit)
    with pytest.raises(GenerationFailedError):
        engine.resume(Vague(1)).result(LIMIT_S)
    engine.resume(Countdown(1)).result(LIMIT_S)
    assert engine.problem(LIMIT_S) is None


def test_a_thread_that_ended_says_so_and_refuses_what_comes() -> None:
    engine = Engine(QUIET)
    engine.watch(sys.exit)  # no work of a session: a defect of the program itself
    run_on(engine, lambda: None)
    while engine.problem(LIMIT_S) is None:
        pass
    assert "SystemExit" in str(engine.problem(LIMIT_S))
    with pytest.raises(ShuttingDownError):
        engine.submit(lambda: None)


def test_the_time_of_the_work_at_hand_is_its_silence() -> None:
    times_s = [10.0]
    heartbeat = Heartbeat(lambda: times_s[-1])
    assert heartbeat.silent_s == 0.0
    with heartbeat.beat():
        times_s.append(13.0)
        assert heartbeat.silent_s == 3.0
    assert (heartbeat.silent_s, heartbeat.worked_s) == (0.0, 3.0)


async def test_a_value_arrives_and_its_task_is_resumed_before_the_pass_ends(engine: Engine) -> None:
    begins, may_answer = threading.Event(), threading.Event()

    class Slow:
        @at_once
        def submit(self, requests: Sequence[Any]) -> list[Any]:
            may_answer.wait(LIMIT_S)
            return [None for _ in requests]

    def emitting() -> Steps[str]:
        yield Emit("early")
        return "end"

    def requesting() -> Steps[str]:
        yield cast(Any, object.__new__(Vocode))
        return "answered"

    engine.run_pass = partial(run_pass, cast(Any, Slow()))
    engine.submit(lambda: begins.wait(LIMIT_S))  # so that both are in one pass
    quick, slow = Task(emitting(), engine=engine), Task(requesting(), engine=engine)
    waiting = asyncio.create_task(anext(slow, None))
    first = asyncio.create_task(anext(quick))
    await asyncio.sleep(0)
    begins.set()
    assert await first == "early", "while the pass waits for the other's answer"
    last = asyncio.create_task(anext(quick, None))
    await asyncio.sleep(0)
    may_answer.set()
    await asyncio.gather(last, waiting)
    assert (quick.result, slow.result) == ("end", "answered")
