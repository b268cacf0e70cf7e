"""What a machine handles: client messages, engine results, timers, the end of the socket.

Plain frozen values. `at_s` is when the loop took the event in, on its monotonic clock; a machine
compares such times and never reads a clock. `kind` is the event's word in the transition tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from typing import ClassVar, Final

from core.endpointing import SpeechDiscarded, SpeechStarted, SpeechSuspected
from core.errors import OmniError
from core.schemas import chat, duplex, gpt_live, half_duplex, realtime, streaming
from core.schemas.common import TokenStats
from core.schemas.duplex_calls import DuplexGenerateResult
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.streaming import StreamingChunk

MS_PER_S: Final = 1_000

ClientMessage = (
    streaming.WorkerClientMessage
    | half_duplex.ClientMessage
    | duplex.ClientMessage
    | chat.ClientMessage
    | gpt_live.ClientMessage
    | realtime.ClientEvent
)
"""Anything a worker accepts on one of its sockets."""


class TimerName(StrEnum):
    """The timers a machine may run; starting a running one restarts it."""

    PREPARE = "prepare"  # the client must say something to begin
    IDLE = "idle"  # the client must continue
    PAUSE = "pause"  # a pause may not last longer
    SESSION = "session"  # nor the whole session
    FRAME = "frame"  # a chunk waits so long for its picture
    STOPPING = "stopping"  # and the end for a running step
    PACE = "pace"  # the next piece of audio is due
    QUEUE_UPDATE = "queue_update"  # the client is sent how long it still waits
    WAIT = "wait"  # the client waits no longer for a worker
    ANSWER = "answer"  # the model speaks by then


@dataclass(frozen=True, slots=True)
class Event:
    """Base of everything a machine handles.

    The word of an event in the transition tables is the name of its class, in snake case.
    """

    KIND: ClassVar[str] = "event"
    at_s: float = field(default=0.0, kw_only=True)

    def __init_subclass__(cls) -> None:
        cls.KIND = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    kind = property(attrgetter("KIND"))


@dataclass(frozen=True, slots=True)
class Opened(Event):
    """The client's socket is accepted; always the first event."""


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A valid message of the client; its kind is the message's type."""

    message: ClientMessage
    size_bytes: int = field(default=0, kw_only=True)

    kind = property(attrgetter("message.type"))


@dataclass(frozen=True, slots=True)
class Rejected(Event):
    """Something of the client that cannot be understood or is too big."""

    error: OmniError


@dataclass(frozen=True, slots=True)
class Disconnected(Event):
    """The socket is gone; nothing can be sent any more."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class ClientAway(Event):
    """The socket broke, and another one may take its place; or one did."""

    is_away: bool = True


@dataclass(frozen=True, slots=True)
class TimerFired(Event):
    """A timer ran out; its kind is `<name>_timer`."""

    name: TimerName

    @property
    def kind(self) -> str:
        return self.name + "_timer"


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """A request over HTTP asks to stop what is going on."""


@dataclass(frozen=True, slots=True)
class ShuttingDown(Event):
    """The program ends and waits no longer."""


@dataclass(frozen=True, slots=True)
class EngineFailed(Event):
    """The engine cannot continue with this session."""

    error: OmniError


@dataclass(frozen=True, slots=True)
class EngineWarning(Event):
    """The engine left something out and continues: an undecodable picture, say."""

    problem: OmniError


@dataclass(frozen=True, slots=True)
class PrefillDone(Event):
    """The system prompt or the messages are in the KV cache: ends `Prefill`."""

    cached_tokens: int = 0
    input_tokens: int = 0
    message_count: int = 0
    prompt_length: int = 0  # characters
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheMissed(Event):
    """The cache does not hold the expected history; nothing was fed: ends `Prefill` too."""


@dataclass(frozen=True, slots=True)
class AudioReady(Event):
    """The beginning of a unit's audio; any number of them come before `StepDone`."""

    pcm: bytes  # little-endian float32 at 24 kHz; what follows is in the unit's result
    client_audio: bytes = field(default=b"", repr=False)  # in `Step.client_format`


@dataclass(frozen=True, slots=True)
class StepDone(Event):
    """The model listened or spoke for one unit: ends `Step`."""

    # What the view returned; the machine fills in `current_time` itself.
    result: DuplexGenerateResult
    prefill_ms: float = 0.0  # time to encode the unit's audio and pictures
    kv_tokens: int = 0  # tokens in the KV cache
    vision_slices: int = 0
    vision_tokens: int = 0
    was_fed: bool = True  # False when there was too little audio and the model was not asked
    # The result's audio in `Step.client_format`.
    client_audio: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class FinalizeDone(Event):
    """The unit is closed in the cache: ends `Finalize`."""

    finalize_ms: float = 0.0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """What the user said between two endpoints."""

    # Float32 little-endian, mono, 16 kHz, padding included; may be empty where only the fact
    # counts.
    pcm: bytes = field(repr=False)
    start_samples: int = 0  # position in the stream
    speech_samples: int = 0  # length without padding

    @property
    def duration_ms(self) -> int:
        return len(self.pcm) // SAMPLE_BYTES * MS_PER_S // INPUT_SAMPLE_RATE_HZ


SpeechEvent = SpeechSuspected | SpeechStarted | Segment | SpeechDiscarded


@dataclass(frozen=True, slots=True)
class Detected(Event):
    """What voice activity detection found in one chunk, oldest first: ends `Detect`."""

    speech_events: tuple[SpeechEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Transcribed(Event):
    """A segment was written down, or why not; comes beside everything else."""

    segment: Segment
    text: str = ""
    language: str = ""
    problem: OmniError | None = None
    turn_index: int | None = None


@dataclass(frozen=True, slots=True)
class ItemTranscribed(Event):
    """The audio of an item was written down, or why not: ends `Transcribe`, after any time."""

    item_id: str
    text: str = ""
    problem: OmniError | None = None


@dataclass(frozen=True, slots=True)
class SpeechScored(Event):
    """How likely each window that followed holds speech, oldest first: ends `ScoreSpeech`."""

    probabilities: tuple[float, ...] = field(default=(), repr=False)
    # The audio as it is fed to the model: little-endian float32, mono, 16 kHz.
    samples: bytes = field(default=b"", repr=False)
    # Power of each 4 ms from the first of these windows on, the beginning of the window that is not
    # complete yet included; nothing where nobody needs it.
    levels: tuple[float, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Prefetched(Event):
    """The pictures were encoded, as far as a unit still needs them: ends `Prefetch`."""


@dataclass(frozen=True, slots=True)
class ChunkReady(Event):
    """A piece of the reply; any number of them come before `GenerateDone`."""

    chunk: StreamingChunk
    client_audio: bytes = field(default=b"", repr=False)  # Realtime: in the client's format


@dataclass(frozen=True, slots=True)
class GenerateDone(Event):
    """The reply is complete or was cut short, and closed in the cache: ends `Generate`."""

    text: str = ""
    stopped: bool = False  # it was cut short by `Interrupt` or `Cancel`
    token_stats: TokenStats = field(default_factory=TokenStats)  # what the turn cost
    kv_tokens: int = 0  # tokens in the KV cache


@dataclass(frozen=True, slots=True)
class TurnFailed(Event):
    """The turn broke; the session may live on: ends `Generate` or a turn's `Prefill`."""

    error: OmniError
    can_rollback: bool = False


# What follows is for the gateway's queueing machine alone.


@dataclass(frozen=True, slots=True)
class RawMessage(Event):
    """A message of the client as it came; its kind is its type, or "other"."""

    message_type: str
    text: str = field(repr=False)

    kind = property(attrgetter("message_type"))


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """Where a request stands in the queue."""

    ticket_id: str
    position: int
    estimated_wait_s: float
    queue_length: int
    return_ticket: str = ""


@dataclass(frozen=True, slots=True)
class Enqueued(Event):
    """No worker is free: the request waits."""

    position: QueuePosition


@dataclass(frozen=True, slots=True)
class PositionChanged(Enqueued):
    """The position or the estimate changed, or was asked for."""


@dataclass(frozen=True, slots=True)
class QueueRefused(Event):
    """The queue is full, there is no worker, or the place was cancelled."""

    error: OmniError


@dataclass(frozen=True, slots=True)
class Assigned(Event):
    """A worker is ours until it is released."""

    worker_id: str
    is_resumed: bool = False  # it has kept the session that continues


@dataclass(frozen=True, slots=True)
class WorkerConnected(Event):
    """The socket to the worker is open."""


@dataclass(frozen=True, slots=True)
class WorkerUnreachable(Event):
    """The worker cannot be reached, and there is another one; `order` was the request's place."""

    error: OmniError
    order: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerFailed(Event):
    """The worker cannot be reached, or its socket broke before it said its last word."""

    error: OmniError


@dataclass(frozen=True, slots=True)
class WorkerClosed(Event):
    """The worker closed its socket after its last word, which was passed on."""

    code: int = 1000
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TurnEnded(Event):
    """The worker's `done` was passed on; the next turn queues again (streaming only)."""
