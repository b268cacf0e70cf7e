"""The connection breaks at every suspension of every task of whole conversations: nothing leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest
from websockets.exceptions import ConnectionClosed, InvalidMessage

from core.serving.fake_backend import FakeBackend, FakeTimes
from tests.fakes.awaits import Awaits
from tests.pairing import by_default
from tests.service.workers import (
    SILENCE,
    Client,
    RunningWorker,
    Talk,
    eventually,
    jpeg,
    running_worker,
    settings_for,
    spoken,
)

PICTURE = jpeg(40, 30)
USER = {"role": "user", "content": "Hello"}
INSTANT = FakeTimes(prefill_ms=0, unit_ms=0, finalize_ms=0, piece_ms=0)
Conversation = Callable[[Talk], Awaitable[None]]


async def stream(talk: Talk) -> None:
    await talk.ask("prefill", messages=[USER], clear_kv_cache=True)
    await talk.say("generate", max_new_tokens=2, generate_audio=False)
    await talk.hear_until("done")
    await talk.say("close")
    await talk.socket.wait_closed()


async def take_turns(talk: Talk) -> None:
    config = {
        "vad": {"min_silence_duration_ms": 100},
        "generation": {"max_new_tokens": 2},
        "tts": {"enabled": False},
    }
    await talk.say("prepare", config=config)
    await talk.hear_until("prepared")
    for sound in (SILENCE, spoken(1), SILENCE):
        await talk.say("audio_chunk", audio=sound)
    await talk.hear_until("turn_done")
    await talk.say("stop")
    await talk.socket.wait_closed()


async def converse(talk: Talk) -> None:
    await talk.say("prepare", config={"force_listen_count": 1}, barge_in={})
    await talk.hear_until("prepared")
    await talk.say("video_frame", frame=PICTURE)
    await talk.say("audio_chunk", audio=SILENCE)
    await talk.hear_until("result")
    await talk.say("video_frame", frame=PICTURE)
    await talk.say("pause")
    await talk.say("resume")
    await talk.say("audio_chunk", audio=SILENCE)
    await talk.hear_until("result")
    await talk.say("stop")
    await talk.socket.wait_closed()


async def ask(talk: Talk) -> None:
    await talk.say(None, messages=[USER], generation={"max_new_tokens": 2})
    await talk.socket.wait_closed()


CONVERSATIONS: dict[str, Conversation] = {
    "streaming": stream,
    "half_duplex": take_turns,
    "duplex": converse,
    "chat": ask,
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    """One worker for all conversations; it records them too."""
    settings = settings_for(tmp_path_factory.mktemp("data"))
    with running_worker(settings, lambda: FakeBackend(INSTANT)) as running:
        yield running


def hold(worker: RunningWorker, kind: str, at: int | None) -> Awaits:
    """Hold a conversation whose connection breaks at suspension number `at` of the worker."""

    def break_off() -> None:
        for connection in list(worker.server.server_state.connections):
            connection.transport.abort()

    async def scenario() -> None:
        try:
            async with Client(worker.port).talk(kind, "the_same") as talk:
                await CONVERSATIONS[kind](talk)
        except (ConnectionClosed, InvalidMessage, OSError, EOFError):
            assert at is not None, "nobody broke it off"

    awaits = Awaits(at, break_off)
    worker.on_loop(lambda: awaits.install(asyncio.get_running_loop()))
    asyncio.run(scenario())
    return awaits


def is_quiet(worker: RunningWorker, tasks: int) -> bool:
    is_free = not worker.sessions._live and not worker.runtime.slots.owners
    return is_free and worker.tasks() <= tasks


@pytest.mark.parametrize("kind", by_default(["duplex"], list(CONVERSATIONS)))
def test_the_connection_breaks_at_every_await(worker: RunningWorker, kind: str) -> None:
    tasks = worker.tasks()
    places = hold(worker, kind, None).places
    eventually("the worker is quiet", lambda: is_quiet(worker, tasks))
    assert len(places) > 20
    for number in range(len(places)):
        hold(worker, kind, number)
        eventually(f"quiet after {number}: {places[number]}", lambda: is_quiet(worker, tasks))
    assert worker.runtime.progress.error is None
    hold(worker, kind, None)
    eventually("the worker still works", lambda: is_quiet(worker, tasks))
    worker.on_loop(lambda: asyncio.get_running_loop().set_task_factory(None))
