"""Every ending in every phase of every protocol leaves an idle worker.

Exactly one last message or close code, and no leaked task, thread or descriptor.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from core.schemas.limits import MIB
from core.serving.fake_backend import FakeBackend, FakeTimes
from core.serving.runtime import SHORT_CALL_THREADS, SPARE_THREADS
from core.serving.server import SOCKET_LIMIT_BYTES
from tests.pairing import by_default, taking_turns
from tests.service.workers import (
    SILENCE,
    Client,
    DeadClient,
    Message,
    RunningWorker,
    Talk,
    eventually,
    open_files,
    running_worker,
    settings_for,
    spoken,
)
from tests.system.loops import in_loop

USER = {"role": "user", "content": "Hello"}
WORK_BEGINS_S = 0.02  # if it has not begun by then, the test is still right
LONG_MS = 60_000.0  # work that never ends by itself
HEARTBEAT_S = 0.3  # where every client is dead; one that lives may answer later on a busy machine
OWN_THREADS = 3  # of a worker: its loop, its engine, and what answers over HTTP
BENCHES = 2  # this file starts that many workers in this process
LIMITS: dict[str, float] = {
    "chat_message_bytes": 200_000,
    "prepare_bytes": 300_000,
    "live_message_bytes": 150_000,
}
LAST_WORDS = ("stopped", "timeout", "error", "done")


@dataclass(frozen=True)
class Phase:
    """How a client gets a session into a phase.

    Attributes:
        kind: protocol.
        times: delays that keep it there.
        steps: what the client says, and the message it then waits for; None: for work to begin.
        answer_to_stop: last message after `stop`; None: there is none, or only a warning.
    """

    kind: str
    times: FakeTimes
    steps: tuple[tuple[Message, str | None], ...]
    answer_to_stop: str | None = "stopped"


PREFILL = {"type": "prefill", "messages": [USER], "clear_kv_cache": True}
GENERATE = {"type": "generate"}
PREPARE = {"type": "prepare"}
EAGER = {"type": "prepare", "config": {"force_listen_count": 0}}
CHUNK = {"type": "audio_chunk", "audio": SILENCE}
ASK = {"messages": [USER]}
QUICK = FakeTimes(prefill_ms=1, unit_ms=1, finalize_ms=1, piece_ms=1)
SLOW_PREFILL = FakeTimes(prefill_ms=LONG_MS)
SLOW_PIECES = FakeTimes(prefill_ms=1, piece_ms=LONG_MS)
SLOW_UNIT = FakeTimes(prefill_ms=1, unit_ms=LONG_MS)
SLOW_FINALIZE = FakeTimes(prefill_ms=1, unit_ms=1, finalize_ms=LONG_MS)
FED = (PREFILL, "prefill_done")
PREPARED = (PREPARE, "prepared")
IMPATIENT = {"type": "prepare", "config": {"vad": {"min_silence_duration_ms": 100}}}
SPOKEN = (
    (IMPATIENT, "prepared"),
    (CHUNK, None),
    ({"type": "audio_chunk", "audio": spoken(1)}, None),
    (CHUNK, "generating"),
)

PHASES = {
    "streaming open": Phase("streaming", QUICK, (), None),
    "streaming prefilling": Phase("streaming", SLOW_PREFILL, ((PREFILL, None),), "done"),
    "streaming ready": Phase("streaming", QUICK, (FED,), "done"),
    "streaming generating": Phase("streaming", SLOW_PIECES, (FED, (GENERATE, None)), "done"),
    "half_duplex waiting": Phase("half_duplex", QUICK, ()),
    "half_duplex preparing": Phase("half_duplex", SLOW_PREFILL, ((PREPARE, None),)),
    "half_duplex listening": Phase("half_duplex", QUICK, (PREPARED, (CHUNK, None))),
    "half_duplex generating": Phase("half_duplex", SLOW_PIECES, SPOKEN),
    "duplex waiting": Phase("duplex", QUICK, ()),
    "duplex preparing": Phase("duplex", SLOW_PREFILL, ((PREPARE, None),)),
    "duplex active": Phase("duplex", QUICK, (PREPARED, (CHUNK, "result"))),
    "duplex stepping": Phase("duplex", SLOW_UNIT, (PREPARED, (CHUNK, None), (CHUNK, None))),
    "duplex finalizing": Phase("duplex", SLOW_FINALIZE, ((EAGER, "prepared"), (CHUNK, "result"))),
    "duplex paused": Phase("duplex", QUICK, (PREPARED, ({"type": "pause"}, "paused"))),
    "chat waiting": Phase("chat", QUICK, (), None),
    "chat prefilling": Phase("chat", SLOW_PREFILL, ((ASK, None),), "done"),
    "chat generating": Phase("chat", SLOW_PIECES, ((ASK, "prefill_done"),), "done"),
}


@dataclass(frozen=True)
class Bench:
    """A worker with adjustable delays."""

    worker: RunningWorker
    backend: FakeBackend
    earlier: frozenset[threading.Thread]
    """What other tests of this process may have left."""

    @property
    def threads(self) -> int:
        return len(set(threading.enumerate()) - self.earlier)


def running_bench(data: Path, **limits: float) -> Iterator[Bench]:
    backend = FakeBackend()
    settings = settings_for(data, limits=LIMITS | limits, recording={"enabled": False})
    earlier = frozenset(threading.enumerate())
    with running_worker(settings, lambda: backend) as running:
        yield Bench(running, backend, earlier)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One worker for all tests, which restore its state."""
    yield from running_bench(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def impatient_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A worker with a short timeout for clients that answer no ping."""
    yield from running_bench(tmp_path_factory.mktemp("data"), heartbeat_s=HEARTBEAT_S)


@pytest.fixture(autouse=True)
def nothing_stays_behind(bench: Bench) -> Iterator[None]:
    tasks, files = bench.worker.tasks(), open_files()
    yield
    eventually("all tasks have ended", lambda: bench.worker.tasks() <= tasks)
    eventually("all files are closed", lambda: open_files() <= files)
    slots = bench.worker.runtime.slots.count
    assert bench.threads <= BENCHES * (OWN_THREADS + slots + SPARE_THREADS + SHORT_CALL_THREADS)
    assert not bench.worker.sessions._live and len(bench.worker.runtime.slots.owners) == 0


async def reach(bench: Bench, phase: Phase, talk: Talk) -> None:
    bench.backend.times = phase.times
    for message, answer in phase.steps:
        await talk.socket.send(json.dumps(message))
        if answer is not None:
            await talk.hear_until(answer)
        else:
            await asyncio.sleep(WORK_BEGINS_S)


Way = Callable[[Phase, Talk], Awaitable[None]]


def run(bench: Bench, phase: Phase, leave: Way) -> list[Message]:
    """Bring a session into a phase, leave it, and wait until the worker is idle."""
    heard: list[Message] = []

    async def scenario() -> None:
        client = Client(bench.worker.port)
        async with client.talk(phase.kind) as talk:
            await reach(bench, phase, talk)
            before = len(talk.heard)
            await leave(phase, talk)
            heard.extend(talk.heard[before:])
            heard.append({"type": "closed", "code": talk.close_code})
        await client.idle()

    asyncio.run(scenario())
    last_words = [message for message in heard if message["type"] in LAST_WORDS]
    assert len(last_words) <= 1, heard
    return heard


def words(heard: list[Message]) -> list[str]:
    """Types, without pieces of replies and warnings."""
    return [each["type"] for each in heard if each["type"] not in ("chunk", "warning")]


async def _stop(phase: Phase, talk: Talk) -> None:
    await talk.say("stop")
    if phase.kind == "streaming":
        await talk.hear_until(phase.answer_to_stop or "warning")
        await talk.say("close")
    await talk.hear_all()


async def _disconnect(phase: Phase, talk: Talk) -> None:
    talk.socket.transport.abort()


async def _close(phase: Phase, talk: Talk) -> None:
    await talk.socket.close(1000)


async def _say_what_is_unknown(phase: Phase, talk: Talk) -> None:
    await talk.say("no_such_thing")
    await talk.say("heartbeat", ballast=1)
    warning = (await talk.hear_until("warning"))[-1]
    assert warning["code"] == "unknown_type"
    talk.socket.transport.abort()


BAD: dict[str, tuple[str | bytes, str, int]] = {
    "no json": ("{", "bad_json", 1007),
    "binary": (b"\x00\x01", "bad_json", 1003),
    "oversize": (json.dumps({"type": "heartbeat", "ballast": "x" * 310_000}), "too_big", 1009),
}


def _say(message: str | bytes) -> Way:
    async def say(phase: Phase, talk: Talk) -> None:
        await talk.socket.send(message)
        await talk.hear_all()

    return say


WAYS: dict[str, Way] = {
    "stop": _stop,
    "disconnect": _disconnect,
    "no json": _say("{"),
    "close": _close,
    "unknown": _say_what_is_unknown,
    "oversize": _say(BAD["oversize"][0]),
    "binary": _say(BAD["binary"][0]),
}


@pytest.mark.parametrize(("name", "way"), taking_turns(list(PHASES), list(WAYS), rounds=2))
def test_every_phase_ends_once(bench: Bench, name: str, way: str) -> None:
    phase = PHASES[name]
    heard = run(bench, phase, WAYS[way])
    if way == "stop":
        expected = [phase.answer_to_stop] if phase.answer_to_stop else []
        assert words(heard) == [*expected, "closed"]
        assert heard[-1]["code"] == 1000
        assert all(message["stopped"] for message in heard if message["type"] == "done")
    elif way in BAD:
        _, code, close_code = BAD[way]
        assert words(heard) == ["error", "closed"]
        error = next(message for message in heard if message["type"] == "error")
        assert error["code"] == code and error["fatal"] and error["error"] == error["message"]
        assert heard[-1]["code"] == close_code


@pytest.mark.parametrize("name", by_default(["duplex active"], list(PHASES)))
@in_loop
async def test_half_open(impatient_bench: Bench, name: str) -> None:
    """The client disappears without closing, and answers no ping."""
    bench, phase = impatient_bench, PHASES[name]
    bench.backend.times = phase.times
    dead = await DeadClient.open(bench.worker.port, f"/ws/{phase.kind}?session_id=dead")
    for message, _ in phase.steps:
        await dead.say(message)
        await asyncio.sleep(WORK_BEGINS_S)
    frames = await dead.wait_closed()
    assert b'"type":"error"' not in frames, "it was let go for something else"
    await Client(bench.worker.port).idle()


def test_invalid_audio_ends_a_session_with_its_code(bench: Bench) -> None:
    async def leave(phase: Phase, talk: Talk) -> None:
        await talk.say("audio_chunk", audio="AAAA")
        await talk.hear_all()

    heard = run(bench, PHASES["duplex active"], leave)
    assert words(heard) == ["error", "closed"]
    assert heard[0]["code"] == "bad_audio" and heard[-1]["code"] == 1007


def test_a_message_beyond_the_socket_limit_is_not_read(bench: Bench) -> None:
    async def leave(phase: Phase, talk: Talk) -> None:
        with suppress(ConnectionClosed):
            # In fragments, so that this client goes on answering pings while it sends; the one that
            # exceeds the limit is short, since what the server leaves unread would reset the
            # connection before its close frame arrives.
            await talk.socket.send([*["x" * MIB] * (SOCKET_LIMIT_BYTES // MIB), "x"])
        await talk.hear_all()

    heard = run(bench, PHASES["duplex active"], leave)
    assert words(heard) == ["closed"] and heard[-1]["code"] == 1009


def test_audio_during_a_pause_is_dropped_with_one_warning(bench: Bench) -> None:
    async def leave(phase: Phase, talk: Talk) -> None:
        for message in (CHUNK, CHUNK):
            await talk.socket.send(json.dumps(message))
        warning = await talk.hear()
        assert warning["type"] == "warning"
        assert (await talk.ask("resume"))["type"] == "resumed"
        await talk.socket.send(json.dumps(CHUNK))
        assert (await talk.hear())["type"] == "result"
        await talk.stop()

    assert words(run(bench, PHASES["duplex paused"], leave))[-2:] == ["stopped", "closed"]


@in_loop
async def test_the_same_id_twice_is_refused_while_the_first_lives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.serving.session_server.CLAIM_WAIT_S", 0.05)
    client = Client(bench.worker.port)
    bench.backend.times = QUICK
    async with client.talk("streaming", "twin") as first:
        async with client.talk("streaming", "twin") as second:
            [error] = await second.hear_all()
            assert error["code"] == "session_in_use" and second.close_code == 1008
        await first.say("close")
        await first.hear_all()
    await client.idle()
    async with client.talk("streaming", "twin") as again:
        await again.say("close")
        assert await again.hear_all() == []


@in_loop
async def test_ids_are_checked(bench: Bench) -> None:
    for bad in ("a" * 65, "a%20b", "a.b", "%2E%2E"):
        async with Client(bench.worker.port).talk("duplex", bad) as talk:
            [error] = await talk.hear_all()
            assert error["code"] == "invalid_session_id" and talk.close_code == 1008
