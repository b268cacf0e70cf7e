"""Early audio is sent before the unit's result, only on request, and nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from prometheus_client import generate_latest

from core.audio import to_pcm
from core.metrics import WorkerMetrics, new_registry
from core.protocols.effects import Effect, Prefill, Send, Step, WorkEffect
from core.protocols.events import AudioReady, Event, Received, StepDone
from core.schemas.duplex import AudioChunk, Prepare, Prepared, Result, ResultPart
from core.schemas.duplex_calls import DuplexConfig
from core.schemas.limits import OUTPUT_SAMPLE_RATE_HZ
from core.schemas.queue import RequestType
from core.schemas.realtime_session import AudioFormat
from core.serving.capacity import Capacity, MetricsObserver
from core.serving.duplex_handler import DuplexHandler
from core.serving.fake_backend import LISTEN_UNITS, FakeBackend, FakeTimes, tone
from core.serving.recording_observer import DuplexRecording
from core.serving.runtime import WorkerRuntime
from core.serving.slots import Owner
from session_recorder import DuplexSessionRecorder
from tests.fakes.duplex_scenes import CHUNK, SPEAK, scene

QUICK = FakeTimes(prefill_ms=0, unit_ms=0, finalize_ms=0)
UNIT = Step(AudioChunk(audio=CHUNK), (), 0, due_s=1.0)
UNITS = [UNIT] * (LISTEN_UNITS + 2)  # the last of them is spoken


def sound(*samples: float) -> bytes:
    return np.array(samples, "<f4").tobytes()


def test_early_audio_is_sent_at_once_before_the_result() -> None:
    stage = scene()
    stage.say("audio_chunk", audio=CHUNK)

    assert stage.tell(AudioReady(sound(0.5)), after_s=0.04) == ["Send(result_part)"]
    part = stage.only(ResultPart)
    assert (part.audio_data, part.step, part.turn_id) == (sound(0.5), 0, 0)
    assert round(part.elapsed_ms) == 40
    assert stage.tell(StepDone(SPEAK)) == ["Send(result)", "Finalize"]
    result = stage.only(Result)
    assert (result.step, result.text, result.audio_data) == (0, SPEAK.text, SPEAK.audio_data)


async def speak(*effects: WorkEffect) -> list[Event]:
    """Return the events of these effects, carried out with the fake model."""
    runtime = WorkerRuntime(lambda: FakeBackend(QUICK), 1)
    await runtime.load()
    owner = Owner("s", RequestType.AUDIO_DUPLEX)
    await runtime.slots.take(owner, 1.0)
    handler = DuplexHandler(runtime, owner)
    emitted: list[Event] = []

    async def emit(event: Event) -> None:
        emitted.append(event)

    try:
        for effect in effects:
            handler.expect()
            await handler.perform(effect, emit)
        await handler.release()
    finally:
        runtime.close()
    return emitted


def test_early_audio_comes_first_and_nothing_twice() -> None:
    events = asyncio.run(speak(Prefill(Prepare(early_audio=True)), *UNITS))
    first = next(i for i, event in enumerate(events) if isinstance(event, AudioReady))
    part, done = events[first : first + 2]
    assert isinstance(part, AudioReady) and isinstance(done, StepDone)
    rest = done.result.audio_data
    assert rest is not None
    assert part.pcm + rest == to_pcm(tone())
    assert len(tone()) == OUTPUT_SAMPLE_RATE_HZ


def test_without_early_audio_units_come_whole() -> None:
    events = asyncio.run(speak(Prefill(Prepare()), *UNITS))
    assert not any(isinstance(event, AudioReady) for event in events)
    spoken = [e.result.audio_data for e in events if isinstance(e, StepDone)]
    assert to_pcm(tone()) in spoken


def test_a_conversation_that_begins_anew_has_its_own_format() -> None:
    """Also if the one before ended in the middle of a turn."""
    begin = Prefill(Prepare(config=DuplexConfig(force_listen_count=0)))
    pcm, telephone = (
        replace(UNIT, client_format=AudioFormat(type=kind)) for kind in ("audio/pcm", "audio/pcmu")
    )
    events = asyncio.run(speak(begin, pcm, begin, telephone))
    written = [len(event.client_audio) for event in events if isinstance(event, StepDone)]
    assert written[0] > 2 * 20_000 and 7_000 < written[1] <= 8_000


def test_a_unit_has_a_deadline() -> None:
    stage = scene()
    stage.say("audio_chunk", audio=CHUNK)
    step = stage.only(Step)
    assert step.due_s == stage.now_s + 1.0, "when the next second of sound may be complete"


class Recorder:
    """A recorder that keeps the audio of results."""

    def __init__(self) -> None:
        self.sounds: list[bytes] = []
        self.sent_ms: list[float] = []

    def elapsed_ms(self) -> float:
        return 0.0

    def record_input(self, *chunk: object, receive_ts_ms: float, sent_ts_ms: float) -> None:
        self.sent_ms.append(sent_ts_ms)

    def record_result(self, index: int, result: Result, sound: bytes | None = None) -> None:
        assert sound is not None
        self.sounds.append(sound)

    def finalize(self, reason: object) -> None: ...


def test_a_recording_holds_early_audio_and_the_rest() -> None:
    recorder = Recorder()

    def begin(snapshot: Mapping[str, Any]) -> DuplexSessionRecorder:
        return recorder  # type: ignore[return-value]

    observer = DuplexRecording(begin)
    observer.observe(Received(Prepare(early_audio=True)), [Send(Prepared())])
    effects: list[Effect] = [
        Send(ResultPart(audio_data=sound(0.1, 0.2))),
        Send(Result(is_listen=False, audio_data=sound(0.3))),
        Send(Result(is_listen=False, audio_data=sound(0.4))),
    ]
    observer.observe(AudioReady(b""), effects)
    assert recorder.sounds == [sound(0.1, 0.2, 0.3), sound(0.4)]
    observer.observe(AudioReady(b""), [Send(ResultPart(audio_data=sound(0.5), step=2))])
    asyncio.run(observer.close())
    assert recorder.sounds[2:] == [sound(0.5)], "the session ended during this unit"


def test_a_recording_knows_where_a_chunk_was_in_the_sent_audio() -> None:
    recorder = Recorder()
    observer = DuplexRecording(lambda snapshot: recorder)  # type: ignore[arg-type, return-value]
    observer.observe(Received(Prepare()), [Send(Prepared())])
    chunk = AudioChunk(audio=CHUNK)
    observer.observe(Received(chunk), [Step(chunk, (), 1, due_s=1.0, start_samples=48_000)])
    assert recorder.sent_ms == [3_000.0]


def test_early_audio_is_timed_but_not_counted_as_a_unit() -> None:
    registry = new_registry()
    observer = MetricsObserver(
        WorkerMetrics(registry), Capacity(lambda: 0.0), "audio_duplex", "id_1"
    )
    observer.observe(Received(Prepare()), [Send(ResultPart(audio_data=b"", elapsed_ms=40.0))])
    lines = generate_latest(registry).decode().splitlines()
    assert 'omni_worker_first_chunk_seconds_count{mode="audio_duplex"} 1.0' in lines
    assert not any(line.startswith("omni_worker_unit_stage_seconds_count{") for line in lines)
