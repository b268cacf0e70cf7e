"""How many sessions a worker takes: what units of late took decides, never a fixed number."""

from __future__ import annotations

import asyncio
import threading

import pytest
from prometheus_client import CollectorRegistry

from core.engine.engine import Engine
from core.errors import WorkerBusyError
from core.metrics import WorkerMetrics
from core.modes import Report
from core.protocols.effects import Effect, Send
from core.protocols.events import Opened
from core.schemas.duplex import Result
from core.schemas.queue import RequestType
from core.serving import capacity, slots
from core.serving.capacity import Capacity, MetricsObserver, UnitCosts
from core.serving.fake_backend import FakeBackend
from core.serving.runtime import WorkerRuntime
from core.serving.slots import Owner, Slots
from tests.fakes.virtual_time import in_virtual_time
from tests.system.loops import in_loop

LONG_S = 60.0


@pytest.fixture(autouse=True)
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The factor found on a card is not what is tested."""
    monkeypatch.setattr(capacity, "AGED", 1.7)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0


def worker() -> tuple[Capacity, Clock]:
    clock = Clock()
    return Capacity(lambda: clock.now_s), clock


def talk(
    made: Capacity,
    clock: Clock,
    sessions: int,
    share: float,
    seconds: int = 25,
    *,
    has_picture: bool = True,
) -> None:
    """Let sessions have a unit each second, each as long as a share of it."""
    for _ in range(seconds):
        clock.now_s += 1.0
        for index in range(sessions):
            made.note(f"s{index}", share, has_picture=has_picture)


def live() -> Owner:
    return Owner("s", RequestType.AUDIO_DUPLEX)


def observer_of(made: Capacity, session_id: str) -> MetricsObserver:
    metrics = WorkerMetrics(CollectorRegistry(), "worker_0")
    return MetricsObserver(metrics, made, "audio_duplex", session_id)


def allowed(made: Capacity, sessions: int) -> int:
    return made.sessions([LONG_S] * sessions)


def test_before_anything_is_known_a_few_may_begin_and_then_as_many_again() -> None:
    made, _ = worker()
    assert made.sessions([]) == capacity.FIRST
    assert made.sessions([0.0] * 8) == capacity.FIRST, "those that have just begun show nothing yet"
    assert made.sessions([LONG_S] * 8) == 16
    assert made.sessions([LONG_S] * 16 + [0.0] * 4) == 32


@pytest.mark.parametrize("unit_s_by_sessions", [{}, {1: 0.05}], ids=["unmeasured", "one slot"])
def test_less_than_two_rounds_say_nothing(unit_s_by_sessions: dict[int, float]) -> None:
    assert UnitCosts.of(unit_s_by_sessions) is None


@pytest.mark.parametrize(
    ("unit_s_by_sessions", "sessions"),
    [
        ({1: 0.0625, 33: 1.0625}, 16),  # 31 ms a round and 31 for each new session
        ({1: 0.25, 5: 1.25}, 2),  # all of it for the sessions
        ({1: 0.25, 17: 0.5}, 8),  # most of it for the round
        ({1: 0.0625, 5: 0.1875}, 5),  # more were not measured
        ({1: 0.9, 16: 9.0}, 1),
        ({1: 3.0, 16: 3.0}, 1),
    ],
)
def test_rounds_measured_at_the_start_say_how_many_sessions_to_expect(
    unit_s_by_sessions: dict[int, float], sessions: int
) -> None:
    costs = UnitCosts.of(unit_s_by_sessions)
    assert costs is not None and costs.sessions == sessions


@pytest.mark.parametrize(("alone_s", "each_s"), [(0.08, 0.0095), (0.02, 0.03), (0.2, 0.001)])
def test_as_many_as_are_expected_are_served_in_time(alone_s: float, each_s: float) -> None:
    """Units come evenly spread and are served in rounds of all that wait."""
    costs = UnitCosts(alone_s, each_s, measured=1_000)
    due = [(index / costs.sessions) for index in range(60 * costs.sessions)]
    now_s, waits = 0.0, []
    while due:
        now_s = max(now_s, due[0])
        served = [each for each in due if each <= now_s]
        now_s += alone_s + each_s * len(served)
        waits += [now_s - each for each in served]
        due = due[len(served) :]
    late = sorted(waits)[int((1 - capacity.SLOW_SHARE) * len(waits))]
    assert capacity.CALM / 2 < late < capacity.HEADROOM


def test_a_worker_begins_with_what_it_measured_and_follows_the_load_both_ways() -> None:
    made, clock = worker()
    made.expect({1: 0.0625, 33: 1.0625})
    assert made.sessions([]) == 16, "all who come at once find their place"
    talk(made, clock, 16, share=0.9, seconds=40)
    assert allowed(made, 16) == 14, "they are fewer than was expected"
    clock.now_s += 2 * capacity.MEMORY_S
    assert made.sessions([]) == 14, "what was late is remembered"
    talk(made, clock, 15, share=0.15, seconds=40)
    assert made.sessions([5.0] * 15) == 15, "their costs are not known yet"
    assert allowed(made, 15) == 23, "and then there may be more"
    clock.now_s += 2 * capacity.PROOF_S
    assert made.sessions([]) == 16


def test_voice_calls_prove_nothing_for_video_calls() -> None:
    made, clock = worker()
    made.expect({1: 0.0625, 33: 1.0625})
    talk(made, clock, 40, share=0.15, seconds=40, has_picture=False)
    assert allowed(made, 40) == 53, "a third more at a time"
    clock.now_s += 2 * capacity.MEMORY_S
    assert made.sessions([]) == 16, "whoever comes next may send pictures"


def test_delays_for_larger_batches_are_no_load() -> None:
    made, clock = worker()
    made.expect({1: 0.03, 128: 1.08})
    talk(made, clock, 102, share=0.21, seconds=40, has_picture=False)
    assert allowed(made, 102) == 136, "a third more at a time"
    talk(made, clock, 102, share=0.6, seconds=40, has_picture=False)
    assert allowed(made, 102) == 102, "and no more when units are as slow as they may be"


def test_units_of_sessions_that_ended_no_longer_count() -> None:
    made, clock = worker()
    made.expect({1: 0.03, 128: 1.08})
    talk(made, clock, 64, share=0.6, seconds=10)
    for index in range(64):
        made.end(f"s{index}")
    for _ in range(10):
        clock.now_s += 1.0
        for index in range(64):
            made.note(f"voice {index}", 0.2, has_picture=False)
    assert allowed(made, 64) == 85, "a third more than the voice calls that replaced video calls"


def test_sessions_that_follow_others_are_not_counted_with_them() -> None:
    made, clock = worker()
    talk(made, clock, 20, share=0.3)
    for index in range(20):
        made.end(f"s{index}")
    clock.now_s += 1.0
    for index in range(20):
        made.note(f"next {index}", 0.3, has_picture=True)
    assert max(unit.active for unit in made.recent()) == 20


def test_a_slow_worker_begins_with_fewer_than_an_unmeasured_one() -> None:
    made, _ = worker()
    made.expect({1: 0.25, 3: 0.65})
    assert made.sessions([]) == 2 < capacity.FIRST


@in_loop
async def test_what_the_backend_measured_is_where_a_worker_begins() -> None:
    backend = FakeBackend()
    backend.unit_s_by_sessions = {1: 0.0625, 33: 1.0625}
    runtime = WorkerRuntime(lambda: backend, 64)
    assert runtime.slots.capacity == capacity.FIRST
    try:
        await runtime.load()
        assert runtime.slots.capacity == 16
    finally:
        runtime.close()


def test_units_that_take_long_leave_room_for_few() -> None:
    made, clock = worker()
    talk(made, clock, 2, share=0.2)
    assert allowed(made, 2) == 8, "two sessions at a fifth of the time, with headroom"


def test_room_grows_while_sessions_share_the_work() -> None:
    made, clock = worker()
    talk(made, clock, 1, share=0.1)
    assert allowed(made, 1) == 8
    talk(made, clock, 8, share=0.15, seconds=40)
    assert allowed(made, 8) == 16, "no more at once than there are"
    talk(made, clock, 40, share=0.4, seconds=40)
    assert allowed(made, 40) == 80


def test_an_overloaded_worker_takes_nobody_more_and_forgets_its_proof() -> None:
    made, clock = worker()
    talk(made, clock, 40, share=0.4, seconds=40)
    allowed(made, 40)
    talk(made, clock, 60, share=0.9, seconds=40)
    assert allowed(made, 60) == 53
    talk(made, clock, 1, share=0.1, seconds=40)
    assert allowed(made, 1) == 40, "what was served in time is remembered, what was late is not"


def test_a_single_slow_unit_decides_nothing() -> None:
    made, clock = worker()
    talk(made, clock, 4, share=0.1)
    before = allowed(made, 4)
    made.note("s0", 5.0, has_picture=True)
    assert allowed(made, 4) == before


def test_what_was_proven_is_remembered_for_a_while() -> None:
    made, clock = worker()
    talk(made, clock, 20, share=0.3)
    assert allowed(made, 20) == 40
    clock.now_s += capacity.PROOF_S / 2
    assert made.sessions([]) == 20
    clock.now_s += capacity.PROOF_S
    assert made.sessions([]) == capacity.FIRST


def test_a_worker_that_is_always_late_still_takes_one() -> None:
    made, clock = worker()
    talk(made, clock, 1, share=3.0)
    assert made.sessions([]) == 1


def test_sessions_that_no_longer_talk_do_not_count() -> None:
    made, clock = worker()
    talk(made, clock, 10, share=0.2, seconds=3)
    talk(made, clock, 1, share=0.4, seconds=40)
    assert allowed(made, 1) == 2


def test_units_are_learnt_from_their_results() -> None:
    made, clock = worker()
    observer = observer_of(made, "s")
    effects: list[Effect] = [Send(Result(is_listen=True, cost_all_ms=400.0))]
    for _ in range(capacity.UNITS_MIN):
        clock.now_s += 1.0
        observer.observe(Opened(at_s=0.0), effects)
    assert allowed(made, 1) == 2
    assert not any(unit.has_picture for unit in made.recent())
    observer.observe(Opened(at_s=0.0), [Send(Result(is_listen=True, vision_slices=1))])
    assert made.recent()[-1].has_picture


def test_a_client_s_own_backlog_changes_nothing() -> None:
    def learnt(wall_clock_ms: float) -> int:
        made, clock = worker()
        talk(made, clock, 40, share=0.3)
        observer = observer_of(made, "hasty")
        result = Result(is_listen=True, cost_all_ms=300.0, wall_clock_ms=wall_clock_ms)
        for _ in range(30 * 15):
            clock.now_s += 1 / 15
            talk(made, clock, 40, share=0.3, seconds=0)
            observer.observe(Opened(at_s=0.0), [Send(result)])
        return allowed(made, 41)

    assert learnt(wall_clock_ms=3_000.0) == learnt(wall_clock_ms=300.0)


@in_loop
async def test_nobody_new_begins_when_the_memory_for_caches_runs_out() -> None:
    class Full(FakeBackend):
        room = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.asked: set[str] = set()

        def load(self, engine: Engine, report: Report) -> None:
            super().load(engine, report)
            engine.watch(self.free_share)

        def free_share(self) -> float:
            self.asked.add(threading.current_thread().name)
            return self.room

    backend = Full()
    runtime = WorkerRuntime(lambda: backend, 4)
    await runtime.load()

    async def room(share: float) -> None:
        backend.room, backend.asked = share, set()
        while not backend.asked:  # the gauge is read once the call has been answered
            await runtime.engine.call(lambda: None)

    try:
        owners = live(), live()
        for owner in owners:
            await runtime.slots.take(owner, 1.0)
        assert runtime.slots.capacity == 4
        await room(0.1)
        assert runtime.slots.capacity == 2, "those that are there go on"
        with pytest.raises(WorkerBusyError):
            await runtime.slots.take(live(), 0.01)
        for owner in owners:
            runtime.slots.give_back(owner)
        assert runtime.slots.capacity == 1, "alone, one may always try"
        assert backend.asked == {"engine"}, "the event loop never asks the device"
    finally:
        runtime.close()


@in_virtual_time
async def test_who_waits_begins_when_more_may_be_served() -> None:
    memory: list[str] = []
    made, second = Slots(4, lambda: 0.0, lambda: bool(memory)), live()
    await made.take(live(), 1.0)
    waiting = asyncio.create_task(made.take(second, 4.0))
    await asyncio.sleep(3.0)
    assert not waiting.done()
    memory.append("freed")
    await waiting
    assert made.owners[1:] == [second]


@in_virtual_time
async def test_starts_are_spaced_beside_running_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty at once would make the units of those that run late."""
    monkeypatch.setattr(slots, "RETRY_S", 0.001)
    clock = Clock()
    made = Slots(64, lambda: clock.now_s)
    made.measured.expect({1: 0.0625, 33: 1.0625})
    for _ in range(8):
        await made.take(live(), 1.0)
    clock.now_s += capacity.SETTLE_S
    await made.take(live(), 1.0)
    waiting = [asyncio.create_task(made.take(live(), 60.0)) for _ in range(2)]
    for served in range(3):
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in waiting) == served
        clock.now_s += 1.1 * slots.START_SPACING_S
    assert len(made.owners) == 11
    await made.take(Owner("turn", RequestType.CHAT), 1.0)
    await made.take(Owner("turn", RequestType.CHAT), 1.0)


@in_virtual_time
async def test_all_who_come_at_once_start_in_time_one_after_another() -> None:
    loop = asyncio.get_running_loop()
    made = Slots(64, loop.time)
    made.measured.expect({1: 0.0625, 33: 1.0625})
    await made.take(live())
    await asyncio.sleep(capacity.SETTLE_S)
    began_s = loop.time()
    await asyncio.gather(*(made.take(live()) for _ in range(15)))  # none is refused
    assert 0.99 * 14 * slots.START_SPACING_S <= loop.time() - began_s < slots.BUSY_WAIT_S
