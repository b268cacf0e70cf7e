"""Points for charts: what they count, how many there are, what they need of the relay."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from core.errors import ErrorCode
from core.metrics import GatewayMetrics
from core.schemas.duplex import Result
from gateway_modules.relay.telemetry import POINTS, RelayTelemetry, Trends, quantile
from tests.fakes.pools import ask, make_pool
from tests.fakes.virtual_time import FakeClock, in_virtual_time


@in_virtual_time
async def test_a_sample_has_sessions_queue_units_and_refusals() -> None:
    clock, metrics = FakeClock(), GatewayMetrics(CollectorRegistry())
    pool = make_pool(clock=clock)
    trends = Trends(pool, metrics, clock=lambda: 1_000.0)
    ask(pool, "omni_duplex")
    ask(pool, "chat")
    clock.advance(7)
    for duration_ms in range(1, 101):
        metrics.unit("omni_duplex", duration_ms)
    metrics.error(ErrorCode.QUEUE_FULL)
    metrics.error(ErrorCode.BAD_AUDIO)
    metrics.answered("POST", "/api/chat", 503)
    trends.take()
    trends.take()
    told = trends.history()
    assert told.t == [1_000.0, 1_000.0]
    assert told.series["sessions.omni_duplex"] == [1, 1]
    assert told.series["sessions.chat"] == [0, 0]
    assert told.series["queue.length"] == [1, 1]
    assert told.series["queue.oldest_wait_s"] == [7, 7]
    assert told.series["unit.p50_ms"] == [50, None]
    assert told.series["unit.p99_ms"] == [99, None]
    assert told.series["unit.count"] == [100, 0]
    assert told.series["refused.count"] == [2, 0]
    assert told.series["vram_used_mb.worker_0"] == [None, None]


@in_virtual_time
async def test_one_hour_is_kept() -> None:
    times = iter(range(10_000))
    trends = Trends(make_pool(), GatewayMetrics(CollectorRegistry()), lambda: next(times))
    for _ in range(POINTS + 5):
        trends.take()
    told = trends.history()
    assert len(told.t) == POINTS and told.t[0] == 5
    assert {len(column) for column in told.series.values()} == {POINTS}


@in_virtual_time
async def test_samples_are_taken_until_the_task_is_cancelled() -> None:
    trends = Trends(make_pool(), GatewayMetrics(CollectorRegistry()), lambda: 0.0, period_s=10)
    task = asyncio.create_task(trends.run())
    await asyncio.sleep(35)
    assert len(trends.history().t) == 3
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_a_sample_that_fails_is_logged_and_the_next_one_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    trends = Trends(make_pool(), metrics, lambda: 0.0, period_s=10)
    task = asyncio.create_task(trends.run())
    with monkeypatch.context() as patch, capture_logs() as logged:
        patch.setattr(metrics, "take_units", Mock(side_effect=RuntimeError("broken")))
        await asyncio.sleep(15)
    assert [entry["log_level"] for entry in logged] == ["error"]
    await asyncio.sleep(10)
    assert len(trends.history().t) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([3.0], 0.99, 3.0), ([1, 2, 3, 4], 0.5, 2), ([4, 3, 2, 1], 0.99, 4)],
)
def test_the_nearest_rank_is_taken(
    values: list[float], share: float, expected: float | None
) -> None:
    assert quantile(values, share) == expected


@in_virtual_time
async def test_unit_times_are_read_from_the_end_of_results() -> None:
    metrics = GatewayMetrics(CollectorRegistry())
    notes = RelayTelemetry(metrics, "omni_duplex")
    listening = Result(is_listen=True, wall_clock_ms=87.25)
    speaking = Result(is_listen=False, audio_data="A" * 130_000, wall_clock_ms=412.5)
    for message in (listening, speaking):
        notes.passed_down(message.to_json())
    notes.passed_down('{"type":"paused","timeout":60}')
    assert metrics.take_units() == [87.25, 412.5]
    assert metrics.take_units() == []
