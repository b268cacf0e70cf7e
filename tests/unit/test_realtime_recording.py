"""Recording of a Realtime session: turns, whichever engine responds."""

from __future__ import annotations

import numpy as np
import pytest

from core.audio import to_pcm
from core.protocols.realtime_items import AudioClip
from core.schemas.common import Message
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ
from core.schemas.realtime_session import AudioFormat
from core.serving.openai_clients import encoded, model_samples, wav_of
from core.serving.recording_observer import RealtimeRecording
from recording.media import encode_pcm16
from recording.records import VoiceInput
from tests.fakes.realtime_scene import RealtimeScene


class Recorder:
    """Records calls of the recorder."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def elapsed_ms(self) -> float:
        return 0.0

    def save_user_audio(self, index: int, sound: bytes, *, is_wav: bool) -> str:
        return f"{index}, {encode_pcm16(sound, INPUT_SAMPLE_RATE_HZ, is_wav=is_wav) != b''}"

    def start_turn(self, index: int, request_ts_ms: float, given: VoiceInput) -> None:
        assert given.duration_ms > 0
        self.calls.append(("voice", index, given.audio == f"{index}, True"))

    def start_message_turn(self, index: int, message: Message) -> None:
        self.calls.append(("message", index, message.content))

    def add_streaming_chunk(self, text: str | None, sound: str | None) -> None:
        self.calls.append(("piece", text))

    def end_turn(self, timing: object, *, interrupted: bool, text: str) -> None:
        self.calls.append(("end", text, interrupted))


@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_speech_is_resampled_when_it_is_written(kind: str) -> None:
    written = AudioFormat(type=kind)  # type: ignore[arg-type]
    noise = np.random.default_rng(0).uniform(-0.9, 0.9, 30_001).astype(np.float32)
    sound = AudioClip.of(encoded(noise, written), written)
    expected = encode_pcm16(to_pcm(model_samples(sound)), INPUT_SAMPLE_RATE_HZ)
    assert encode_pcm16(wav_of(sound), INPUT_SAMPLE_RATE_HZ, is_wav=True) == expected


def test_both_engines_responses_are_recorded_as_turns() -> None:
    scene, recorder = RealtimeScene(), Recorder()
    scene.observers.append(RealtimeRecording(lambda snapshot: recorder, scene.machine))  # type: ignore[arg-type,return-value]
    scene.semantic()
    scene.talk(800, speech=True)
    scene.engine.units = [("Hello", 800, False), (" there.", 0, True), ("One", 800, False)]
    scene.talk(2_200, speech=False)
    scene.talk(300, speech=False)
    scene.say("response.cancel")
    scene.make()
    scene.text("Hi")
    scene.respond(instructions="Sing.")
    assert recorder.calls == [
        ("voice", 0, True),
        ("piece", ""),
        ("piece", "Hello"),
        ("piece", " there."),
        ("end", "Hello there.", False),
        ("message", 1, ""),
        ("piece", ""),
        ("piece", "One"),
        ("end", "One", True),
        ("message", 2, "Hi"),
        ("piece", "Hello "),
        ("piece", "there."),
        ("end", "Hello there.", False),
    ]


def test_a_response_that_reached_its_limit_was_not_interrupted() -> None:
    scene, recorder = RealtimeScene(), Recorder()
    scene.observers.append(RealtimeRecording(lambda snapshot: recorder, scene.machine))  # type: ignore[arg-type,return-value]
    scene.semantic()
    scene.say("session.update", session={"max_output_tokens": 2})
    scene.engine.units = [("One two", 800, False)]
    scene.talk(800, speech=True)
    scene.talk(2_200, speech=False)
    assert recorder.calls[-1] == ("end", "One two", False)
