"""Slots of a worker: waiting, refusal, stopping over HTTP, and release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.serving import slots
from core.serving.fake_backend import FakeBackend, FakeTimes
from core.serving.runtime import FREE_CACHE_MIN
from tests.service.workers import (
    SILENCE,
    Client,
    RunningWorker,
    Talk,
    running_worker,
    settings_for,
    soon,
    spoken,
)
from tests.system.loops import in_loop

USER = {"role": "user", "content": "Hello"}
QUICK = FakeTimes(prefill_ms=1, unit_ms=1, finalize_ms=1, piece_ms=1)
SLOW_PIECES = FakeTimes(prefill_ms=1, piece_ms=60_000)
KINDS = ("streaming", "half_duplex", "duplex", "chat")


@pytest.fixture
def worker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningWorker]:
    times, count, busy_wait_s = request.param
    monkeypatch.setattr(slots, "BUSY_WAIT_S", busy_wait_s)
    service = {"worker_slots": count}
    settings = settings_for(tmp_path, recording={"enabled": False}, service=service)
    with running_worker(settings, lambda: FakeBackend(times)) as running:
        yield running


def served(
    times: FakeTimes = QUICK, *, count: int = 1, busy_wait_s: float = 0.15
) -> pytest.MarkDecorator:
    """Return the mark of a test with a worker of its own."""
    return pytest.mark.parametrize("worker", [(times, count, busy_wait_s)], indirect=True)


async def begin(talk: Talk, kind: str) -> None:
    """Send the first message that needs a slot."""
    match kind:
        case "streaming":
            await talk.say("prefill", messages=[USER], clear_kv_cache=True)
        case "chat":
            await talk.say(None, messages=[USER])
        case _:
            await talk.say("prepare")


@pytest.mark.parametrize("kind", KINDS)
@served()
@in_loop
async def test_a_session_is_refused_after_waiting_for_a_busy_worker(
    worker: RunningWorker, kind: str
) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as first:
        await first.prepared()
        async with client.talk(kind) as second:
            await begin(second, kind)
            [error] = await second.hear_all()
            assert error["code"] == "no_worker" and second.close_code == 1013
        answer = await client.post("/chat", {"messages": [USER]})
        assert answer.status_code == 429
        assert (await client.health())["active_sessions"] == 1
        await first.stop()
    await client.idle()


@pytest.mark.parametrize("kind", KINDS)
@served(busy_wait_s=600)
@in_loop
async def test_a_waiting_session_is_served_when_a_slot_is_free(
    worker: RunningWorker, kind: str
) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as first, client.talk(kind) as second:
        await first.prepared()
        await begin(second, kind)
        await asyncio.sleep(0.02)
        await first.stop()
        assert (await second.hear())["type"] in ("prefill_done", "prepared")


@served(busy_wait_s=600)
@pytest.mark.parametrize(
    ("kind", "notices"), [("streaming", True), ("chat", True), ("duplex", False)]
)
@in_loop
async def test_a_client_that_leaves_while_waiting_leaks_nothing(
    worker: RunningWorker, kind: str, notices: bool
) -> None:
    """A live session's socket is read once it holds its slot, which is then free at once."""
    client, slots = Client(worker.port), worker.runtime.slots
    async with client.talk("duplex") as first:
        await first.prepared()
        async with client.talk(kind) as second:
            await begin(second, kind)
            await soon("it waits", lambda: len(slots._queue) == 1)
            second.socket.transport.abort()
            if notices:
                await soon("it waits no more", lambda: not slots._queue)
        await first.stop()
    await client.idle()
    assert slots.total_grants == (1 if notices else 2)


@served(busy_wait_s=600)
@in_loop
async def test_stop_ends_the_wait_of_a_turn(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as first, client.talk("streaming") as second:
        await first.prepared()
        await begin(second, "streaming")
        await asyncio.sleep(0.02)
        assert (await second.ask("stop"))["type"] == "done"
        await first.stop()
    await client.idle()


@served(count=2)
@in_loop
async def test_slots_bound_the_concurrent_sessions(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("duplex") as one, client.talk("half_duplex") as two:
        await one.prepared()
        await two.prepared()
        health = await client.health()
        assert health["slots"] == 2 and health["active_sessions"] == 2
        async with client.talk("duplex") as three:
            assert (await three.hear_all())[0]["code"] == "no_worker"
        for talk in (one, two):
            await talk.stop()
    await client.idle()


@served()
@in_loop
async def test_retained_conversations_are_evicted_when_a_slot_is_needed(
    worker: RunningWorker,
) -> None:
    client = Client(worker.port)
    async with client.talk("streaming") as talk:
        await begin(talk, "streaming")
        await talk.hear()
        await talk.say("generate", generate_audio=False)
        await talk.hear_until("done")
        await client.idle()
        kept = (await client.get("/cache_info"))["cached_hash"]
        assert kept
        async with client.talk("duplex") as other:
            await other.prepared()
        assert (await client.get("/cache_info"))["cached_hash"] is None
        await client.idle()
        missed = await talk.ask("prefill", messages=[USER], expect_hash=kept)
        assert missed["type"] == "cache_miss"


@served(count=4, busy_wait_s=10)
@in_loop
async def test_retained_conversations_are_freed_when_memory_is_scarce(
    worker: RunningWorker,
) -> None:
    """While a call runs, whose cache grows, and before another client has to wait for memory."""
    client, runtime = Client(worker.port), worker.runtime
    for text in ("Hello", "Good morning"):
        async with client.talk("streaming") as talk:
            message = {"role": "user", "content": text}
            await talk.say("prefill", messages=[message], clear_kv_cache=True)
            await talk.hear()
            await talk.say("generate", generate_audio=False)
            await talk.hear_until("done")
    await client.idle()
    assert len(runtime.store) == 2
    async with client.talk("duplex") as first:
        await first.prepared()
        runtime.engine.watch(lambda: (0.5, 0.2, 0.1)[len(runtime.store)])
        runtime.engine.submit(lambda: None)
        await soon("memory is scarce", lambda: runtime.engine.gauge.value < FREE_CACHE_MIN)
        async with client.talk("duplex") as second:
            await second.prepared()
            assert len(runtime.store) == 0
            await second.stop()
        await first.stop()
    await client.idle()


@served(SLOW_PIECES)
@in_loop
async def test_a_reply_is_stopped_over_http(worker: RunningWorker) -> None:
    client = Client(worker.port)
    async with client.talk("streaming", "s_1") as talk:
        await begin(talk, "streaming")
        await talk.hear()
        await talk.say("generate")
        unknown = await client.post("/streaming/stop", {"session_id": "s_2"})
        assert unknown.json()["success"] is False
        for body in ({"session_id": "s_1"}, None):
            assert (await client.post("/streaming/stop", body)).json()["success"]
        done = (await talk.hear_until("done"))[-1]
        assert done["stopped"]
    assert (await client.post("/streaming/stop", "x")).status_code == 422
    await client.idle()


async def speak_a_turn(talk: Talk) -> None:
    """Send speech to a half-duplex session, then silence."""
    await talk.prepared(config={"vad": {"min_silence_duration_ms": 100}})
    for sound in (SILENCE, spoken(1), SILENCE):
        await talk.say("audio_chunk", audio=sound)
    await talk.hear_until("generating")


@served(FakeTimes(prefill_ms=1, piece_ms=200))
@in_loop
async def test_audio_during_a_half_duplex_reply_is_dropped(worker: RunningWorker) -> None:
    """Otherwise the model would answer its own echo."""
    async with Client(worker.port).talk("half_duplex") as talk:
        await speak_a_turn(talk)
        await talk.say("audio_chunk", audio=spoken(1))
        await talk.hear_until("turn_done")
        await talk.say("audio_chunk", audio=SILENCE)
        assert [each["type"] for each in await talk.stop()] == ["stopped"]


@served(FakeTimes(prefill_ms=1, unit_ms=100))
@in_loop
async def test_a_slow_worker_drops_the_oldest_chunks_with_a_warning(worker: RunningWorker) -> None:
    async with Client(worker.port).talk("duplex") as talk:
        await talk.prepared()
        for _ in range(8):
            await talk.say("audio_chunk", audio=SILENCE)
        warning = (await talk.hear_until("warning"))[-1]
        assert warning["code"] == "late_chunk"
