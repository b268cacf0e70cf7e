"""Every phase of every protocol, and everything that can go wrong in it, on real processes.

However a session ends: it is told once, its worker is idle again soon, nothing of it is left, and
a session on another worker never notices.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from benchmarks.launched import wait_until
from tests.pairing import by_default, taking_turns
from tests.system import scenes, shapes
from tests.system.bystander import Bystander
from tests.system.client import RATE_HZ, Client, HalfDuplexClient, Samples
from tests.system.conftest import LARGEST_BYTES
from tests.system.loops import in_loop
from tests.system.quiet import WORKERS, is_empty, nobody_free, stalled, wait_until_quiet
from tests.system.running import LIMIT_S, RunningSystem
from tests.system.scenes import SCENES, WAITING, Protocol, Scene

KEPT_SOCKETS = WORKERS  # connections that health checks keep; fewer than there are scenes
STALL_S = 1.0  # less than a heartbeat
THREADS_MAX = 20  # of any program; sessions take none of their own
TURNS_PREFIX = "/stm_"  # recordings of turns: they stay open, and locked, for the next turn
LAST_WORDS = ("stopped", "timeout", "error")
MIB = 1024 * 1024
TOO_BIG, MUCH_TOO_BIG = LARGEST_BYTES + 1, 9 * MIB
SILENT_CODES = (None, 1006, 1011)  # how a client that fell silent may find its socket


@pytest.fixture(scope="module")
def bystander(crowd: RunningSystem, speech: Samples) -> Iterator[Bystander]:
    with Bystander(crowd, speech[:RATE_HZ]) as talking:
        yield talking
    talking.check()


Fault = Callable[[Scene, HalfDuplexClient], Awaitable[None]]


def check_end(scene: Scene, client: Client) -> None:
    """One last word at most, nothing after it, and every message as the protocol says."""
    assert shapes.offences(client.messages, scene.protocol.shapes) == []
    ends = [index for index, kind in enumerate(client.kinds) if kind in LAST_WORDS]
    assert ends in ([], [len(client.kinds) - 1])


def case_name(value: Scene | str) -> str:
    return value if isinstance(value, str) else value.name


async def _stop(scene: Scene, client: Client) -> None:
    await client.say("stop")
    if not scene.protocol.has_turns:
        await client.hear("stopped")
        assert await client.closed() == 1000
    elif scene.phase == "open":
        assert (await client.hear("warning"))["code"] == "out_of_order"
        assert client.is_open
    else:
        assert (await client.hear("done"))["stopped"] is True
        assert client.kinds.count("done") == 1
    check_end(scene, client)


async def _disconnect(scene: Scene, client: Client) -> None:
    client.vanish()


async def _say_something_unknown(scene: Scene, client: Client) -> None:
    await client.say("sing")
    assert (await client.hear("warning"))["code"] == "unknown_type"
    await _stop(scene, client)


def _say(message: str | bytes, code: str, close_code: int) -> Fault:
    async def say(scene: Scene, client: Client) -> None:
        await client.say_text(message)
        assert await client.closed() == close_code
        check_end(scene, client)
        # What is too big for the socket itself is refused before an error could be sent.
        if client.kinds and client.kinds[-1] == "error":
            assert client.messages[-1]["code"] == code
        else:
            assert len(message) == MUCH_TOO_BIG

    return say


FAULTS: dict[str, Fault] = {
    "stop": _stop,
    "disconnect": _disconnect,
    "bad": _say('{"type": "stop"', "bad_json", 1007),
    "unknown": _say_something_unknown,
    "binary": _say(b'{"type": "stop"}', "bad_json", 1003),
    "oversize": _say("x" * TOO_BIG, "too_big", 1009),
    "huge": _say("x" * MUCH_TOO_BIG, "too_big", 1009),
}


# --- what a client does ---


AT_THE_GATEWAY = {"binary", "oversize", "huge"}
"""Refused before a worker sees them, whatever it does: each phase has its turn, and no product."""
CASES = [
    case
    for case in taking_turns(SCENES, list(FAULTS))
    if not (case.marks and case.values[1] in AT_THE_GATEWAY)
]


@pytest.mark.parametrize(("scene", "fault"), CASES, ids=case_name)
@in_loop
async def test_a_session_ends_once_and_nothing_of_it_is_left(
    crowd: RunningSystem, bystander: Bystander, speech: Samples, scene: Scene, fault: str
) -> None:
    async with scene.reached(crowd, speech) as client:
        await FAULTS[fault](scene, client)
    wait_until_quiet(crowd)
    bystander.check()


# --- what takes longer: all phases of a protocol at once ---


PROTOCOLS = (scenes.STREAMING, scenes.CHAT, scenes.HALF_DUPLEX, scenes.DUPLEX)


def scenes_of(protocol: Protocol, *, served: bool) -> list[Scene]:
    """Return the phases of a protocol, perhaps only those with a worker."""
    found = [scene for scene in SCENES if scene.protocol is protocol]
    return [scene for scene in found if scene.is_served or not served]


@pytest.mark.parametrize(
    "protocol", by_default([scenes.STREAMING], PROTOCOLS), ids=lambda protocol: protocol.name
)
@in_loop
async def test_half_open_socket(
    crowd: RunningSystem, bystander: Bystander, speech: Samples, protocol: Protocol
) -> None:
    async with AsyncExitStack() as stack:
        clients = await _reach_all(crowd, speech, scenes_of(protocol, served=False), stack)
        for client in clients:
            client.fall_silent()
        await asyncio.to_thread(wait_until_quiet, crowd)
        for client in clients:
            client.wake_up()
            code = await client.closed()
            # A short reply may be over before the silence is noticed.
            assert code in SILENT_CODES or (code, client.kinds[-1]) == (1000, "done")
            assert len([kind for kind in client.kinds if kind in LAST_WORDS]) <= 1
    bystander.check()


Reached = list[tuple[Scene, HalfDuplexClient]]


@asynccontextmanager
async def all_reached(
    system: RunningSystem, bystander: Bystander, speech: Samples, protocol: Protocol
) -> AsyncIterator[Reached]:
    """Have a client in each phase with a worker; all is quiet at the end."""
    async with AsyncExitStack() as stack:
        reached = scenes_of(protocol, served=True)
        clients = await _reach_all(system, speech, reached, stack)
        yield list(zip(reached, clients, strict=True))
    await asyncio.to_thread(wait_until_quiet, system)
    bystander.check()


@pytest.mark.parametrize(
    "protocol", by_default([scenes.HALF_DUPLEX], PROTOCOLS), ids=lambda protocol: protocol.name
)
@in_loop
async def test_worker_killed(
    crowd: RunningSystem, bystander: Bystander, speech: Samples, protocol: Protocol
) -> None:
    async with all_reached(crowd, bystander, speech, protocol) as reached:
        for pid in _workers_of(crowd, [client for _, client in reached]):
            os.kill(pid, signal.SIGKILL)
        for scene, client in reached:
            await _worker_is_lost(scene, client)


@pytest.mark.parametrize(
    "protocol", by_default([scenes.DUPLEX], PROTOCOLS), ids=lambda protocol: protocol.name
)
@in_loop
async def test_worker_stalled(
    crowd: RunningSystem, bystander: Bystander, speech: Samples, protocol: Protocol
) -> None:
    async with all_reached(crowd, bystander, speech, protocol) as reached:
        with stalled(_workers_of(crowd, [client for _, client in reached])):
            for scene, client in reached:
                await _worker_is_lost(scene, client)


@pytest.mark.parametrize(
    "protocol", by_default([scenes.DUPLEX], PROTOCOLS), ids=lambda protocol: protocol.name
)
@in_loop
async def test_gateway_stalled(
    crowd: RunningSystem, bystander: Bystander, speech: Samples, protocol: Protocol
) -> None:
    """What is sent while the gateway stands still is carried out when it goes on."""
    async with all_reached(crowd, bystander, speech, protocol) as reached:
        with stalled([crowd.pid("gateway")]):
            stops = [asyncio.create_task(_stop(scene, client)) for scene, client in reached]
            await asyncio.sleep(STALL_S)
        await asyncio.gather(*stops)


async def _reach_all(
    system: RunningSystem, speech: Samples, reached: Sequence[Scene], stack: AsyncExitStack
) -> list[HalfDuplexClient]:
    return [await stack.enter_async_context(scene.reached(system, speech)) for scene in reached]


def _workers_of(system: RunningSystem, clients: Sequence[Client]) -> list[int]:
    names = [client.all_of("queue_done")[0]["worker_id"] for client in clients]
    assert len(set(names)) == len(clients), "each has a worker of its own"
    return [system.pid(name) for name in names]


async def _worker_is_lost(scene: Scene, client: Client) -> None:
    error = await client.hear("error")
    assert error["code"] in ("worker_lost", "worker_unreachable")
    assert await client.closed() == 1011
    check_end(scene, client)


# --- waiting in the queue ---


@pytest.mark.parametrize(
    ("scene", "fault"),
    taking_turns(WAITING, ["stop", "disconnect", "bad", "oversize"]),
    ids=case_name,
)
@in_loop
async def test_fault_while_waiting(
    crowd: RunningSystem, bystander: Bystander, speech: Samples, scene: Scene, fault: str
) -> None:
    async with nobody_free(crowd), scene.reached(crowd, speech) as client:
        assert crowd.get("/status")["queue_length"] == 1
        if fault == "stop":
            await _stop(scene, client)
        elif fault == "disconnect":
            client.vanish()
        else:
            await client.say_text("{" if fault == "bad" else "x" * TOO_BIG)
            assert await client.closed() == (1007 if fault == "bad" else 1009)
            assert client.kinds[-1] == "error"
        await asyncio.to_thread(wait_until, "nobody waits", lambda: is_empty(crowd), LIMIT_S)
    wait_until_quiet(crowd)
    bystander.check()


@pytest.mark.matrix
@in_loop
async def test_who_falls_silent_while_waiting_loses_the_place(
    crowd: RunningSystem, bystander: Bystander, speech: Samples
) -> None:
    async with nobody_free(crowd), AsyncExitStack() as stack:
        for client in await _reach_all(crowd, speech, WAITING, stack):
            client.fall_silent()
        assert crowd.get("/status")["queue_length"] == len(WAITING)
        await asyncio.to_thread(wait_until, "nobody waits", lambda: is_empty(crowd), LIMIT_S)
    wait_until_quiet(crowd)
    bystander.check()


@in_loop
async def test_who_waits_is_served_when_a_killed_worker_is_back(
    crowd: RunningSystem, bystander: Bystander, speech: Samples
) -> None:
    async with AsyncExitStack() as stack:
        holders = [scene for scene in SCENES if scene.name == "duplex-active"] * (WORKERS - 1)
        holding = await _reach_all(crowd, speech, holders, stack)
        (waiting,) = await _reach_all(crowd, speech, WAITING[-1:], stack)
        os.kill(_workers_of(crowd, holding)[0], signal.SIGKILL)
        await _worker_is_lost(holders[0], holding[0])
        done = await waiting.hear("queue_done")
        assert done["worker_id"] == holding[0].all_of("queue_done")[0]["worker_id"]
        for client in (*holding[1:], waiting):
            await client.say("stop")
            await client.hear("stopped")
    wait_until_quiet(crowd)
    bystander.check()


# --- nothing is left ---


@in_loop
async def test_ended_sessions_leave_no_descriptor_thread_or_file(
    crowd: RunningSystem, bystander: Bystander, speech: Samples
) -> None:
    async def break_everything() -> None:
        for index, scene in enumerate(SCENES):
            async with scene.reached(crowd, speech) as client:
                if index % 2:
                    await client.say_text("{")
                    await client.closed()
                client.vanish()
        await asyncio.to_thread(wait_until_quiet, crowd)

    await break_everything()
    before = crowd.holdings()
    await break_everything()

    def grown() -> list[str]:
        after = crowd.holdings()
        return [
            f"{name}: {before[name]} became {now}"
            for name, now in after.items()
            if now.sockets > before[name].sockets + KEPT_SOCKETS
            or {path for path in now.files if TURNS_PREFIX not in path} - set(before[name].files)
            or now.threads > THREADS_MAX
        ]

    try:
        await asyncio.to_thread(wait_until, "no more is held", lambda: not grown(), LIMIT_S)
    finally:
        assert grown() == []
    sessions = [line for line in crowd.metrics("gateway") if "omni_gateway_sessions{" in line]
    assert sum(float(line.rpartition(" ")[2]) for line in sessions) == 1, sessions
    bystander.check()


def test_every_recording_was_closed(crowd: RunningSystem, bystander: Bystander) -> None:
    """The last test of this file: however sessions ended, their recordings can be read."""
    sessions = crowd.data / "sessions"

    def still_open() -> list[str]:
        metas = [json.loads(path.read_text("utf8")) for path in sessions.glob("*/meta.json")]
        assert metas
        return [meta["session_id"] for meta in metas if meta["status"] == "recording"]

    def are_closed() -> bool:
        # A conversation in turns stays open for its next turn; the bystander still talks.
        return len([name for name in still_open() if not f"/{name}".startswith(TURNS_PREFIX)]) == 1

    wait_until("every recording is closed but the bystander's", are_closed, LIMIT_S)

    def nothing_is_left_over() -> bool:
        writing = set(still_open())  # these may be renaming a file at any moment
        return all(path.parent.name in writing for path in sessions.rglob("*.tmp"))

    # One that was closed just now is still being made ready to play.
    wait_until("no unfinished file is left", nothing_is_left_over, LIMIT_S)
