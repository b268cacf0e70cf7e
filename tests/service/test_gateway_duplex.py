"""Full duplex through the gateway: the queue, the relay both ways, and every way to end."""

from __future__ import annotations

from tests.fakes.gateway_stage import Stage, on_stage, until


@on_stage()
async def test_a_whole_session(stage: Stage) -> None:
    async with stage.client("/ws/duplex/adx_1") as client:
        done = await client.expect("queue_done")
        assert (done["worker_id"], done["position"]) == ("worker_0", 0)
        await client.say("prepare", prefix_system_prompt="Hi")
        await client.expect("prepared")
        await client.say("audio_chunk", audio="AAAA")
        result = await client.expect("result")
        assert len(result["audio_data"]) == 128_000
        await client.say("stop")
        assert (await client.expect("stopped"))["session_id"] == "adx_1"
        assert await client.expect_end() == (1000, "")
    assert stage.worker.told_types() == ["prepare", "audio_chunk", "stop"]
    assert stage.worker.queries == [{"session_id": "adx_1", "variant": "audio"}]
