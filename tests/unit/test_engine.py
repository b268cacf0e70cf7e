"""The model's thread: calls between rounds, courses side by side, failures told to their owners."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.errors import GenerationFailedError, ShuttingDownError
from core.serving import engine as engine_module
from core.serving.engine import Engine
from core.serving.heartbeat import Heartbeat
from tests.fakes.serving import QUIET

LIMIT_S = 30.0


class Countdown:
    """A course of so many rounds."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds
        self.threads: set[str] = set()

    def finish(self) -> None:
        """Leave one round."""
        self.left = 1

    @property
    def stands_still(self) -> bool:
        """All rounds are over."""
        return self.left == 0


class Together:
    """Rounds that remember who went together."""

    def __init__(self) -> None:
        self.company: list[int] = []
        self.fails = False
        self.may_run = threading.Event()
        self.may_run.set()

    def run(self, courses: Sequence[Countdown]) -> None:
        """Run one round."""
        self.may_run.wait(LIMIT_S)
        if self.fails:
            raise RuntimeError("broken")
        self.company.append(len(courses))
        for course in courses:
            course.left -= 1
            course.threads.add(threading.current_thread().name)


@pytest.fixture
def rounds() -> Together:
    return Together()


@pytest.fixture
def engine(rounds: Together) -> Iterator[Engine]:
    made = Engine(QUIET)
    made.take_rounds(rounds)
    yield made
    rounds.may_run.set()
    made.close()


def test_calls_run_on_its_thread_and_give_their_results_back(engine: Engine) -> None:
    async def scenario() -> None:
        assert await engine.call(lambda: threading.current_thread().name) == "engine"
        with pytest.raises(ZeroDivisionError):
            await engine.call(lambda: 1 // 0)
        assert await engine.call(lambda: engine.run_here(lambda: 7)) == 7, "no waiting for itself"

    asyncio.run(scenario())
    assert engine.run_here(lambda: 8) == 8


def test_a_call_runs_even_if_nobody_waits_for_it_any_more(engine: Engine, rounds: Together) -> None:
    done = threading.Event()

    async def scenario() -> None:
        engine.submit(lambda: rounds.may_run.wait(LIMIT_S))
        waiting = asyncio.create_task(engine.call(done.set))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        rounds.may_run.set()

    rounds.may_run.clear()
    asyncio.run(scenario())
    assert done.wait(LIMIT_S)
    assert engine.run_here(lambda: True), "it still works"


def test_courses_go_side_by_side_on_its_thread_alone(engine: Engine, rounds: Together) -> None:
    courses = [Countdown(3), Countdown(5)]
    rounds.may_run.clear()
    with ThreadPoolExecutor(2) as pool:
        driving = [pool.submit(engine.drive, course) for course in courses]
        rounds.may_run.set()
        for each in driving:
            each.result(LIMIT_S)
    assert all(course.stands_still and course.threads == {"engine"} for course in courses)
    assert 2 in rounds.company and sum(rounds.company) == 8


def test_on_its_own_thread_a_course_runs_alone(engine: Engine, rounds: Together) -> None:
    course = Countdown(2)
    engine.run_here(lambda: engine.drive(course))
    assert course.stands_still and rounds.company == [1, 1]


def test_calls_come_between_the_rounds_of_a_long_course(engine: Engine) -> None:
    course = Countdown(1_000_000)
    seen: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(engine.drive, course)
        for _ in range(3):
            seen.append(engine.run_here(lambda: course.left))
        engine.run_here(lambda: course.finish())
        driving.result(LIMIT_S)
    assert seen == sorted(seen, reverse=True)


def test_a_broken_round_is_told_to_everybody_in_it(engine: Engine, rounds: Together) -> None:
    rounds.fails = True
    with pytest.raises(GenerationFailedError):
        engine.drive(Countdown(1))
    rounds.fails = False
    engine.drive(Countdown(1))


def test_too_much_waiting_is_refused(
    engine: Engine, rounds: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "WAITING_MAX", 2)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(LIMIT_S)

    engine.submit(hold)
    assert begun.wait(LIMIT_S)
    waiting = [engine.submit(lambda: None) for _ in range(2)]
    with pytest.raises(GenerationFailedError):
        engine.submit(lambda: None)

    async def free() -> None:
        freeing = asyncio.create_task(engine.free(lambda: freed.set()))
        await asyncio.sleep(0)
        go_on.set()
        await freeing

    freed = threading.Event()
    asyncio.run(free())
    assert freed.is_set(), "what frees something is never refused"
    for each in waiting:
        each.result(LIMIT_S)


def test_a_closed_engine_refuses_what_waits_and_what_comes(rounds: Together) -> None:
    engine = Engine(QUIET)
    engine.take_rounds(rounds)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go_on.wait(LIMIT_S)

    engine.submit(hold)
    assert begun.wait(LIMIT_S)
    waiting = engine.submit(lambda: None)
    closing = threading.Thread(target=engine.close)
    closing.start()
    while True:  # until the engine has heard of it
        try:
            engine.submit(lambda: None)
        except ShuttingDownError:
            break
    go_on.set()
    closing.join(LIMIT_S)
    with pytest.raises(ShuttingDownError):
        waiting.result(LIMIT_S)


def test_an_engine_that_hangs_lets_whoever_waits_go(
    rounds: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "JOIN_LIMIT_S", 0.01)
    engine = Engine(QUIET)
    engine.take_rounds(rounds)
    rounds.may_run.clear()
    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(engine.drive, Countdown(1))
        while not engine._riding:
            pass
        engine.close()
        with pytest.raises(ShuttingDownError):
            driving.result(LIMIT_S)
        rounds.fails = True
        rounds.may_run.set()
    engine.close()
    assert engine.problem(LIMIT_S) is None, "what was refused meanwhile does not end the thread"


def test_whatever_is_raised_belongs_to_the_caller_alone(engine: Engine, rounds: Together) -> None:
    class Vague(Countdown):
        @property
        def stands_still(self) -> bool:
            raise RuntimeError("no outcome")

    with pytest.raises(SystemExit):
        engine.run_here(sys.exit)
    with pytest.raises(GenerationFailedError):
        engine.drive(Vague(1))
    engine.drive(Countdown(1))
    assert engine.problem(LIMIT_S) is None


def test_a_thread_that_ended_says_so_and_refuses_what_comes(rounds: Together) -> None:
    engine = Engine(QUIET)
    engine.take_gauge(sys.exit)  # no work of a session: a defect of the program itself
    engine.run_here(lambda: None)
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
