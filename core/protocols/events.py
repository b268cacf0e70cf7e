"""Events a machine handles: client messages, engine results, timers, the end of the socket.

Frozen values. `at_s` is when the loop received the event, on its monotonic clock; machines compare
such times and never read a clock. `kind` is the event's name in the transition tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar, Generic, TypeVar, dataclass_transform

from core.endpointing import SpeechDiscarded, SpeechStarted, SpeechSuspected
from core.errors import OmniError
from core.schemas import chat, duplex, gpt_live, half_duplex, realtime, streaming
from core.schemas.common import MS_PER_S as MS_PER_S  # for the other protocols
from core.schemas.common import TokenStats
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.streaming import StreamingChunk, WorkerPrefill

ClientMessage = (
    streaming.WorkerClientMessage
    | half_duplex.ClientMessage
    | duplex.ClientMessage
    | chat.ClientMessage
    | gpt_live.ClientMessage
    | realtime.ClientEvent
)
"""Any client message of a worker's sockets."""
MessageT = TypeVar("MessageT", bound=ClientMessage, covariant=True)


class TimerName(StrEnum):
    """Timers of the machines; starting a running one restarts it."""

    PREPARE = "prepare"  # time to send the first message
    IDLE = "idle"  # time without input
    PAUSE = "pause"  # longest pause
    SESSION = "session"  # longest session
    FRAME = "frame"  # time a chunk waits for its picture
    STOPPING = "stopping"  # time `stop` waits for a running step
    PACE = "pace"  # the next piece of audio is due
    ANSWER = "answer"  # the model speaks by then


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Frozen:
    """Base of events and effects, whose subclasses are frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)


class Event(Frozen):
    """Base of all events; `KIND` is the class name in snake case."""

    KIND: ClassVar[str] = "event"
    at_s: float = field(default=0.0, kw_only=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.KIND = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    kind = property(attrgetter("KIND"))


class Opened(Event):
    """The client's socket was accepted; always the first event."""


class Received(Generic[MessageT], Event):
    """A valid message of the client; its kind is the message's type."""

    message: MessageT
    size_bytes: int = field(default=0, kw_only=True)

    kind = property(attrgetter("message.type"))


class Failure(Event):
    """Base of the events that carry an error."""

    error: OmniError


class Rejected(Failure):
    """A client message that cannot be parsed or is too big."""


class Disconnected(Event):
    """The socket is closed; nothing can be sent."""

    reason: str = ""


class ClientAway(Event):
    """A resumable session lost its socket, or continues over another one."""

    is_away: bool = True


class TimerFired(Event):
    """A timer fired; its kind is `<name>_timer`."""

    name: TimerName

    @property
    def kind(self) -> str:
        return self.name + "_timer"


class StopRequested(Event):
    """An HTTP request stops the current reply or session."""


class ShuttingDown(Event):
    """The process is about to exit."""


class EngineFailed(Failure):
    """The engine cannot continue with this session."""


class EngineWarning(Event):
    """The engine skipped something and continues, for example an undecodable picture."""

    problem: OmniError


class PrefillDone(Event):
    """End of `Prefill`: the system prompt or the messages are in the KV cache."""

    cached_tokens: int = 0
    input_tokens: int = 0
    message_count: int = 0
    prompt_length: int = 0  # characters
    kv_tokens: int = 0


class CacheMissed(Event):
    """End of `Prefill`: the cache does not hold the expected history; nothing was fed."""


class AudioReady(Event):
    """Part of a unit's audio; any number of these precede `StepDone`."""

    pcm: bytes  # little-endian float32 at 24 kHz; the rest is in the unit's result
    client_audio: bytes = field(default=b"", repr=False)  # in `Step.client_format`


class StepDone(Event):
    """End of `Step`: the model listened or spoke for one unit."""

    # As returned by the view; the machine fills in `current_time`.
    result: DuplexGenerateResult
    was_fed: bool = True  # False if there was too little audio to run the model
    # The result's audio in `Step.client_format`.
    client_audio: bytes = field(default=b"", repr=False)


class FinalizeDone(Event):
    """End of `Finalize`: the unit is closed in the cache."""

    finalize_ms: float = 0.0
    kv_tokens: int = 0


class Segment(Frozen):
    """The user's speech between two endpoints."""

    # Little-endian float32, mono, 16 kHz, padding included; may be empty where only the event
    # matters.
    pcm: bytes = field(repr=False)
    start_samples: int = 0  # position in the stream

    @property
    def end_samples(self) -> int:
        return self.start_samples + len(self.pcm) // SAMPLE_BYTES

    @property
    def duration_ms(self) -> int:
        return len(self.pcm) // SAMPLE_BYTES * MS_PER_S // INPUT_SAMPLE_RATE_HZ


SpeechEvent = SpeechSuspected | SpeechStarted | Segment | SpeechDiscarded


class Detected(Event):
    """End of `Detect`: speech events of one chunk, oldest first."""

    speech_events: tuple[SpeechEvent, ...] = ()


class Transcribed(Event):
    """The transcript of a segment, or why there is none; arrives at any time."""

    segment: Segment
    text: str = ""
    language: str = ""
    problem: OmniError | None = None
    turn_index: int | None = None
    # Streaming: the message with the speech; compared by identity.
    prefill: WorkerPrefill | None = field(default=None, repr=False)


class ItemTranscribed(Event):
    """End of `Transcribe`, at any time: the transcript of an item, or why there is none."""

    item_id: str
    text: str = ""
    problem: OmniError | None = None


class SpeechScored(Event):
    """End of `ScoreSpeech`: speech probability of each completed window, oldest first."""

    probabilities: tuple[float, ...] = field(default=(), repr=False)
    # The audio as model input: little-endian float32, mono, 16 kHz.
    samples: bytes = field(default=b"", repr=False)
    # Power of each 4 ms from the first of these windows on, the incomplete window included; empty
    # where it is not needed.
    levels: tuple[float, ...] = field(default=(), repr=False)


class Prefetched(Event):
    """End of `Prefetch`: the pictures that a unit still needs are encoded."""


class ChunkReady(Event):
    """A chunk of the reply; any number of these precede `GenerateDone`."""

    chunk: StreamingChunk
    client_audio: bytes = field(default=b"", repr=False)  # Realtime: in the client's format


class GenerateDone(Event):
    """End of `Generate`: the reply is complete or was cut short, and is closed in the cache."""

    text: str = ""
    stopped: bool = False  # cut short by `Interrupt` or `Cancel`
    token_stats: TokenStats = field(default_factory=TokenStats)  # of the whole turn
    kv_tokens: int = 0  # tokens in the KV cache


class TurnFailed(Failure):
    """End of `Generate` or of a turn's `Prefill`: the turn failed; the session may continue."""

    can_rollback: bool = False
