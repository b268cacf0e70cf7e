"""The log and the counters of a session."""

from __future__ import annotations

import asyncio

import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from core.errors import BadPayloadError, GenerationFailedError
from core.metrics import WorkerMetrics
from core.protocols.duplex import TABLE, DuplexMachine
from core.protocols.events import (
    ChunkReady,
    Disconnected,
    EngineFailed,
    Event,
    FinalizeDone,
    GenerateDone,
    Opened,
    PrefillDone,
    Received,
    Rejected,
    StepDone,
)
from core.protocols.machine import SessionIds
from core.protocols.streaming import TABLE as STREAMING_TABLE
from core.protocols.streaming import StreamingMachine
from core.schemas.common import TokenStats
from core.schemas.duplex import AudioChunk, Prepare
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.streaming import StreamingChunk
from core.serving.capacity import Capacity, MetricsObserver
from core.serving.connection import LogObserver
from core.serving.observers import Observer
from tests.fakes.scenes import DUPLEX, STREAMING, Scene, audio

NAMES = SessionIds("id_1")
CHUNK = AudioChunk(audio=audio(1_000))
LISTEN = StepDone(DuplexGenerateResult(is_listen=True))


def watch(scene: Scene, observer: Observer, *events: tuple[Event, float]) -> None:
    """Pass events to an observer, each so long after the one before."""
    for event, after_s in events:
        scene.tell(event, after_s)
        observer.observe(scene.told, scene.effects)
    asyncio.run(observer.close())


def test_the_course_of_a_session_is_logged() -> None:
    capture = LogCapture()
    log = structlog.wrap_logger(
        None, processors=[capture], wrapper_class=structlog.stdlib.BoundLogger
    ).bind(session_id="id_1")
    scene = Scene(DuplexMachine(NAMES), TABLE, DUPLEX)
    watch(
        scene,
        LogObserver(log),
        (Opened(), 1.0),
        (Received(CHUNK), 0.0),
        (Received(Prepare()), 0.0),
        (Rejected(BadPayloadError()), 2.0),
    )
    lines = [line for line in capture.entries if line["log_level"] != "debug"]
    assert [line["event"] for line in lines] == [
        "session_opened",
        "client_warned",
        "message_rejected",
        "session_failed",
        "session_closed",
        "session_released",
    ]
    assert {line["session_id"] for line in lines} == {"id_1"}
    closed = lines[4]
    assert (closed["close_code"], closed["cause"], closed["duration_s"]) == (1007, "rejected", 2.0)


def test_disconnects_and_failures_are_logged() -> None:
    for event, told in (
        (Disconnected("reset"), "client_gone"),
        (EngineFailed(GenerationFailedError()), "engine_failed"),
    ):
        capture = LogCapture()
        log = structlog.wrap_logger(
            None, processors=[capture], wrapper_class=structlog.stdlib.BoundLogger
        )
        scene = Scene(DuplexMachine(NAMES), TABLE, DUPLEX)
        watch(scene, LogObserver(log), (Opened(), 0.0), (event, 0.0))
        assert told in [line["event"] for line in capture.entries]


class Metrics(WorkerMetrics):
    """Metrics whose samples a test reads."""

    def __init__(self, mode: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        super().__init__(self.registry)
        self.mode = mode

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"omni_worker_{name}", {"mode": self.mode, **labels})


def test_duplex_units_are_counted() -> None:
    metrics = Metrics("omni_duplex")
    watch(
        Scene(DuplexMachine(NAMES), TABLE, DUPLEX),
        MetricsObserver(metrics, Capacity(lambda: 0.0), "omni_duplex", "id_1"),
        (Opened(), 0.0),
        (Received(CHUNK, size_bytes=9), 0.0),
        (Received(Prepare(), size_bytes=20), 0.0),
        (PrefillDone(), 0.0),
        (Received(CHUNK, size_bytes=9), 0.0),
        (LISTEN, 0.5),
        (FinalizeDone(finalize_ms=37.0), 0.0),
        (Received(CHUNK, size_bytes=9), 0.0),
        (LISTEN, 1.5),
        (EngineFailed(GenerationFailedError()), 2.0),
    )
    assert metrics.sample("sessions") == 0
    assert metrics.sample("session_seconds_sum") == 4.0
    assert metrics.sample("received_bytes_total") == 9 + 20 + 9 + 9
    assert metrics.sample("problems_total", code="not_prepared", fatal="false") == 1
    assert metrics.sample("problems_total", code="generation_failed", fatal="true") == 1
    assert metrics.sample("unit_stage_seconds_sum", stage="wall") == 0.5 + 1.5
    assert metrics.sample("unit_stage_seconds_count", stage="wall") == 2
    assert metrics.sample("unit_stage_seconds_sum", stage="finalize") == 0.037
    assert metrics.sample("late_units_total") == 1


def test_turns_are_counted() -> None:
    metrics = Metrics("streaming")
    history = {"type": "prefill", "messages": [{"role": "user", "content": "Hello"}]}
    watch(
        Scene(StreamingMachine(NAMES), STREAMING_TABLE, STREAMING),
        MetricsObserver(metrics, Capacity(lambda: 0.0), "streaming", "id_1"),
        (Opened(), 0.0),
        (Received(STREAMING.validate_python(history)), 0.0),
        (PrefillDone(), 0.5),
        (Received(STREAMING.validate_python({"type": "generate"})), 0.0),
        (ChunkReady(StreamingChunk(chunk_index=0)), 0.25),
        (ChunkReady(StreamingChunk(chunk_index=1)), 0.25),
        (GenerateDone(token_stats=TokenStats(generated_tokens=7)), 0.0),
    )
    assert metrics.sample("first_chunk_seconds_sum") == 0.25
    assert metrics.sample("first_chunk_seconds_count") == 1
    assert metrics.sample("turn_seconds_sum") == 1.0
    assert metrics.sample("generated_tokens_total") == 7
