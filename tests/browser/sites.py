"""The systems that pages are visited on."""

from __future__ import annotations

import asyncio
import base64
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from benchmarks.launched import Plan, wait_until
from tests.browser.media_files import RECORDINGS, speech_16k
from tests.system.client import DuplexClient, in_chunks
from tests.system.loops import new_id
from tests.system.running import RunningSystem, start_command

SLOTS = 4
FAKE_WORKERS = 2
FINISH_LIMIT_S = 60.0
RECORDED_S = 4

# Any: sections of the configuration are JSON.
Sections = dict[str, dict[str, Any]]


def real_site(folder: Path) -> RunningSystem:
    """Return gateway and one worker with the toy checkpoint, several conversations at once."""
    config: Sections = {"service": {"worker_slots": SLOTS}}
    return RunningSystem(
        folder, Plan(workers=1, backend="real", config=config, command=start_command())
    )


def fake_site(
    folder: Path,
    *,
    workers: int = FAKE_WORKERS,
    slots: int = 1,
    delays: str = "",
    config: Sections | None = None,
) -> RunningSystem:
    """Return gateway and workers with the fake backend, started again at once when they die.

    Args:
        folder: of its own.
        workers: how many.
        slots: conversations at once of each.
        delays: of the backend, such as "load=3000 prefill=100 unit=60 piece=600", ms.
        config: sections of the configuration, over these.
    """
    given = config or {}
    service = {"worker_slots": slots} | given.get("service", {})
    plan = Plan(
        workers=workers,
        backend="fake",
        config=given | {"service": service},
        command=(sys.executable, "-m", "tests.system.hasty_launcher"),
        variables={"FAKE_MS": delays} if delays else {},
    )
    return RunningSystem(folder, plan)


async def _talk(system: RunningSystem) -> str:
    frame = (RECORDINGS / "frame_0.png").read_bytes()
    picture = base64.b64encode(frame).decode()
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('omni')}")) as client:
        await client.prepare(prefix_system_prompt="Look and listen.")
        for unit in list(in_chunks(speech_16k(), 1.0))[:RECORDED_S]:
            await client.unit(unit, frame_base64_list=[picture])
        await client.say("stop")
        recording_id: str = (await client.hear("stopped"))["recording_session_id"]
        await client.closed()
    return recording_id


def record_omni(system: RunningSystem) -> str:
    """Hold a short conversation with pictures and return the id of its finished recording."""
    # On a thread of its own: Playwright's loop runs on this one.
    with ThreadPoolExecutor(1) as pool:
        recording_id = pool.submit(lambda: asyncio.run(_talk(system))).result()

    def is_ready() -> bool:
        answer = httpx.get(f"{system.url}/api/sessions/{recording_id}", trust_env=False)
        return answer.status_code == httpx.codes.OK and answer.json()["status"] == "ready"

    wait_until(f"the recording {recording_id} is ready", is_ready, FINISH_LIMIT_S)
    return recording_id
