"""The serve loop with a fake client, engine and clock: nothing leaks at any incident."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from core.errors import GenerationFailedError
from core.protocols.duplex import DuplexMachine
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Effect, Step, WorkEffect
from core.protocols.events import (
    EngineFailed,
    Event,
    Opened,
    Received,
    StopRequested,
    TimerFired,
    TimerName,
)
from core.schemas.duplex import AudioChunk
from core.schemas.worker import WorkerStatus
from core.serving.connection import Timers
from tests.fakes.clock import settle, timers_left
from tests.fakes.serving import usual_answers
from tests.fakes.stages import (
    ACCIDENTS,
    CONVERSATIONS,
    NAMES,
    SOUND,
    Hopeless,
    Stage,
    Watcher,
    cancel,
    converse,
)
from tests.fakes.virtual_time import in_virtual_time


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_whole_conversation(name: str) -> None:
    stage, awaits = converse(name)
    expected = {
        "duplex": "warning prepared result result paused resumed interrupted stopped",
        "half_duplex": "prepared vad_state vad_state generating chunk chunk turn_done "
        "vad_state vad_state generating chunk chunk turn_done "
        "vad_state vad_state generating stopped",
        "streaming": "prefill_done chunk chunk done " * 2 + "done",
    }
    assert stage.socket.types == expected[name].split()
    assert stage.socket.closes == [(1000, "")]
    assert len(set(awaits.places)) >= 4, "the loop, the reader and the queues are all counted"


@pytest.mark.parametrize("accident", ACCIDENTS)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_failure_at_any_await_leaks_nothing(name: str, accident: str) -> None:
    _, awaits = converse(name)
    assert awaits.count > 50
    for at in range(awaits.count):
        converse(name, at, ACCIDENTS[accident])


@in_virtual_time
async def test_repeated_cancellation() -> None:
    stage = await Stage.prepared()
    stage.handler.pause()
    stage.handler.ignores_halt = True
    await stage.say("audio_chunk", audio=SOUND)
    for _ in range(5):
        cancel(stage)
        await settle()
    assert stage.handler.releases == 0, "the step still runs"
    stage.handler.go_on()
    await stage.end()
    assert stage.task is not None and stage.task.cancelled()


# --- order ---


@in_virtual_time
async def test_the_result_is_sent_before_finalize_begins() -> None:
    stage = await Stage.prepared()
    await stage.say("audio_chunk", audio=SOUND)
    assert stage.handler.log == ["Prefill", "Step", "Finalize"]
    assert stage.socket.types == ["prepared", "result"]
    assert stage.socket.sent[-1]["server_send_ts"] == 1_700_000_000.5
    await stage.stop()
    assert stage.handler.log[-1] == "Release"


@in_virtual_time
async def test_stop_cancels_the_step_and_closes_after_the_release() -> None:
    stage = await Stage.prepared()
    stage.handler.pause()
    stage.handler.ignores_halt = True
    await stage.say("audio_chunk", audio=SOUND)
    await stage.say("stop")
    assert stage.handler.log[-1] == "Cancel"
    assert "stopped" not in stage.socket.types, "the step still runs"
    stage.handler.go_on()
    await stage.end()
    assert stage.socket.types[-1] == "stopped"
    assert stage.handler.log[-2:] == ["Cancel", "Release"]


@in_virtual_time
async def test_timers_reach_the_machine_and_stopped_ones_do_not() -> None:
    machine = DuplexMachine(NAMES, DuplexLimits(pause_timeout_s=30, idle_timeout_s=0))
    stage = await Stage.prepared(machine)
    await stage.say("pause")
    await asyncio.sleep(29.0)
    await stage.say("resume")
    await asyncio.sleep(29.0)
    assert not stage.machine.is_closed
    await stage.say("pause")
    await asyncio.sleep(30.0)
    await stage.end()
    assert stage.socket.types[-1] == "timeout"
    assert stage.socket.sent[-1]["elapsed_s"] == 30.0


@in_virtual_time
async def test_an_expired_timer_that_was_stopped_meanwhile_does_not_fire() -> None:
    machine = DuplexMachine(NAMES, DuplexLimits(pause_timeout_s=10, idle_timeout_s=0))
    stage = await Stage.prepared(machine)
    await stage.say("pause")
    stage.socket.stop_reading()
    await stage.say("interrupt")  # blocks the loop
    stage.socket.say("resume")
    stage.socket.say("pause")
    await asyncio.sleep(11.0)
    stage.socket.read_again()
    await settle()
    assert stage.socket.types[-2:] == ["resumed", "paused"]
    await asyncio.sleep(9.0)
    assert not stage.machine.is_closed, "the first pause's time is not the second's"
    await asyncio.sleep(2.0)
    await stage.end()
    assert stage.socket.types[-1] == "timeout"


@in_virtual_time
async def test_a_requested_stop() -> None:
    stage = await Stage.prepared()
    assert stage.connection.machine.status is WorkerStatus.DUPLEX_ACTIVE
    stage.connection.post(StopRequested())
    stage.connection.post(StopRequested())
    await stage.end()
    assert stage.socket.types == ["prepared", "stopped"]


@in_virtual_time
async def test_events_carry_the_time_and_the_size() -> None:
    stage = Stage()
    stage.start()
    await asyncio.sleep(3.0)
    await stage.say("prepare")
    await stage.stop()
    events = [event for event, _ in stage.watcher.seen]
    assert isinstance(events[0], Opened)
    received = [event for event in events if isinstance(event, Received)]
    assert [event.size_bytes for event in received] == [19, 16]
    assert {event.at_s for event in events[1:]} == {3.0}


@in_virtual_time
async def test_timers() -> None:
    idle, pause = TimerName.IDLE, TimerName.PAUSE
    fired: list[TimerFired] = []
    timers = Timers(fired.append)
    timers.start(idle, 5.0)
    timers.start(pause, 3.0)
    timers.start(idle, 10.0)  # anew
    await asyncio.sleep(6.0)
    assert fired == [TimerFired(pause)]
    assert timers.claim(fired[0])
    assert not timers.claim(fired[0]), "each counts once"
    await asyncio.sleep(6.0)
    timers.stop(idle)  # it has expired, but nobody has claimed it
    assert not timers.claim(fired[1])
    timers.start(idle, 1.0)
    timers.stop(idle)
    assert timers_left() == 0


# --- unexpected exceptions ---


@pytest.mark.parametrize("error", [GenerationFailedError(), RuntimeError("out of memory")])
@in_virtual_time
async def test_an_engine_that_raises_ends_the_session(error: Exception) -> None:
    def answers(effect: WorkEffect) -> Sequence[Event]:
        if isinstance(effect, Step):
            raise error
        return usual_answers(effect)

    stage = Stage()
    stage.handler.answers = answers
    await stage.prepare()
    await stage.say("audio_chunk", audio=SOUND)
    await stage.end()
    code = "generation_failed" if isinstance(error, GenerationFailedError) else "internal"
    assert stage.socket.sent[-1]["code"] == code
    assert stage.socket.closes == [(1011, code)]


class Broken(DuplexMachine):
    """A machine with a bug."""

    def handle(self, event: Event) -> list[Effect]:
        if event.kind == "interrupt":
            raise KeyError("a mistake")
        return super().handle(event)


@in_virtual_time
async def test_a_bug_in_a_machine_ends_its_session_in_order() -> None:
    stage = await Stage.prepared(Broken(NAMES))
    await stage.say("interrupt")
    await stage.end()
    assert stage.socket.sent[-1]["code"] == "internal"
    assert stage.socket.closes == [(1011, "internal")]


@in_virtual_time
async def test_a_machine_that_fails_at_its_end_is_released() -> None:
    stage = await Stage.prepared(Hopeless(NAMES))
    stage.handler.pause()
    stage.connection._work.put_nowait(Step(AudioChunk(audio=SOUND), (), 0, due_s=1.0))
    await stage.say("heartbeat")
    await settle()
    assert stage.task is not None
    assert stage.task.done(), "without any time passing"
    assert stage.handler.releases == 1
    assert stage.socket.closes == [(1011, "internal")]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert timers_left() == 0


class Clumsy(Watcher):
    """An observer that fails."""

    def observe(self, event: Event, effects: Sequence[Effect]) -> None:
        super().observe(event, effects)
        if len(self.seen) == 2:
            raise OSError("disk full")

    async def close(self) -> None:
        await super().close()
        raise OSError("disk full")


@in_virtual_time
async def test_a_failing_observer_is_removed() -> None:
    stage = Stage()
    clumsy = Clumsy()
    stage.connection._watching.insert(0, clumsy)
    stage.connection.observers = [clumsy, stage.watcher]
    await stage.prepare()
    await stage.stop()
    assert len(clumsy.seen) == 2
    assert len(stage.watcher.seen) == 4
    assert clumsy.closes == 1


@in_virtual_time
async def test_any_exception_of_a_socket_counts_as_a_disconnect() -> None:
    stage = Stage()

    async def receive() -> str:
        raise KeyError("a mistake of the server")

    stage.socket.receive = receive  # type: ignore[method-assign]
    stage.start()
    await stage.end()


@in_virtual_time
async def test_engine_failure_arrives_as_an_event() -> None:
    stage = Stage()
    stage.handler.answers = lambda effect: [EngineFailed(GenerationFailedError())]
    stage.start()
    await stage.say("prepare")
    await stage.end()
    assert stage.socket.types == ["error"]
