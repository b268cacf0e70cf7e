"""A GPT-Live machine with a scripted engine."""

from __future__ import annotations

import base64
import json
from typing import Any

from core.audio import encode_wire_audio, from_pcm
from core.errors import OmniError
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Detect, Finalize, Prefill, Send, Step
from core.protocols.events import (
    Detected,
    Event,
    FinalizeDone,
    Opened,
    PrefillDone,
    Received,
    Rejected,
    SpeechEvent,
    StepDone,
    TimerFired,
    TimerName,
)
from core.protocols.gpt_live import TABLE, GptLiveMachine
from core.protocols.machine import SessionIds
from core.protocols.paced_output import LiveNames
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.gpt_live import AudioReceived
from core.serving.fake_backend import tone
from core.serving.openai_clients import GptLiveCodec, ReplyWriter
from tests.fakes.scenes import DUPLEX, Scene

LISTEN = DuplexGenerateResult(is_listen=True)
PIECE_S = 0.1
TICKS = 5  # clock steps per piece, of which one fires the pace timer
TONE = encode_wire_audio(tone())  # a second
START: dict[str, Any] = {"model": "gpt-live-1", "instructions": "Be kind."}


def speak(text: str = "I am speaking now.", sound: str = TONE, **fields: Any) -> Any:
    return DuplexGenerateResult(is_listen=False, text=text, audio_data=sound, **fields)


class LiveScene:
    """A session whose clock, engine and client the test controls."""

    def __init__(self, *, transcribes: bool = False, **limits: Any) -> None:
        machine = GptLiveMachine(
            SessionIds("live_1"),
            DuplexLimits(**limits),
            LiveNames("live_1", "nano", "abc", 1_000, transcribes),
            lambda text: len(text.split()),
        )
        self.stage = Scene(machine, TABLE, DUPLEX)  # checks each step against the table
        self.words = GptLiveCodec()
        self.told: list[dict[str, Any]] = []  # events of the server, without sound
        self.sound = bytearray()  # all that the client was sent, 16 bits at 24 kHz
        self.plan: list[DuplexGenerateResult] = []  # of the next units; then the model listens
        self.prompts: list[Any] = []
        self.steps: list[Step] = []
        self.speech_events: list[SpeechEvent] = []  # what detection finds next
        self.kv_tokens = 10
        self.is_held = False  # the engine does not reply
        self.asked: list[Any] = []  # requests it holds
        self.tell(Opened())

    def tell(self, event: Event, after_s: float = 0.0) -> list[dict[str, Any]]:
        before = len(self.told)
        self.stage.tell(event, after_s)
        effects = self.stage.effects
        for effect in effects:
            if isinstance(effect, Send):
                self._hear(effect)
        self.asked += [e for e in effects if isinstance(e, Prefill | Step | Finalize | Detect)]
        if not self.is_held:
            self.answer()
        return self.told[before:]

    def answer(self) -> None:
        while self.asked:
            asked = self.asked.pop(0)
            match asked:
                case Prefill(message):
                    self.prompts.append(message)
                    self.tell(PrefillDone(kv_tokens=self.kv_tokens))
                case Step():
                    self.steps.append(asked)
                    unit = self.plan.pop(0) if self.plan else LISTEN
                    assert asked.client_format is not None
                    pcm = from_pcm(unit.audio_data or b"")
                    sound = ReplyWriter(asked.client_format).write(pcm)
                    result = unit.model_copy(update={"kv_cache_length": self.kv_tokens})
                    self.tell(StepDone(result, client_audio=sound))
                case Finalize():
                    self.tell(FinalizeDone(kv_tokens=self.kv_tokens))
                case Detect():
                    found, self.speech_events = tuple(self.speech_events), []
                    self.tell(Detected(found))

    def say(self, kind: str, after_s: float = 0.0, **fields: Any) -> list[dict[str, Any]]:
        return self.say_text(json.dumps({"type": kind, **fields}), after_s)

    def say_text(self, text: str, after_s: float = 0.0) -> list[dict[str, Any]]:
        return self.tell(self.read(text), after_s)

    def read(self, text: str) -> Event:
        try:
            return Received(self.words.parse(text))
        except OmniError as error:
            return Rejected(error)

    def start(self, **session: Any) -> list[dict[str, Any]]:
        return self.say("session.start", event_id="start", session=START | session)

    def run(self, duration_s: float, *, talks: bool = True) -> list[dict[str, Any]]:
        """Advance time in steps of 100 ms, with silence from the client by default."""
        before = len(self.told)
        for _ in range(round(duration_s / PIECE_S)):
            if talks:
                self.tell(Received(AudioReceived(samples=bytes(6_400))))
            for _ in range(TICKS):
                self.tell(TimerFired(TimerName.PACE), PIECE_S / TICKS)
        return self.told[before:]

    def _hear(self, effect: Send) -> None:
        event = json.loads(effect.message.to_json())
        if event["type"] == "session.output_audio.delta":
            self.sound += base64.b64decode(event["delta"])
        else:
            self.told.append(event)


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def pcm(duration_ms: int) -> str:
    """Base64 of silence at 24 kHz, 16 bit."""
    return base64.b64encode(bytes(48 * duration_ms)).decode()


def append(scene: LiveScene, purpose: str, content: str = "x", **fields: Any) -> Any:
    given = {"content": content, "delegation_id": None, "event_id": "e1"} | fields
    return scene.say(f"session.{purpose}.append", **given)
