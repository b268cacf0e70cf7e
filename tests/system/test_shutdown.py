"""Ctrl-C while people talk: who is there may go on for a while, and what was said is kept."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from benchmarks.launched import Plan
from tests.system import shapes
from tests.system.client import RATE_HZ, DuplexClient, Samples
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

REFUSED = (OSError, WebSocketException)


async def refused(system: RunningSystem) -> None:
    """Come back as soon as no new session is taken."""
    with pytest.raises(REFUSED):
        while True:
            url = system.ws(f"/ws/duplex/{new_id('adx')}")
            async with DuplexClient.connected(url) as client:
                client.vanish()


@in_loop
async def test_a_running_session_may_go_on_and_when_it_ends_all_ends(
    tmp_path: Path, speech: Samples
) -> None:
    second = speech[:RATE_HZ]
    with RunningSystem(tmp_path, Plan(config={"service": {"drain_timeout_s": 600}})) as system:
        async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
            await client.prepare()
            await client.unit(second)
            stopping = asyncio.create_task(asyncio.to_thread(system.stop))
            await refused(system)
            assert (await client.unit(second))["step"] == 1
            await client.say("stop")
            await client.hear("stopped")
            assert await client.closed() == 1000
        assert await stopping == 0
        system.assert_nothing_left()


@in_loop
async def test_a_session_that_goes_on_is_ended_and_was_recorded(
    tmp_path: Path, speech: Samples
) -> None:
    with RunningSystem(tmp_path, Plan(config={"service": {"drain_timeout_s": 0.1}})) as system:
        async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
            prepared = await client.prepare()
            await client.unit(speech[:RATE_HZ])
            stopping = asyncio.create_task(asyncio.to_thread(system.stop))
            assert await client.closed() == 1001
            assert shapes.offences(client.messages, shapes.DUPLEX) == []
        assert await stopping == 0
        system.assert_nothing_left()
        recording = system.data / "sessions" / prepared["recording_session_id"]
        meta = json.loads((recording / "meta.json").read_text("utf8"))
        assert meta["status"] == "ready"
        timeline = json.loads((recording / "recording.json").read_text("utf8"))
        assert [chunk["index"] for chunk in timeline["chunks"]] == [0]
