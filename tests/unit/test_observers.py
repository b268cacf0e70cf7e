"""The log and the counters of a session."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from structlog.testing import LogCapture

from core.errors import BadPayloadError, ErrorCode, GenerationFailedError
from core.metrics import new_registry
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
from core.schemas.duplex import AudioChunk, Prepare, Result
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.streaming import StreamingChunk
from core.serving.observers import LogObserver, MetricsObserver, Observer, WorkerMetrics
from tests.fakes.scenes import DUPLEX, STREAMING, Scene, audio

NAMES = SessionIds("id_1")
CHUNK = AudioChunk(audio=audio(1_000))
LISTEN = StepDone(DuplexGenerateResult(is_listen=True))


def watch(scene: Scene, observer: Observer, *events: tuple[Event, float]) -> None:
    """Tell events, each so long after the one before, under an observer's eyes."""
    for event, after_s in events:
        scene.tell(event, after_s)
        observer.observe(scene.told, scene.effects)
    asyncio.run(observer.close())


def test_the_log_tells_how_a_session_went() -> None:
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


def test_the_log_tells_who_left_and_what_failed() -> None:
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


class Counters(WorkerMetrics):
    """Keeps every call."""

    def __init__(self) -> None:
        super().__init__(new_registry())
        self.calls: list[tuple[Any, ...]] = []

    def session_opened(self, mode: str) -> None:
        self.calls.append(("opened", mode))

    def session_closed(self, mode: str, duration_s: float) -> None:
        self.calls.append(("closed", mode, duration_s))

    def received(self, mode: str, size_bytes: int) -> None:
        self.calls.append(("received", size_bytes))

    def problem(self, mode: str, code: ErrorCode, *, is_fatal: bool) -> None:
        self.calls.append(("problem", code.value, is_fatal))

    def unit(self, mode: str, result: Result, *, is_late: bool) -> None:
        self.calls.append(("unit", result.wall_clock_ms, is_late))

    def finalized(self, mode: str, finalize_ms: float) -> None:
        self.calls.append(("finalized", finalize_ms))

    def first_chunk(self, mode: str, wait_ms: float) -> None:
        self.calls.append(("first_chunk", wait_ms))

    def turn(self, mode: str, elapsed_ms: float, generated_tokens: int) -> None:
        self.calls.append(("turn", elapsed_ms, generated_tokens))


def test_duplex_units_are_counted() -> None:
    counters = Counters()
    watch(
        Scene(DuplexMachine(NAMES), TABLE, DUPLEX),
        MetricsObserver(counters, "omni_duplex"),
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
    assert counters.calls == [
        ("opened", "omni_duplex"),
        ("received", 9),
        ("problem", "not_prepared", False),
        ("received", 20),
        ("received", 9),
        ("unit", 500.0, False),
        ("finalized", 37.0),
        ("received", 9),
        ("unit", 1_500.0, True),
        ("problem", "generation_failed", True),
        ("closed", "omni_duplex", 4.0),
    ]


def test_turns_are_counted() -> None:
    counters = Counters()
    history = {"type": "prefill", "messages": [{"role": "user", "content": "Hello"}]}
    watch(
        Scene(StreamingMachine(NAMES), STREAMING_TABLE, STREAMING),
        MetricsObserver(counters, "streaming"),
        (Opened(), 0.0),
        (Received(STREAMING.validate_python(history)), 0.0),
        (PrefillDone(), 0.5),
        (Received(STREAMING.validate_python({"type": "generate"})), 0.0),
        (ChunkReady(StreamingChunk(chunk_index=0)), 0.25),
        (ChunkReady(StreamingChunk(chunk_index=1)), 0.25),
        (GenerateDone(token_stats=TokenStats(generated_tokens=7)), 0.0),
    )
    assert ("first_chunk", 250.0) in counters.calls
    assert ("turn", 1_000.0, 7) in counters.calls
    assert [name for name, *_ in counters.calls].count("first_chunk") == 1
