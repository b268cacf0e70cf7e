"""OpenAI's sockets at the gateway: a limited wait, its end, and held events."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from core.schemas.queue import QueueingPhase, SocketKind
from gateway_modules.openai.sessions import EVENT, HoldLimits
from gateway_modules.relay.traffic import Message
from tests.fakes.gateway_stage import until
from tests.fakes.pools import release
from tests.fakes.relay_scene import Stage, now_s, staged
from tests.fakes.virtual_time import in_virtual_time, let_others_run

EVENTS = SocketKind.REALTIME


def event(text: str) -> dict[str, str]:
    return {"type": "conversation.item.create", "text": text}


def audio(text: str) -> dict[str, str]:
    return {"type": "input_audio_buffer.append", "text": text}


async def texts_forwarded(stage: Stage) -> list[str]:
    """Assign the worker and return what was held for it."""
    stage.assign()
    await until(lambda: stage.relay.phase is QueueingPhase.RELAYING)
    return [message["text"] for message in stage.told]


@in_virtual_time
async def test_only_changes_of_the_position_are_sent(tmp_path: Path) -> None:
    async with staged(EVENTS, tmp_path, max_wait_s=600.0) as stage:
        await stage.hear("queued")
        await asyncio.sleep(20)
        assert stage.types == ["queued"]
        stage.assign()
        await stage.hear("queue_done")


@in_virtual_time
async def test_events_sent_while_waiting_are_forwarded_in_order(tmp_path: Path) -> None:
    first = Message(EVENT, '{"type": "session.update", "text": "first"}')
    async with staged(EVENTS, tmp_path, first=first, max_wait_s=600.0) as stage:
        for message in (event("a"), audio("b"), event("c")):
            stage.say(**message)
        await let_others_run(30)
        assert await texts_forwarded(stage) == ["first", "a", "b", "c"]


@in_virtual_time
async def test_a_wait_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with staged(EVENTS, tmp_path, max_wait_s=600.0) as stage:
        began_s = now_s()
        assert await stage.end() == [1013]
        assert now_s() - began_s == pytest.approx(600.0)
        text = "The queue is full. Please try again later."
        assert stage.last("error")["error"]["message"] == text


@in_virtual_time
async def test_a_wait_that_will_be_too_long_ends_after_a_second(tmp_path: Path) -> None:
    async with staged(EVENTS, tmp_path) as stage:
        began_s = now_s()
        assert await stage.end() == [1013]
        assert now_s() - began_s == pytest.approx(1.0)
    async with staged(EVENTS, tmp_path) as stage:
        await asyncio.sleep(0.9)
        stage.assign()
        await stage.hear("queue_done")
        await asyncio.sleep(60)
        assert not stage.closed, "a worker came back in time"


@in_virtual_time
async def test_beyond_the_bound_the_oldest_held_audio_is_dropped(tmp_path: Path) -> None:
    limits = HoldLimits(max_audio_chars=200)
    async with staged(EVENTS, tmp_path, held_limits=limits, max_wait_s=600.0) as stage:
        for message in (event("update"), *(audio(str(number) * 40) for number in range(3))):
            stage.say(**message)
        await let_others_run(30)
        assert await texts_forwarded(stage) == ["update", "1" * 40, "2" * 40]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (HoldLimits(max_events=2), [event("a"), audio("b"), event("c"), event("d")]),
        (
            HoldLimits(max_audio_chars=50, max_chars=200),
            [event("a" * 60), audio("b" * 60), event("c" * 60)],
        ),
    ],
    ids=["too many", "too long"],
)
@in_virtual_time
async def test_too_many_held_events_end_the_connection(
    limits: HoldLimits, said: list[dict[str, str]], tmp_path: Path
) -> None:
    async with staged(EVENTS, tmp_path, held_limits=limits, max_wait_s=600.0) as stage:
        for message in said[:-1]:
            stage.say(**message)
        await let_others_run(30)
        assert not stage.closed
        stage.say(**said[-1])
        assert await stage.end() == [1013]
        text = "Too many events came before the session began."
        assert stage.last("error")["error"]["message"] == text


@in_virtual_time
async def test_another_worker_is_awaited_as_long_as_the_first(tmp_path: Path) -> None:
    async with staged(EVENTS, tmp_path, workers=2, max_wait_s=600.0, unreachable=1) as stage:
        await stage.hear("queued")
        stage.say(**event("a"))
        await asyncio.sleep(500)
        first, stage.others = stage.others[0], stage.others[1:]
        release(stage.pool, first.worker, ticket=first)
        await stage.hear("queued", 2)
        await asyncio.sleep(500)
        assert not stage.closed
        assert await texts_forwarded(stage) == ["a"]


@in_virtual_time
async def test_only_invalid_events_leave_the_session_open(tmp_path: Path) -> None:
    async with staged(EVENTS, tmp_path, max_wait_s=600.0) as stage:
        await stage.hear("queued")
        stage.incoming.put_nowait({"type": "websocket.receive", "bytes": b"x"})
        await stage.hear("error")
        assert not stage.closed
        stage.sent.clear()
        stage.say(**event("x" * 20_000))
        assert await stage.end() == [1009]
        assert stage.types == ["error"]
    async with staged(EVENTS, tmp_path, max_wait_s=600.0) as stage:
        stage.relay.end()
        assert await stage.end() == [1008]


@in_virtual_time
async def test_sound_that_is_dropped_while_a_call_waits_takes_no_memory(tmp_path: Path) -> None:
    async with staged(SocketKind.DUPLEX, tmp_path, "waiting") as stage:
        stage.say(type="prepare", pad="x" * 1_000)
        await until(lambda: stage.lease.held > 1_000)
        held = stage.lease.held
        for _ in range(3):
            stage.say(type="audio_chunk", audio="x" * 1_000)
        stage.say(type="prepare", pad="x" * 1_000)
        await stage.hear("warning")
        assert stage.lease.held == held


@in_virtual_time
async def test_events_that_are_dropped_while_a_client_waits_take_no_memory(tmp_path: Path) -> None:
    limits = HoldLimits(max_audio_chars=2_500)
    async with staged(EVENTS, tmp_path, held_limits=limits, max_wait_s=600.0) as stage:
        for _ in range(5):
            stage.say(**audio("x" * 1_000))
        stage.say(**event("x" * 1_000))
        await let_others_run(60)
        assert 3_000 < stage.lease.held < 3_500
