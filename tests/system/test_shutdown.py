"""Ctrl-C while people talk: who is there may go on for a while, and what was said is kept."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from websockets.exceptions import WebSocketException

from benchmarks.launched import Plan
from tests.system import shapes
from tests.system.client import RATE_HZ, DuplexClient, Samples
from tests.system.loops import in_loop, new_id
from tests.system.running import RunningSystem

DRAIN_S = 2.0  # as `LaunchedSystem` configures it
REFUSED = (OSError, WebSocketException)


@in_loop
async def test_running_sessions_may_go_on_for_a_while_and_are_recorded(
    tmp_path: Path, speech: Samples
) -> None:
    second = speech[:RATE_HZ]
    with RunningSystem(tmp_path, Plan(workers=2)) as system:
        url = system.ws(f"/ws/duplex/{new_id('adx')}")
        async with DuplexClient.connected(url) as client:
            prepared = await client.prepare()
            await client.unit(second)
            stopping = asyncio.create_task(asyncio.to_thread(system.stop))
            began_s = time.monotonic()
            await asyncio.sleep(DRAIN_S / 4)
            answered = await client.unit(second)
            assert answered["step"] == 1
            with pytest.raises(REFUSED):
                async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")):
                    pass
            assert await client.closed() == 1001
            assert time.monotonic() - began_s >= DRAIN_S * 0.9
            assert shapes.offences(client.messages, shapes.DUPLEX) == []
        assert await stopping == 0
        system.assert_nothing_left()
        recording = system.data / "sessions" / prepared["recording_session_id"]
        meta = json.loads((recording / "meta.json").read_text("utf8"))
        assert meta["status"] == "ready"
        timeline = json.loads((recording / "recording.json").read_text("utf8"))
        assert [chunk["index"] for chunk in timeline["chunks"]] == [0, 1]


@in_loop
async def test_who_leaves_early_lets_it_end_early(tmp_path: Path, speech: Samples) -> None:
    with RunningSystem(tmp_path, Plan(config={"service": {"drain_timeout_s": 120}})) as system:
        async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
            await client.prepare()
            stopping = asyncio.create_task(asyncio.to_thread(system.stop))
            began_s = time.monotonic()
            await client.unit(speech[:RATE_HZ])
            await client.say("stop")
            await client.hear("stopped")
            assert await client.closed() == 1000
        assert await stopping == 0
        assert time.monotonic() - began_s < 60
        system.assert_nothing_left()
