"""What the programs count, under names that dashboards can rely on."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from core.errors import AudioError, ErrorCode
from core.metrics import GatewayMetrics, WorkerMetrics, new_registry
from core.protocols.effects import Generate, Prefill, Send
from core.protocols.events import (
    ChunkReady,
    Disconnected,
    GenerateDone,
    Opened,
    PrefillDone,
    Received,
    TurnFailed,
)
from core.schemas import streaming
from core.schemas.chat import ChatSocketRequest
from core.schemas.common import Message, Role, TokenStats
from core.schemas.queue import ErrorMessage
from core.schemas.worker import WorkerStatus
from core.serving.capacity import Capacity, MetricsObserver


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=True)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


# Names without the endings Prometheus adds to counters and histograms.
GATEWAY_METRICS = (
    "queue_length queue_wait_seconds workers doors sessions session_seconds bytes errors requests "
    "unit_seconds"
)
WORKER_METRICS = (
    "info model_loaded sessions session_seconds received_bytes problems unit_stage_seconds "
    "late_units kv_tokens first_chunk_seconds turn_seconds generated_tokens capacity "
    "window_tokens engine_seconds recordings_unsealed recordings_unsealed_bytes "
    "recordings_unsealed_age_seconds"
)


@pytest.mark.parametrize(
    ("kind", "prefix", "names"),
    [
        (GatewayMetrics, "omni_gateway_", GATEWAY_METRICS),
        (WorkerMetrics, "omni_worker_", WORKER_METRICS),
    ],
)
def test_the_listed_names_are_those_registered(
    registry: CollectorRegistry, kind: type, prefix: str, names: str
) -> None:
    kind(registry)
    assert [family.name for family in registry.collect()] == [prefix + n for n in names.split()]
    assert all(family.documentation.endswith(".") for family in registry.collect())


def test_two_programs_in_one_process_count_apart() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    one, _ = GatewayMetrics(first), GatewayMetrics(second)
    one.queue.set(3)
    assert value(first, "omni_gateway_queue_length") == 3
    assert value(second, "omni_gateway_queue_length") == 0


def test_gateway(registry: CollectorRegistry) -> None:
    metrics = GatewayMetrics(registry)
    metrics.waited("chat", 1.5, "assigned")
    metrics.workers_are([WorkerStatus.IDLE, WorkerStatus.IDLE, WorkerStatus.LOADING])
    metrics.session_opened("chat")
    metrics.session_opened("chat")
    metrics.session_closed("chat", 12.0)
    metrics.relayed("chat", up_bytes=85_000)
    metrics.relayed("chat", down_bytes=128_000)
    metrics.error(ErrorCode.QUEUE_FULL)
    metrics.answered("GET", "/api/sessions/{sid}", 404)

    wait = {"mode": "chat", "outcome": "assigned"}
    assert value(registry, "omni_gateway_queue_wait_seconds_sum", **wait) == 1.5
    assert value(registry, "omni_gateway_queue_wait_seconds_bucket", **wait, le="1.0") == 0
    assert value(registry, "omni_gateway_queue_wait_seconds_bucket", **wait, le="2.0") == 1
    assert value(registry, "omni_gateway_workers", status="idle") == 2
    metrics.workers_are([])
    assert value(registry, "omni_gateway_workers", status="idle") == 0
    assert value(registry, "omni_gateway_sessions", mode="chat") == 1
    assert value(registry, "omni_gateway_session_seconds_count", mode="chat") == 1
    assert value(registry, "omni_gateway_bytes_total", mode="chat", direction="up") == 85_000
    assert value(registry, "omni_gateway_bytes_total", mode="chat", direction="down") == 128_000
    assert value(registry, "omni_gateway_errors_total", code="queue_full") == 1
    request = {"method": "GET", "route": "/api/sessions/{sid}", "status": "404"}
    assert value(registry, "omni_gateway_requests_total", **request) == 1


def test_worker_sessions_turns_and_problems(registry: CollectorRegistry) -> None:
    observer = MetricsObserver(WorkerMetrics(registry), Capacity(lambda: 0.0), "streaming", "id_1")
    observer.observe(Opened(at_s=1.0), [])
    request = Generate(streaming.Generate())
    observer.observe(Received(streaming.Generate(), at_s=2.0, size_bytes=500), [request])
    chunk, stats = streaming.Chunk(chunk_index=0), TokenStats(generated_tokens=40)
    observer.observe(ChunkReady(chunk, at_s=2.3), [Send(chunk)])
    observer.observe(GenerateDone(token_stats=stats, at_s=4.0), [])
    observer.observe(Disconnected(at_s=4.3), [Send(ErrorMessage.of(AudioError()))])
    asyncio.run(observer.close())
    mode = {"mode": "streaming"}
    assert value(registry, "omni_worker_sessions", **mode) == 0
    assert value(registry, "omni_worker_session_seconds_sum", **mode) == pytest.approx(3.3)
    assert value(registry, "omni_worker_received_bytes_total", **mode) == 500
    assert value(registry, "omni_worker_first_chunk_seconds_sum", **mode) == pytest.approx(0.3)
    assert value(registry, "omni_worker_turn_seconds_sum", **mode) == 2
    assert value(registry, "omni_worker_generated_tokens_total", **mode) == 40
    problem = {**mode, "code": "bad_audio", "fatal": "true"}
    assert value(registry, "omni_worker_problems_total", **problem) == 1


def test_a_chat_s_turn_lasts_from_its_request_to_its_reply(registry: CollectorRegistry) -> None:
    observer = MetricsObserver(WorkerMetrics(registry), Capacity(lambda: 0.0), "chat", "id_1")
    request = ChatSocketRequest(messages=[Message(role=Role.USER, content="Hi")])
    for seconds in (1.0, 11.0):
        observer.observe(Received(request, at_s=seconds), [Prefill(request)])
        observer.observe(PrefillDone(at_s=seconds + 0.5), [Generate(request)])
        if seconds == 1.0:
            observer.observe(TurnFailed(AudioError(), at_s=seconds + 0.6), [])
    observer.observe(ChunkReady(streaming.Chunk(chunk_index=0), at_s=11.7), [])
    observer.observe(GenerateDone(token_stats=TokenStats(generated_tokens=7), at_s=13.0), [])
    mode = {"mode": "chat"}
    assert value(registry, "omni_worker_first_chunk_seconds_sum", **mode) == pytest.approx(0.2)
    assert value(registry, "omni_worker_turn_seconds_sum", **mode) == pytest.approx(2.0)
    assert value(registry, "omni_worker_turn_seconds_count", **mode) == 1
    assert value(registry, "omni_worker_generated_tokens_total", **mode) == 7


def test_the_page_holds_the_process_as_well() -> None:
    registry = new_registry()
    WorkerMetrics(registry)
    text = generate_latest(registry).decode("utf8")
    assert "process_resident_memory_bytes" in text
    assert "# TYPE omni_worker_model_loaded gauge" in text
