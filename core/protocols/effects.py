"""What a machine may ask for; plain frozen values, carried out in the order given.

`Prefill`, `Step`, `Finalize`, `Generate`, `Detect` and `Prefetch` each end in exactly one event;
the machine asks for the next one of its kind only after it, and for engine work one at a time.
The others end in none unless they fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.errors import CloseCode
from core.protocols.events import Segment, TimerName
from core.protocols.openai_events import OutputAudioDelta, RealtimeEvent, ServerEvent
from core.protocols.realtime_session import TurnRequest
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.queue import RequestType
from core.schemas.realtime_session import AudioFormat, Transcription

ServerMessage = (
    streaming.WorkerServerMessage
    | half_duplex.ServerMessage
    | duplex.ServerMessage
    | chat.ServerMessage
    | ServerEvent
    | OutputAudioDelta
)
"""Anything a machine may send to its client."""

PrefillMessage = (
    streaming.WorkerPrefill | half_duplex.Prepare | duplex.Prepare | chat.ChatSocketRequest
)


# --- carried out by the loop ---


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the client."""

    message: ServerMessage


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Post `TimerFired(name)` after `delay_s`; a running timer of this name starts anew."""

    name: TimerName
    delay_s: float


@dataclass(frozen=True, slots=True)
class StopTimer:
    """Forget a timer; harmless when it does not run. The end of the machine stops all."""

    name: TimerName


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket; nothing follows."""

    code: CloseCode = CloseCode.NORMAL
    reason: str = ""


# --- carried out by the session's handler ---


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture of a duplex session, identified by its number: its data is never compared."""

    number: int  # counts the session's pictures in the order in which they arrive
    data: str = field(compare=False, repr=False)  # the picture in Base64
    # It was sent as a message of its own, not inside a chunk.
    is_separate: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class Prefill:
    """Feed the system prompt or the messages of a turn; takes a slot if none is held.

    Ends in `PrefillDone`, `CacheMissed`, `TurnFailed` or `EngineFailed`.
    """

    message: PrefillMessage
    # The first of its turn: the point that `Rollback` returns to lies before it.
    is_first: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """Feed one unit and let the model listen or speak. Ends in `StepDone` or `EngineFailed`.

    Any number of `AudioReady` may come before, if the client asked for early audio.
    """

    chunk: duplex.AudioChunk
    frames: tuple[Frame, ...]  # oldest first
    index: int  # number of the unit, from 0
    due_s: float  # when the next unit's input may be complete, on the events' clock
    must_speak: bool = False  # whatever the client asks for
    client_format: AudioFormat | None = None  # OpenAI protocols: format of the audio to the client


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prepare pictures that wait for their unit, beside other work. Ends in `Prefetched`.

    A `Step` uses what was made of its pictures; problems with them are reported there.
    """

    frames: tuple[Frame, ...]  # pictures to encode, oldest first
    dropped: tuple[Frame, ...] = ()  # pictures asked for earlier that no unit will need


@dataclass(frozen=True, slots=True)
class Finalize:
    """Close the unit in the cache. Ends in `FinalizeDone` or `EngineFailed`."""


@dataclass(frozen=True, slots=True)
class Generate:
    """Make a reply: to what was prefilled, or to a segment, which is prefilled first.

    Ends, after any number of `ChunkReady`, in `GenerateDone`, `TurnFailed` or `EngineFailed`.
    """

    # Streaming: the client's message, its defaults filled in; half-duplex: what the user said;
    # chat: the request again; realtime: all that the reply depends on. With a segment the point
    # that `Rollback` returns to lies before it.
    request: streaming.Generate | Segment | chat.ChatSocketRequest | TurnRequest
    turn_index: int = 0  # number of the turn, from 0


@dataclass(frozen=True, slots=True)
class Rollback:
    """Back to the point before the turn; if there is none any more, forget everything."""


@dataclass(frozen=True, slots=True)
class Retain:
    """The turn is over: keep the conversation for the next one and give the slot back."""


@dataclass(frozen=True, slots=True)
class Interrupt:
    """At once, from the loop: cut the running prefill or reply short; in duplex, listen next.

    It concerns work under way alone: what is asked for later is not cut short by it. Work that
    has ended meanwhile is no mistake.
    """


@dataclass(frozen=True, slots=True)
class Cancel:
    """At once, from the loop: running work ends at its next forward pass; `Release` follows."""


@dataclass(frozen=True, slots=True)
class Detect:
    """Look for speech in audio that follows the last. Ends in `Detected`."""

    samples: bytes = field(repr=False)  # little-endian float32, mono, 16 kHz


@dataclass(frozen=True, slots=True)
class ScoreSpeech:
    """Score how likely audio holds speech; it follows the last. Ends in `SpeechScored`."""

    pcm: bytes = field(repr=False)  # whole samples
    format: AudioFormat  # how they are written; another one than before begins a new stream


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Write down the audio of an item beside everything else. Ends in `ItemTranscribed`."""

    item_id: str
    pcm: bytes = field(repr=False)  # whole samples
    format: AudioFormat  # how they are written
    wanted: Transcription  # what the client says of the words


@dataclass(frozen=True, slots=True)
class ResetDetector:
    """Forget the audio so far."""


@dataclass(frozen=True, slots=True)
class Release:
    """Once per machine: free everything the session holds, after running work has ended."""


# --- carried out by the gateway's relay ---


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Join the queue. Ends in `Enqueued`, `Assigned` or `QueueRefused`."""

    request_type: RequestType
    # Streaming: the `prefill` whose history decides the worker.
    first_text: str | None = field(default=None, repr=False)
    order: int | None = None  # the position it has already; None is behind all others


@dataclass(frozen=True, slots=True)
class CancelTicket:
    """Leave the queue. If a worker was assigned meanwhile, `Assigned` still follows."""


@dataclass(frozen=True, slots=True)
class ReportPosition:
    """Post `PositionChanged` now."""


@dataclass(frozen=True, slots=True)
class ConnectWorker:
    """Open the socket to the worker. Ends in `WorkerConnected` or `WorkerFailed`."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Pass a held message of the client on to the worker."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StartRelay:
    """From now on copy text both ways, unread."""


@dataclass(frozen=True, slots=True)
class ReleaseWorker:
    """Once per `Assigned`: close the socket to the worker, then give the worker back."""

    # The turn or session ended as it should; otherwise what the worker holds in its cache is not
    # known.
    is_clean: bool


DetectorEffect = Detect | ResetDetector | ScoreSpeech | Transcribe
WorkEffect = Prefill | Step | Finalize | Generate | Rollback | Retain
SignalEffect = Interrupt | Cancel
Effect = (
    Send
    | StartTimer
    | StopTimer
    | Close
    | DetectorEffect
    | Prefetch
    | WorkEffect
    | SignalEffect
    | Release
)
"""Everything a worker's machine may ask for."""

QueueEffect = (
    Send
    | StartTimer
    | StopTimer
    | Close
    | Enqueue
    | CancelTicket
    | ReportPosition
    | ConnectWorker
    | Forward
    | StartRelay
    | ReleaseWorker
)
"""Everything the gateway's machine may ask for."""


def label(effect: Effect | QueueEffect) -> str:
    """Return the effect's word in the transition tables: `Send(result)`, `Step`, …."""
    match effect:
        case Send(RealtimeEvent() as event):
            return f"Send({event.family})"
        case Send(message):
            return f"Send({message.type})"
        case StartTimer(name) | StopTimer(name):
            return f"{type(effect).__name__}({name})"
        case _:
            return type(effect).__name__
