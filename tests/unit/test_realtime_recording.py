"""Recording of a Realtime session: turns, whichever engine responds."""

from __future__ import annotations

from core.schemas.common import Message
from core.serving.recording_observer import RealtimeRecording
from tests.fakes.realtime_scene import RealtimeScene


class Recorder:
    """Records calls of the recorder."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def start_voice_turn(self, index: int, sound: bytes) -> None:
        self.calls.append(("voice", index, len(sound) > 0))

    def start_message_turn(self, index: int, message: Message) -> None:
        self.calls.append(("message", index, message.content))

    def add_streaming_chunk(self, text: str | None, sound: str | None) -> None:
        self.calls.append(("piece", text))

    def end_turn(self, timing: object, *, interrupted: bool, text: str) -> None:
        self.calls.append(("end", text, interrupted))


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
    scene.say("response.create", response={"instructions": "Sing."})
    scene.make()
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
