"""The end of the program: nobody new, what runs may finish, and then a goodbye."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.fakes.gateway_stage import Stage, on_stage, until


@on_stage()
async def test_running_sessions_may_finish(stage: Stage) -> None:
    stage.drain_limit_s = 600.0
    async with stage.client("/ws/duplex/adx_1") as running:
        await running.expect("queue_done")
        await running.say("prepare")
        await running.expect("prepared")
        async with stage.client("/ws/duplex/adx_2") as waiting:
            await waiting.expect("queued")
            await stage.stop_gateway()
            error = await waiting.expect_after("error", "queue_update")
            assert error["code"] == "shutting_down"
            assert (await waiting.expect_end())[0] == 1001
        with pytest.raises(OSError):
            async with stage.client("/ws/duplex/adx_3"):
                pass
        await running.say("audio_chunk", audio="AAAA")
        await running.expect("result")
        await running.say("stop")
        await running.expect("stopped")
        assert await running.expect_end() == (1000, "")


@on_stage()
async def test_the_threads_that_decode_voices_end_with_the_gateway(stage: Stage) -> None:
    thread = await stage.gateway.voices.run(threading.current_thread)
    assert thread.is_alive()
    await stage.stop_gateway()
    await until(lambda: not thread.is_alive())


@on_stage()
async def test_sessions_beyond_the_drain_limit_are_closed(stage: Stage) -> None:
    stage.drain_limit_s = 0.1
    async with stage.client("/ws/duplex/adx_1") as running:
        await running.expect("queue_done")
        await running.say("prepare")
        await running.expect("prepared")
        await stage.stop_gateway()
        assert (await running.expect("error"))["code"] == "shutting_down"
        assert await running.expect_end() == (1001, "shutting_down")
    await until(lambda: not stage.worker.sockets)


@on_stage(limits={"resume_grace_s": 600})
async def test_a_drain_does_not_wait_for_a_client_that_lost_its_connection(stage: Stage) -> None:
    """It could return to the next gateway only."""

    async def is_kept(*_: object) -> bool:
        return True

    stage.drain_limit_s = 600.0
    vars(stage.gateway.pool.client)["keeps"] = is_kept
    async with stage.client("/ws/duplex/adx_1?resumable=1") as lost:
        await lost.expect_after("queue_done", "session_resumable")
        await lost.say("prepare")
        await lost.expect_after("prepared", "session_resumable")
        lost.connection.transport.abort()
        await until(lambda: any(relay.is_away for relay in stage.gateway.live.all()))
        await stage.stop_gateway()
        await until(lambda: not stage.gateway.live.all())


@on_stage()
async def test_a_drain_does_not_wait_between_turns(stage: Stage) -> None:
    stage.drain_limit_s = 600.0
    async with stage.client("/ws/streaming/s_1") as client:
        await client.say("heartbeat")
        await until(lambda: stage.gateway.live.all())
        await stage.stop_gateway()
        assert (await client.expect("error"))["code"] == "shutting_down"
        assert await client.expect_end() == (1001, "shutting_down")


@on_stage()
async def test_a_turn_may_finish_and_no_new_one_starts(stage: Stage) -> None:
    stage.drain_limit_s = 600.0
    gate = stage.worker.script.gate = asyncio.Event()
    async with stage.client("/ws/streaming/s_1") as client:
        await client.say("prefill", messages=[{"role": "user", "content": "Hi"}])
        await client.expect("queue_done", "prefill_done")
        await client.say("generate")
        await client.expect("chunk")
        await stage.stop_gateway()
        await until(lambda: not stage.gateway.relay_pool.is_open)
        gate.set()
        await client.expect("chunk", "done")
        await client.expect("error")
        assert (await client.expect_end())[0] == 1001
