"""Stopping from outside, over HTTP, and interrupting from inside, while a reply is being made."""

from __future__ import annotations

import numpy as np
import pytest

from tests.system import shapes
from tests.system.client import (
    RATE_HZ,
    ChatClient,
    DuplexClient,
    HalfDuplexClient,
    Samples,
    StreamingClient,
    to_base64,
)
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

HELLO = [{"role": "user", "content": "Hello."}]
PAUSE = np.zeros(3 * RATE_HZ // 2, np.float32)  # more than the 800 ms that end a turn


async def stop(system: RunningSystem, mode: str, session_id: str) -> None:
    """Ask over HTTP, as a button on another page would."""
    body = {"session_id": session_id}
    answer = await system.call("POST", f"/api/{mode}/stop", json=body)
    assert answer.status_code == 200 and answer.json()["success"] is True, answer.text


@in_loop
async def test_a_streamed_reply_is_stopped_and_its_history_still_hits_the_cache(
    crowd: RunningSystem,
) -> None:
    session_id = new_id("stream")
    async with StreamingClient.connected(crowd.ws(f"/ws/streaming/{session_id}")) as client:
        await client.say("prefill", messages=HELLO)
        await client.hear("prefill_done")
        await client.say("generate")
        await client.hear("chunk")
        await stop(crowd, "streaming", session_id)
        done = await client.hear("done")
        assert done["stopped"] is True and done["text"]
        history = [
            *HELLO,
            {"role": "assistant", "content": done["text"]},
            {"role": "user", "content": "Go on."},
        ]
        await client.turn(history, max_new_tokens=1)
        assert client.all_of("prefill_done")[1]["cache_hit"] is True
    assert shapes.offences(client.messages, shapes.STREAMING) == []


@in_loop
async def test_a_chat_is_stopped_by_its_own_socket(crowd: RunningSystem) -> None:
    async with ChatClient.connected(crowd.ws("/ws/chat")) as client:
        await client.say("chat", messages=HELLO)
        first = await client.hear("chunk")
        await client.say("stop")
        done = await client.hear("done")
        assert done["stopped"] is True and done["text"].startswith(first["text_delta"])
        assert await client.closed() == 1000
    assert shapes.offences(client.messages, shapes.CHAT) == []


@pytest.mark.parametrize("way", ["route", "interrupt"])
@in_loop
async def test_a_half_duplex_reply_is_cut_short_and_the_session_goes_on(
    crowd: RunningSystem, question: Samples, way: str
) -> None:
    session_id = new_id("hdx")
    async with HalfDuplexClient.connected(crowd.ws(f"/ws/half_duplex/{session_id}")) as client:
        await client.prepare()
        for turn_index in range(2):
            await client.send_sound(np.concatenate([PAUSE, question, PAUSE]))
            first = await client.hear("chunk")
            if way == "route":
                await stop(crowd, "half_duplex", session_id)
            else:
                await client.say("interrupt")
            done = await client.hear("turn_done")
            assert done["interrupted"] is True and done["turn_index"] == turn_index
            assert done["text"].startswith(first["text_delta"])
        await client.say("stop")
        await client.hear("stopped")
    assert shapes.offences(client.messages, shapes.HALF_DUPLEX) == []


@in_loop
async def test_a_duplex_session_is_ended_from_outside(
    crowd: RunningSystem, speech: Samples
) -> None:
    session_id = new_id("adx")
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{session_id}")) as client:
        await client.prepare()
        await client.unit(speech[:RATE_HZ])
        await stop(crowd, "duplex", session_id)
        assert (await client.hear("stopped"))["session_id"] == session_id
        assert await client.closed() == 1000


@in_loop
async def test_a_duplex_turn_is_broken_off(crowd: RunningSystem, speech: Samples) -> None:
    second = speech[:RATE_HZ]
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.prepare(config={"force_listen_count": 0})
        assert (await client.unit(second))["is_listen"] is False
        await client.say("interrupt")
        await client.hear("interrupted")
        cut = await client.unit(second)
        assert cut["is_listen"] is True and cut["barge_in"] is True
        again = await client.unit(second)
        assert again["is_listen"] is False and again["turn_id"] == cut["turn_id"] + 1
        await client.say("stop")
        await client.hear("stopped")


@in_loop
async def test_barge_in_by_voice_breaks_the_model_off(
    crowd: RunningSystem, speech: Samples
) -> None:
    silence = np.zeros(RATE_HZ, np.float32)
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{new_id('adx')}")) as client:
        await client.prepare(config={"force_listen_count": 0}, barge_in={"threshold": 0.5})
        assert (await client.unit(silence))["is_listen"] is False
        assert (await client.unit(speech[RATE_HZ : 2 * RATE_HZ]))["barge_in"] is True
        await client.say("stop")
        await client.hear("stopped")


@in_loop
async def test_a_pause_that_lasts_too_long_ends_the_session(
    crowd: RunningSystem, speech: Samples
) -> None:
    session_id = new_id("adx")
    async with DuplexClient.connected(crowd.ws(f"/ws/duplex/{session_id}")) as client:
        await client.prepare()
        await client.say("pause", timeout=1)
        # At once, so that it arrives before the end of the pause on a busy machine too.
        await client.say("audio_chunk", audio=to_base64(speech[:RATE_HZ]))
        assert (await client.hear("paused"))["timeout"] == 1
        assert (await client.hear("warning"))["code"] == "out_of_order"
        timeout = await client.hear("timeout")
        assert timeout["reason"] == "pause" and timeout["session_id"] == session_id
        assert await client.closed() == 1000
    assert shapes.offences(client.messages, shapes.DUPLEX) == []


@pytest.mark.parametrize("mode", ["streaming", "half_duplex", "duplex"])
@in_loop
async def test_stopping_what_is_not_there_says_so(crowd: RunningSystem, mode: str) -> None:
    unknown = await crowd.call("POST", f"/api/{mode}/stop", json={"session_id": "nobody"})
    assert unknown.status_code == 404
    missing = await crowd.call("POST", f"/api/{mode}/stop", json={})
    assert missing.status_code == 422 or missing.json()["success"] is False
