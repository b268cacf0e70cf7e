"""All worker protocols: machine, client messages, engine, and a path to each phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from core.endpointing import SpeechDiscarded, SpeechStarted
from core.errors import AudioError, GenerationFailedError, UnknownTypeError
from core.protocols import duplex, half_duplex, streaming
from core.protocols.duplex_units import DuplexLimits
from core.protocols.effects import Finalize, Generate, Prefill, Step, label
from core.protocols.events import (
    AudioReady,
    CacheMissed,
    ChunkReady,
    Detected,
    Disconnected,
    EngineFailed,
    EngineWarning,
    Event,
    FinalizeDone,
    GenerateDone,
    Opened,
    Prefetched,
    PrefillDone,
    Received,
    Rejected,
    Segment,
    ShuttingDown,
    StepDone,
    StopRequested,
    TimerFired,
    TimerName,
    TurnFailed,
)
from core.protocols.half_duplex import HalfDuplexLimits
from core.protocols.machine import SessionIds
from core.protocols.tables import Row
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.streaming import StreamingChunk
from tests.fakes.scenes import CHAT, DUPLEX, HALF_DUPLEX, STREAMING, Scene, audio

NAMES = SessionIds("id_1")
FAILURE = GenerationFailedError()
SEGMENT = Segment(bytes(64))
SOUND = audio(20)

# Events that may end the work of each effect, as in its docstring.
ENDS: dict[type[Any], tuple[Event, ...]] = {
    Prefill: (
        PrefillDone(),
        PrefillDone(kv_tokens=10),
        PrefillDone(kv_tokens=9_000),
        CacheMissed(),
        TurnFailed(FAILURE, can_rollback=True),
        EngineFailed(FAILURE),
    ),
    Step: (
        StepDone(DuplexGenerateResult(is_listen=True, kv_cache_length=10)),
        StepDone(DuplexGenerateResult(is_listen=False, text="a", kv_cache_length=8_000)),
        StepDone(DuplexGenerateResult(is_listen=False, end_of_turn=True, kv_cache_length=9_000)),
        EngineFailed(FAILURE),
    ),
    Finalize: (
        FinalizeDone(),
        FinalizeDone(kv_tokens=20),
        FinalizeDone(kv_tokens=9_000),
        EngineFailed(FAILURE),
    ),
    Generate: (
        GenerateDone("a", kv_tokens=20),
        GenerateDone("a", stopped=True, kv_tokens=9_000),
        TurnFailed(FAILURE, can_rollback=True),
        TurnFailed(FAILURE, can_rollback=False),
        EngineFailed(FAILURE),
    ),
}
HEARD: tuple[Event, ...] = (
    Detected(),
    Detected((SpeechStarted(0),)),
    Detected((SpeechStarted(0), SEGMENT)),
    Detected((SpeechStarted(0), SpeechDiscarded(0, 1), SpeechStarted(2), SEGMENT, SEGMENT)),
)
OUTSIDE: tuple[Event, ...] = (
    StopRequested(),
    Rejected(UnknownTypeError()),
    Rejected(AudioError()),
    EngineWarning(UnknownTypeError()),
    ShuttingDown(),
    Disconnected(),
    *(TimerFired(name) for name in TimerName),
)


class Engine:
    """Tracks requested work, and fails if it overlaps."""

    def __init__(self) -> None:
        self.work: Any = None
        self.is_detecting = False
        self.is_prefetching = False

    def ask(self, effects: Sequence[Any]) -> None:
        for effect in effects:
            if type(effect) in ENDS:
                assert self.work is None, f"{label(effect)} while {label(self.work)} runs"
                self.work = effect
            elif label(effect) == "Detect":
                assert not self.is_detecting
                self.is_detecting = True
            elif label(effect) == "Prefetch":
                assert not self.is_prefetching
                self.is_prefetching = True

    def ends(self) -> list[Event]:
        found = list(ENDS[type(self.work)]) if self.work is not None else []
        if isinstance(self.work, Prefill) and self.work.message.type != "prefill":  # no turn's
            found = [each for each in found if not isinstance(each, CacheMissed | TurnFailed)]
        return found

    def answers(self) -> list[Event]:
        found = self.ends()
        if isinstance(self.work, Generate):
            found.append(ChunkReady(StreamingChunk(chunk_index=0, audio_data=SOUND)))
        if isinstance(self.work, Step):
            found.append(AudioReady(bytes(20)))
        if self.is_prefetching:
            found.append(Prefetched())
        return found + (list(HEARD) if self.is_detecting else [])

    def said(self, event: Event) -> None:
        if isinstance(event, Detected):
            self.is_detecting = False
        elif isinstance(event, Prefetched):
            self.is_prefetching = False
        elif self.work is not None and event in ENDS[type(self.work)]:
            self.work = None


@dataclass(frozen=True)
class Protocol:
    """A machine, its table, and its client messages."""

    build: Callable[[], Any]
    table: Sequence[Row]
    adapter: TypeAdapter[Any]
    messages: tuple[dict[str, Any], ...]
    paths: dict[str, tuple[dict[str, Any] | Event, ...]]  # a path to each phase

    def lead_to(self, phase: str) -> tuple[Scene, Engine]:
        scene, engine = self.scene(), Engine()
        for step in (Opened(), *self.paths[phase]):
            if isinstance(step, Event):
                engine.said(step)
                scene.tell(step)
            else:
                scene.say(**step)
            engine.ask(scene.effects)
        assert scene.machine.phase == phase.split("/")[0]
        return scene, engine

    def scene(self) -> Scene:
        return Scene(self.build(), self.table, self.adapter)

    def said(self) -> list[Event]:
        return [Received(self.adapter.validate_python(message)) for message in self.messages]


def say(message_type: str, **fields: Any) -> dict[str, Any]:
    return {"message_type": message_type, **fields}


COMMANDS = tuple({"type": name} for name in ("stop", "heartbeat"))
LIVE_COMMANDS = (*COMMANDS, {"type": "interrupt"})
PREPARED = (say("prepare"), PrefillDone())
CHUNK = say("audio_chunk", audio=SOUND)
LISTENED = StepDone(DuplexGenerateResult(is_listen=True, kv_cache_length=10))
HEARING = (*PREPARED, say("audio_chunk", audio=audio(600)))
QUESTION = {"messages": [{"role": "user", "content": "a"}]}
USER_TURN, ASKED = say("prefill", **QUESTION), say("chat", **QUESTION)
PROTOCOLS = {
    "duplex": Protocol(
        lambda: duplex.DuplexMachine(NAMES, DuplexLimits(max_session_s=9.0)),
        duplex.TABLE,
        DUPLEX,
        (
            *LIVE_COMMANDS,
            {"type": "prepare"},
            {"type": "prepare", "deferred_finalize": False, "barge_in": {}},
            {"type": "audio_chunk", "audio": SOUND},
            {"type": "audio_chunk", "audio": SOUND, "frame_base64_list": ["a"] * 6},
            {"type": "video_frame", "frame": "a"},
            {"type": "video_frame", "frame": "b"},
            {"type": "pause"},
            {"type": "resume"},
            {"type": "client_diagnostic"},
        ),
        {
            "waiting": (),
            "preparing": (say("prepare"),),
            "active": PREPARED,
            "active/stepping": (*PREPARED, CHUNK, CHUNK),
            "active/finalizing": (*PREPARED, CHUNK, LISTENED),
            "active/frame": (
                *PREPARED,
                CHUNK,
                say("video_frame", frame="a"),
                LISTENED,
                FinalizeDone(),
                CHUNK,
            ),
            "active/looking": (*PREPARED, say("video_frame", frame="a")),
            "paused": (*PREPARED, say("pause")),
            "paused/looking": (*PREPARED, say("video_frame", frame="a"), say("pause")),
            "paused/stepping": (*PREPARED, CHUNK, CHUNK, say("pause")),
            "stopping/preparing": (say("prepare"), say("stop")),
            "stopping/stepping": (*PREPARED, CHUNK, say("stop")),
            "stopping/finalizing": (*PREPARED, CHUNK, LISTENED, say("stop")),
            "stopping/looking": (*PREPARED, CHUNK, say("video_frame", frame="a"), say("stop")),
        },
    ),
    "half_duplex": Protocol(
        lambda: half_duplex.HalfDuplexMachine(
            NAMES, HalfDuplexLimits(max_session_s=9.0, max_waiting_chunks=2)
        ),
        half_duplex.TABLE,
        HALF_DUPLEX,
        (
            *LIVE_COMMANDS,
            {"type": "prepare"},
            {"type": "audio_chunk", "audio": audio(400)},
        ),
        {
            "waiting": (),
            "preparing": (say("prepare"),),
            "listening": PREPARED,
            "listening/detecting": HEARING,
            "generating": (*HEARING, HEARD[2]),
            "generating/more": (*HEARING, HEARD[3]),
            "stopping/preparing": (say("prepare"), say("stop")),
            "stopping/generating": (*HEARING, HEARD[2], say("stop")),
        },
    ),
    "streaming": Protocol(
        lambda: streaming.StreamingMachine(NAMES),
        streaming.TABLE,
        STREAMING,
        (
            *COMMANDS,
            {"type": "close"},
            {"type": "prefill", **QUESTION},
            {"type": "generate"},
        ),
        {
            "open": (),
            "prefilling": (USER_TURN,),
            "prefilling/more": (USER_TURN,) * 5,
            "ready": (USER_TURN, PrefillDone()),
            "ready/missed": (USER_TURN, CacheMissed()),
            "generating": (USER_TURN, PrefillDone(), say("generate")),
            "cancelling": (USER_TURN, say("stop")),
        },
    ),
    "chat": Protocol(
        lambda: streaming.ChatMachine(NAMES),
        streaming.CHAT_TABLE,
        CHAT,
        (*COMMANDS, {"type": "chat", **QUESTION}, {"type": "chat", "streaming": False, **QUESTION}),
        {
            "waiting": (),
            "prefilling": (ASKED,),
            "generating": (ASKED, PrefillDone()),
            "cancelling": (ASKED, say("stop")),
        },
    ),
}
