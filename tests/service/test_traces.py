"""Traces of calls, from the gateway and a worker to a collector."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from core.serving.fake_backend import FakeBackend, FakeTimes
from tests.fakes.collector import collecting
from tests.fakes.gateway_stage import HOST, HURRY, Stage, settings_for
from tests.service.callers import Caller, duplex_unit, prepare
from tests.service.workers import running_worker

SESSION = "adx_traced"
UNITS = 5  # the fake listens at first, then speaks
FAKE = FakeTimes(unit_ms=5)
PARTS = ["queue", "encode", "prefill", "generate", "speech", "send"]


def talk(folder: Path, endpoint: str) -> list[str]:
    """Hold a duplex call through a gateway and a worker that trace; return what was said."""

    async def call(port: int) -> list[str]:
        own = settings_for(folder / "gateway", telemetry={"endpoint": endpoint})
        stage = Stage(own, 0, HURRY, [f"{HOST}:{port}"])
        await stage.start()
        try:
            caller = Caller(stage, f"/ws/duplex/{SESSION}")
            await caller.open()
            await prepare(caller)
            for _ in range(UNITS):
                await duplex_unit(caller)
            await caller.say("stop")
            await caller.hear("stopped")
            assert await caller.end() == 1000
            await stage.check_quiet()
            return [result["text"] for result in caller.of("result")]
        finally:
            await stage.stop()

    settings = settings_for(folder / "worker", telemetry={"endpoint": endpoint})
    with running_worker(settings, lambda: FakeBackend(FAKE)) as worker:
        return asyncio.run(call(worker.port))


def test_a_call_is_one_trace_of_the_gateway_and_the_worker(tmp_path: Path) -> None:
    with collecting() as collector:
        said = talk(tmp_path, collector.endpoint)
    assert collector.services == {"minicpmo-live-gateway", "minicpmo-live-worker"}
    trace_id = hashlib.sha256(SESSION.encode()).digest()[:16]
    assert {span.trace_id for span in collector.spans} == {trace_id}
    [call] = collector.named("call")
    assert not call.parent_span_id
    assert sorted(collector.parts(call)) == ["queue", "relay", "session"]
    [session] = collector.named("session")
    units = collector.named("unit")
    assert collector.parts(session) == ["unit"] * UNITS
    assert call.start_time_unix_nano <= session.start_time_unix_nano
    for unit in units:
        assert collector.parts(unit) == PARTS
        below = [span for span in collector.spans if span.parent_span_id == unit.span_id]
        ends = [unit.start_time_unix_nano, *(span.end_time_unix_nano for span in below)]
        assert [span.start_time_unix_nano for span in below] == ends[:-1]
        assert ends[-1] == unit.end_time_unix_nano
    assert any(said)
    for secret in (SESSION, *filter(None, said)):
        assert all(secret.encode() not in body for body in collector.bodies)


def test_a_collector_that_is_away_changes_nothing(tmp_path: Path) -> None:
    with collecting() as collector:
        there = talk(tmp_path / "there", collector.endpoint)
    away = talk(tmp_path / "away", collector.endpoint)
    assert away == there
