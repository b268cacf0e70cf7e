"""A worker is killed: how soon its client hears of it, and how soon it serves again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from benchmarks.launched import Plan, wait_until
from tests.system.client import DuplexClient
from tests.system.loops import in_loop, new_id
from tests.system.running import LIMIT_S, RunningSystem

pytestmark = pytest.mark.realtime

HEARD_S = 0.5
BACK_S = 3.0  # beyond a start of the whole system


@in_loop
async def test_its_client_hears_of_it_at_once_and_it_serves_again_soon(tmp_path: Path) -> None:
    with RunningSystem(tmp_path / "system", Plan(workers=1)) as system:
        async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('adx')}")) as client:
            await client.say("prepare", system_prompt="Talk.")
            await client.hear("prepared")
            killed_s = time.monotonic()
            os.kill(system.pid("worker_0"), signal.SIGKILL)
            assert (await client.hear("error"))["code"] == "worker_lost"
            heard_s = client.heard[-1].at_s - killed_s
            await client.closed()

        def serves() -> bool:
            try:
                return system.get("/status")["idle_workers"] == 1
            except httpx.HTTPError:
                return False

        wait_until("the worker serves again", serves, LIMIT_S)
        back_s = time.monotonic() - killed_s
        print(f"heard after {heard_s:.2f} s, back after {back_s:.2f} s")
        assert heard_s <= HEARD_S
        assert back_s <= system.start_s + BACK_S
