"""The systems that pages are visited on."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from websockets.sync.client import connect

from benchmarks.launched import Plan, wait_until
from tests.browser.browsers import INSECURE_HOST
from tests.browser.media_files import question_16k, scene, silence_16k
from tests.fakes.embedded import nano_checkpoint
from tests.system.client import DuplexClient, in_chunks
from tests.system.loops import new_id
from tests.system.running import RunningSystem, start_command

SLOTS = 4
FAKE_WORKERS = 2
FINISH_LIMIT_S = 180.0  # ends a test that hangs
ANSWER_S = 3  # silence after a question, for the answer
MAX_SHARED = 4  # systems with the fake backend at a time; each takes some 300 MB
IDLE_LIMIT_S = 180.0
TAKE_LIMIT_S = 120.0  # ends a test that hangs

# Any: sections of the configuration are JSON.
Sections = dict[str, dict[str, Any]]


def real_site(folder: Path) -> RunningSystem:
    """Return gateway and one worker with the embedded model, several conversations at once."""
    config: Sections = {
        "service": {"worker_slots": SLOTS},
        "model": {"model_path": str(nano_checkpoint())},
        "security": {"allowed_hosts": [INSECURE_HOST]},
        "duplex": {"max_backlog_chunks": 100},  # or a busy machine loses a part of a question
    }
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
    security = {"allowed_hosts": [INSECURE_HOST]} | given.get("security", {})
    plan = Plan(
        workers=workers,
        backend="fake",
        config=given | {"service": service, "security": security},
        command=(sys.executable, "-m", "tests.system.hasty_launcher"),
        variables={"FAKE_MS": delays} if delays else {},
    )
    return RunningSystem(folder, plan)


class SharedSites:
    """Systems with the fake backend, one for each configuration, used by one test after another."""

    def __init__(self, new_folder: Callable[[], Path]) -> None:
        """Start nothing yet.

        Args:
            new_folder: Returns an empty folder for a system.
        """
        self._new_folder = new_folder
        self._open: dict[str, RunningSystem] = {}

    def get(self, **given: Any) -> RunningSystem:
        """Return a system that serves nobody; arguments as of `fake_site`."""
        key = json.dumps({"workers": FAKE_WORKERS, "slots": 1} | given, sort_keys=True)
        system = self._open.pop(key, None)
        if system is not None and not system.processes():  # a test has stopped it
            system.__exit__(None, None, None)
            system = None
        if system is None:
            while len(self._open) >= MAX_SHARED:
                self._open.pop(next(iter(self._open))).__exit__(None, None, None)
            system = fake_site(self._new_folder(), **given).__enter__()
        self._open[key] = system  # the last used stands last
        system.wait_until_idle(IDLE_LIMIT_S)
        return system

    def close(self) -> None:
        """Stop all systems."""
        for system in self._open.values():
            system.__exit__(None, None, None)
        self._open.clear()


@contextmanager
def taken_place(system: RunningSystem) -> Iterator[None]:
    """Hold a place at a worker for the block, with a client that no busy machine can starve."""
    address = system.ws(f"/ws/duplex/{new_id('adx')}")
    with connect(address, open_timeout=None, proxy=None) as socket:
        told = ""
        while told != "prepared":
            told = json.loads(socket.recv(TAKE_LIMIT_S))["type"]
            if told == "queue_done":
                socket.send('{"type": "prepare"}')
        yield
        socket.send('{"type": "stop"}')


async def _talk(system: RunningSystem, questions: Sequence[str]) -> str:
    frame = io.BytesIO()
    scene().save(frame, "PNG")
    picture = base64.b64encode(frame.getvalue()).decode()
    spoken = [sound for name in questions for sound in (question_16k(name), silence_16k(ANSWER_S))]
    async with DuplexClient.connected(system.ws(f"/ws/duplex/{new_id('omni')}")) as client:
        await client.prepare(prefix_system_prompt="Look and listen.")
        for unit in in_chunks(np.concatenate(spoken), 1.0):
            await client.unit(unit, frame_base64_list=[picture])
        await client.say("stop")
        recording_id: str = (await client.hear("stopped"))["recording_session_id"]
        await client.closed()
    return recording_id


def record_omni(system: RunningSystem, questions: Sequence[str] = ("sight",)) -> str:
    """Hold a short conversation with pictures and return the id of its finished recording."""
    # On a thread of its own: Playwright's loop runs on this one.
    with ThreadPoolExecutor(1) as pool:
        recording_id = pool.submit(lambda: asyncio.run(_talk(system, questions))).result()
    wait_until_recorded(system, recording_id)
    return recording_id


def wait_until_recorded(system: RunningSystem, recording_id: str) -> None:
    """Wait until a recording is finished, its replay too."""

    def is_ready() -> bool:
        url = f"{system.url}/api/sessions/{recording_id}"
        answer = httpx.get(url, trust_env=False, verify=False, timeout=None)
        return answer.status_code == httpx.codes.OK and answer.json()["status"] == "ready"

    wait_until(f"the recording {recording_id} is ready", is_ready, FINISH_LIMIT_S)
