"""The log and the counters of a session."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import LogCapture

from core.errors import ContextFullError, GenerationFailedError
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
    ShuttingDown,
    StepDone,
    TimerFired,
    TimerName,
)
from core.protocols.machine import SessionIds
from core.protocols.streaming import TABLE as STREAMING_TABLE
from core.protocols.streaming import StreamingMachine
from core.schemas.common import Message, TokenStats
from core.schemas.duplex import AudioChunk, Prepare
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.queue import RequestType, Stop
from core.schemas.streaming import StreamingChunk
from core.serving.capacity import Capacity, MetricsObserver
from core.serving.observers import Observer
from core.serving.recording_observer import DuplexRecording, StreamingRecording
from core.serving.recordings import OpenRecording
from recording.records import EndReason
from tests.fakes.scenes import DUPLEX, STREAMING, Scene, audio
from tests.fakes.stages import SOUND, Stage
from tests.fakes.virtual_time import in_virtual_time

NAMES = SessionIds("id_1")
CHUNK = AudioChunk(audio=audio(1_000))
SYSTEM = {"role": "system", "content": "Be brief."}
LISTEN = StepDone(DuplexGenerateResult(is_listen=True, n_tokens=3, cost_llm_ms=125.0))


def watch(scene: Scene, observer: Observer, *events: tuple[Event, float]) -> None:
    """Pass events to an observer, each so long after the one before."""
    for event, after_s in events:
        scene.tell(event, after_s)
        observer.observe(scene.told, scene.effects)
    asyncio.run(observer.close())


def logged(stage: Stage) -> LogCapture:
    """Capture the log of a connection that has not begun."""
    capture = LogCapture()
    stage.connection.log = structlog.wrap_logger(
        None, processors=[capture], wrapper_class=structlog.stdlib.BoundLogger
    ).bind(session_id="id_1")
    return capture


@in_virtual_time
async def test_the_course_of_a_session_is_logged() -> None:
    stage = Stage()
    capture = logged(stage)
    stage.start()
    await stage.say("audio_chunk", audio=SOUND)
    await stage.say("prepare")
    await asyncio.sleep(2.0)
    stage.socket.say_raw("{")
    await stage.end()
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
    told = (closed["close_code"], closed["cause"], closed["duration_s"])
    assert told == (1007, "rejected", 2.0)


@pytest.mark.parametrize("told", ["client_gone", "engine_failed"])
@in_virtual_time
async def test_disconnects_and_failures_are_logged(told: str) -> None:
    def fail(effect: object) -> list[Event]:
        raise GenerationFailedError

    stage = Stage()
    capture = logged(stage)
    await stage.prepare()
    if told == "client_gone":
        stage.socket.drop()
    else:
        stage.handler.answers = fail
        await stage.say("audio_chunk", audio=audio(1_000))
    await stage.end()
    assert told in [line["event"] for line in capture.entries]


class Metrics(WorkerMetrics):
    """Metrics whose samples a test reads."""

    def __init__(self, mode: str) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        super().__init__(self.registry)
        self.mode = mode

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"omni_worker_{name}", {"mode": self.mode, **labels})


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (ShuttingDown(), "stopped"),
        (Disconnected(), "disconnect"),
        (EngineFailed(GenerationFailedError()), "error"),
        (EngineFailed(ContextFullError()), "context_full"),
        (TimerFired(TimerName.IDLE), "timeout"),
    ],
)
def test_a_recording_says_why_its_session_ended(event: Event, reason: str) -> None:
    class Recorder:
        def finalize(self, reason: str) -> None:
            self.reason = reason

        def record_input(self, *chunk: object, **times: object) -> None: ...

        def elapsed_ms(self) -> float:
            return 0.0

    recorder: Any = Recorder()
    opened = (Opened(), 0.0), (Received(Prepare()), 0.0), (PrefillDone(), 0.0)
    scene = Scene(DuplexMachine(NAMES), TABLE, DUPLEX)
    watch(scene, DuplexRecording(lambda snapshot: recorder), *opened, (event, 1.0))
    assert recorder.reason == reason


def test_a_turn_that_never_came_ends_a_chats_recording_by_time_out() -> None:
    recorder: Any = object()
    reasons: list[EndReason] = []
    recordings: Any = SimpleNamespace(suspend=lambda recording, reason: reasons.append(reason))
    recording = OpenRecording("stm_1", RequestType.STREAMING, ("s", ""))
    observer = StreamingRecording(lambda snapshot: recorder, recordings, recording)
    observer.recorder = recorder
    scene = Scene(StreamingMachine(NAMES), STREAMING_TABLE, STREAMING)
    watch(scene, observer, (Opened(), 0.0), (TimerFired(TimerName.IDLE), 300.0))
    assert reasons == [EndReason.TIMEOUT]


def prefill(text: str) -> Received[Any]:
    messages = [{"role": "user", "content": text}]
    return Received(STREAMING.validate_python({"type": "prefill", "messages": messages}))


GENERATE = Received(STREAMING.validate_python({"type": "generate"}))


class Turns:
    """A recorder of turns that notes what the user said in each."""

    def __init__(self) -> None:
        self.said: list[list[str]] = []

    def start_message_turn(self, turn: int, *messages: Message) -> None:
        self.said.append([str(message.content) for message in messages])

    def add_streaming_chunk(self, *piece: object) -> None: ...

    def end_turn(self, *timing: object, **outcome: object) -> None: ...


def watch_chat(*told: Event) -> tuple[list[list[str]], list[EndReason], list[object]]:
    """Return what was recorded: the turns' texts, why it ended, and its settings."""
    turns, reasons, snapshots = Turns(), list[EndReason](), list[object]()
    recordings: Any = SimpleNamespace(suspend=lambda recording, reason: reasons.append(reason))

    def open_recorder(snapshot: object) -> Any:
        snapshots.append(snapshot)
        return turns

    recording = OpenRecording("stm_1", RequestType.STREAMING, ("s", ""))
    observer = StreamingRecording(open_recorder, recordings, recording)
    scene = Scene(StreamingMachine(NAMES), STREAMING_TABLE, STREAMING)
    watch(scene, observer, *((event, 0.0) for event in (Opened(), *told)))
    return turns.said, reasons, snapshots


def test_who_leaves_a_chat_between_turns_has_not_lost_the_connection() -> None:
    turn = (prefill("Hello"), PrefillDone(), GENERATE, GenerateDone("Hi"))
    assert watch_chat(*turn, Disconnected())[1] == [EndReason.STOPPED]
    assert watch_chat(*turn[:3], Disconnected())[1] == [EndReason.DISCONNECT]
    assert watch_chat(*turn, *turn[:2], Disconnected())[1] == [EndReason.DISCONNECT]
    stopped = (*turn, *turn[:2], Received(Stop()))
    assert watch_chat(*stopped, Disconnected())[1] == [EndReason.STOPPED]


def test_every_prefill_of_a_turn_is_recorded() -> None:
    first = {"type": "prefill", "messages": [SYSTEM, {"role": "user", "content": "Look."}]}
    begin = Received(STREAMING.validate_python(first))
    rest = (PrefillDone(), prefill("What is it?"), PrefillDone(), GENERATE, GenerateDone("A cat."))
    said, _, snapshots = watch_chat(begin, *rest)
    assert said == [["Look.", "What is it?"]]
    assert snapshots == [{"system_prompt": "Be brief."}]
    assert watch_chat(begin, *rest, *rest[1:])[0] == [["Look.", "What is it?"], ["What is it?"]]


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
    assert metrics.sample("unit_stage_seconds_bucket", stage="wall", le="1.0") == 1
    assert metrics.sample("unit_stage_seconds_sum", stage="llm") == 0.25
    assert metrics.sample("generated_tokens_total") == 2 * 3
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
