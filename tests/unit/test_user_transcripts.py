"""`user_transcript` of half and full duplex: sent on request, without delaying a reply."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import numpy as np
import pytest

from core.audio import FloatArray
from core.endpointing import SpeechStarted
from core.errors import GenerationFailedError
from core.protocols.duplex import DuplexMachine
from core.protocols.effects import Detect, Generate, Prefill, Send, Step
from core.protocols.events import (
    Event,
    GenerateDone,
    Opened,
    PrefillDone,
    Received,
    Segment,
    Transcribed,
)
from core.protocols.half_duplex import HalfDuplexMachine
from core.protocols.machine import SessionIds
from core.protocols.streaming import StreamingMachine
from core.schemas import duplex, half_duplex, streaming
from core.schemas.queue import RequestType, Stop, UserTranscript
from core.serving import duplex_handler
from core.serving.duplex_handler import DuplexHandler
from core.serving.fake_backend import FakeBackend, FakeTranscriber
from core.serving.recording_observer import StreamingRecording, TurnRecording
from core.serving.recordings import OpenRecording
from core.serving.runtime import WorkerRuntime
from core.serving.turn_handlers import HalfDuplexHandler, StreamingHandler
from core.transcription import DEFAULT_OPTIONS, Transcript, TranscriptionOptions
from tests.fakes.live_scenes import LiveScene, append, speak
from tests.system.loops import in_loop
from tests.unit.test_session_handlers import QUICK

SECOND = np.zeros(16_000, "<f4").tobytes()
SAID = Segment(SECOND, 8_000)
NAMES = SessionIds("s")
CHUNK = b64encode(SECOND).decode()


@pytest.mark.parametrize("kind", [DuplexMachine, HalfDuplexMachine])
def test_transcripts_and_their_failures_are_sent(kind: Any) -> None:
    machine = kind(NAMES)
    machine.handle(Opened())
    prepare = duplex.Prepare() if kind is DuplexMachine else half_duplex.Prepare()
    machine.handle(Received(prepare))
    assert machine.handle(Transcribed(SAID, "Too early.")) == []
    machine.handle(PrefillDone())
    assert machine.handle(Transcribed(SAID, "Hello.", "en")) == [
        Send(UserTranscript(text="Hello.", language="en", start_ms=500, duration_ms=1_000))
    ]
    [sent] = machine.handle(Transcribed(SAID, problem=GenerationFailedError("No.")))
    assert isinstance(sent.message, UserTranscript)
    assert (sent.message.text, sent.message.error) == ("", "No.")


@pytest.mark.parametrize("wants", [False, True])
def test_full_duplex_detects_segments_only_for_transcripts(wants: bool) -> None:
    machine = DuplexMachine(NAMES)
    machine.handle(Opened())
    machine.handle(Received(duplex.Prepare(transcribe=wants)))
    machine.handle(PrefillDone())
    effects = machine.handle(Received(duplex.AudioChunk(audio=CHUNK)))
    assert any(isinstance(effect, Detect) for effect in effects) is wants
    assert any(isinstance(effect, Step) for effect in effects) is not wants


class Gated(FakeTranscriber):
    """Answers once the test allows it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def transcribe(
        self, samples: FloatArray, options: TranscriptionOptions = DEFAULT_OPTIONS
    ) -> Transcript:
        await self.gate.wait()
        return await super().transcribe(samples, options)


class Bench:
    """A handler of a worker with a gated transcriber."""

    def __init__(self) -> None:
        self.transcriber = Gated()
        self.emitted: list[Event] = []
        self.runtime = WorkerRuntime(
            lambda: FakeBackend(QUICK), 1, make_transcriber=lambda backend: self.transcriber
        )

    async def emit(self, event: Event) -> None:
        self.emitted.append(event)

    def transcripts(self) -> list[str]:
        return [event.text for event in self.emitted if isinstance(event, Transcribed)]


@in_loop
async def test_a_half_duplex_turn_does_not_wait_for_its_transcript() -> None:
    bench = Bench()
    await bench.runtime.load()
    owner: Any = None
    handler = HalfDuplexHandler(bench.runtime, owner)
    handler._transcribes = True
    handler._view = bench.runtime.backend.open_streaming(handler._threads)  # type: ignore[assignment]
    handler.expect()
    await handler.perform(Generate(SAID, turn_index=3), bench.emit)
    assert bench.transcripts() == [], "the turn is over"
    bench.transcriber.gate.set()
    await asyncio.gather(*handler._transcripts)
    assert bench.transcripts() == ["I speak for 1.0 s."]
    [said] = [event for event in bench.emitted if isinstance(event, Transcribed)]
    assert said.turn_index == 3
    bench.transcriber.gate.clear()
    handler._in_background(handler._transcribe(SAID, bench.emit))
    await handler.release()
    bench.transcriber.gate.set()
    await asyncio.sleep(0)
    assert len(bench.transcripts()) == 1, "nobody is there any more"
    bench.runtime.close()


@in_loop
async def test_the_transcript_of_a_chat_names_the_message_it_is_of() -> None:
    bench = Bench()
    await bench.runtime.load()
    owner: Any = None
    content = [{"type": "audio", "data": CHUNK}]
    message = streaming.WorkerPrefill.model_validate(
        {
            "type": "prefill",
            "messages": [{"role": "user", "content": content}],
            "transcribe": True,
        }
    )
    handler = StreamingHandler(bench.runtime, owner)
    handler.expect()
    await handler.perform(Prefill(message), bench.emit)
    bench.transcriber.gate.set()
    await asyncio.gather(*handler._transcripts)
    [said] = [event for event in bench.emitted if isinstance(event, Transcribed)]
    assert said.prefill is message and said.text == "I speak for 1.0 s."
    await handler.release()
    bench.runtime.close()


@in_loop
async def test_full_duplex_transcribes_detected_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Cutter:
        def __init__(self, *_: object) -> None: ...

        def detect(self, samples: FloatArray) -> tuple[Segment, ...]:
            return (SAID,)

    monkeypatch.setattr(duplex_handler, "TurnDetector", Cutter)
    bench = Bench()
    await bench.runtime.load()
    owner: Any = None
    handler = DuplexHandler(bench.runtime, owner)
    await handler._prepare(duplex.Prepare(transcribe=True), bench.emit)
    bench.transcriber.gate.set()
    await handler.detect(Detect(SECOND), bench.emit)
    await asyncio.gather(*handler._transcripts)
    assert bench.transcripts() == ["I speak for 1.0 s."]
    await handler.release()
    bench.runtime.close()


def test_a_recording_keeps_transcripts_and_their_start() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.kept: list[tuple[object, ...]] = []

        def record_words(self, *event: object) -> None:
            self.kept.append(event)

    recorder: Any = Recorder()
    observer = TurnRecording(lambda snapshot: recorder)
    observer.recorder = recorder
    said = UserTranscript(text="Hello.", start_ms=500, duration_ms=1_000)
    observer.observe(Transcribed(SAID, "Hello."), [Send(said)])
    observer.observe(Transcribed(SAID), [Send(said.model_copy(update={"text": ""}))])
    assert recorder.kept == [("user_transcript", "Hello.", 500, 1_000, None)]


def test_a_transcript_of_a_turn_that_was_stopped_is_not_recorded_with_the_turn_before() -> None:
    class Recorder:
        def __init__(self) -> None:
            self.kept: list[tuple[object, ...]] = []

        def start_message_turn(self, *turn: object) -> None: ...

        def add_streaming_chunk(self, *piece: object) -> None: ...

        def end_turn(self, *timing: object, **outcome: object) -> None: ...

        def record_words(self, *event: object) -> None:
            self.kept.append(event)

    recorder: Any = Recorder()
    recordings: Any = None
    recording = OpenRecording("stm_1", RequestType.STREAMING, ("s", ""))
    observer = StreamingRecording(lambda snapshot: recorder, recordings, recording)
    machine = StreamingMachine(NAMES)
    content = [{"type": "audio", "data": CHUNK}]
    turns = [
        streaming.WorkerPrefill.model_validate(
            {"messages": [{"role": "user", "content": content}], "transcribe": True}
        )
        for _ in range(2)
    ]
    for event in (
        Received(turns[0]),
        PrefillDone(),
        Transcribed(SAID, "One.", prefill=turns[0]),
        Received(streaming.Generate()),
        GenerateDone("Hi"),
        Received(turns[1]),
        PrefillDone(),
        Transcribed(SAID, "Two.", prefill=turns[1]),
        Received(Stop()),
    ):
        observer.observe(event, machine.handle(event))
    assert recorder.kept == [("user_transcript", "One.", 500, 1_000, 0)]


def test_a_transcript_that_comes_after_the_next_speech_belongs_to_its_own() -> None:
    scene = LiveScene(transcribes=True)
    scene.start()
    first, second = (Segment(bytes(4 * 8_000), start) for start in (1_000, 50_000))
    scene.speech_events = [SpeechStarted(1_000)]
    scene.plan = [speak("Hello Anna.", end_of_turn=True)]
    scene.run(3.0)
    scene.speech_events = [SpeechStarted(50_000)]
    scene.run(1.0)
    scene.tell(Transcribed(first, "I am Anna."))
    scene.tell(Transcribed(second, "Who are you?"))
    append(scene, "thinking", "It rains.")
    scene.run(2.0)
    said = scene.prompts[-1].suffix_system_prompt
    assert said.index("I am Anna.") < said.index("Hello Anna.") < said.index("Who are you?")
