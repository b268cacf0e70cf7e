"""The serve loop with unexpected exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from core.errors import GenerationFailedError
from core.protocols.duplex import DuplexMachine
from core.protocols.effects import Effect, Step, WorkEffect
from core.protocols.events import (
    EngineFailed,
    Event,
)
from core.schemas.duplex import AudioChunk
from tests.fakes.clock import settle, timers_left
from tests.fakes.serving import usual_answers
from tests.fakes.stages import (
    NAMES,
    SOUND,
    Hopeless,
    Stage,
    Watcher,
)
from tests.fakes.virtual_time import in_virtual_time

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
