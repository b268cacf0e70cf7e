"""Effects a machine may request: frozen values, carried out in order.

`Prefill`, `Step`, `Finalize`, `Generate`, `Detect`, `ScoreSpeech`, `Transcribe` and `Prefetch` each
end in exactly one event. Engine work is requested one at a time, and so is each of the others but
`Transcribe`. What else a session's handler carries out ends in no event unless it fails.
"""

from __future__ import annotations

from dataclasses import field

from core.errors import CloseCode
from core.protocols.events import Frozen, Segment, TimerName
from core.protocols.openai_events import ServerEvent
from core.protocols.realtime_session import TurnRequest
from core.schemas import chat, duplex, half_duplex, streaming
from core.schemas.realtime_session import AudioFormat, Transcription

ServerMessage = (
    streaming.WorkerServerMessage
    | half_duplex.ServerMessage
    | duplex.ServerMessage
    | chat.ServerMessage
    | ServerEvent
)
"""Any message to a client."""


# --- carried out by the loop ---


class Send(Frozen):
    message: ServerMessage


class StartTimer(Frozen):
    """Emit `TimerFired(name)` after `delay_s`; a running timer of this name restarts."""

    name: TimerName
    delay_s: float


class StopTimer(Frozen):
    """Stop a timer, if it runs. The end of the machine stops all."""

    name: TimerName


class Close(Frozen):
    """Close the socket; nothing follows."""

    code: CloseCode = CloseCode.NORMAL
    reason: str = ""


# --- carried out by the session's handler ---


class Frame(Frozen):
    """A picture of a duplex session; only its number is compared."""

    number: int  # order of arrival within the session
    data: str = field(compare=False, repr=False)  # Base64
    # Sent as a message of its own, not inside a chunk.
    is_separate: bool = field(default=True, compare=False)


class Prefill(Frozen):
    """Feed the system prompt or the messages of a turn; takes a slot if none is held.

    Ends in `PrefillDone`, `CacheMissed`, `TurnFailed` or `EngineFailed`.
    """

    message: streaming.WorkerPrefill | half_duplex.Prepare | duplex.Prepare | chat.ChatSocketRequest
    # The first of its turn; `Rollback` returns to the state before it.
    is_first: bool = True


class Step(Frozen):
    """Run one unit: the model listens or speaks. Ends in `StepDone` or `EngineFailed`.

    Any number of `AudioReady` may precede it if the client requested early audio.
    """

    chunk: duplex.AudioChunk
    frames: tuple[Frame, ...]  # oldest first
    index: int  # number of the unit, from 0
    due_s: float  # earliest end of the next unit's input, on the events' clock
    start_samples: int = 0  # of the chunk, in the sent audio
    must_speak: bool = False  # overrides the client's wish
    client_format: AudioFormat | None = None  # OpenAI protocols: format of the audio to the client


class Prefetch(Frozen):
    """Encode pictures ahead of their unit, concurrently with other work. Ends in `Prefetched`.

    The `Step` uses the encoded pictures and reports problems with them.
    """

    frames: tuple[Frame, ...]  # pictures to encode, oldest first
    dropped: tuple[Frame, ...] = ()  # requested earlier, no longer needed


class Finalize(Frozen):
    """Close the unit in the cache. Ends in `FinalizeDone` or `EngineFailed`."""


class Generate(Frozen):
    """Generate a reply to the prefilled messages, or to a segment, which is prefilled first.

    Ends, after any number of `ChunkReady`, in `GenerateDone`, `TurnFailed` or `EngineFailed`.
    """

    # Streaming: the client's message with defaults filled in; half duplex: the user's speech, which
    # `Rollback` removes too; chat: the request again; Realtime: the conversation and settings.
    request: streaming.Generate | Segment | chat.ChatSocketRequest | TurnRequest
    turn_index: int = 0  # half duplex: number of the turn


class Rollback(Frozen):
    """Return to the state before the turn; if it is no longer held, drop the conversation."""


class Retain(Frozen):
    """End the turn: retain the conversation for the next one and release the slot."""


class Interrupt(Frozen):
    """Immediately, from the loop: cut short the running prefill or reply; in duplex, listen next.

    Work requested later is unaffected. The work may have ended meanwhile.
    """


class Cancel(Frozen):
    """Immediately, from the loop: end running work at its next forward pass; `Release` follows."""


class Detect(Frozen):
    """Run voice activity detection on the next audio of the stream. Ends in `Detected`."""

    samples: bytes = field(repr=False)  # little-endian float32, mono, 16 kHz


class ScoreSpeech(Frozen):
    """Compute speech probabilities of the next audio of the stream. Ends in `SpeechScored`."""

    pcm: bytes = field(repr=False)  # whole samples
    format: AudioFormat  # a different one than before begins a new stream


class Transcribe(Frozen):
    """Transcribe the audio of an item concurrently. Ends in `ItemTranscribed`."""

    item_id: str
    pcm: bytes = field(repr=False)  # whole samples
    format: AudioFormat
    wanted: Transcription  # language and prompt from the client


class ResetDetector(Frozen):
    """Reset voice activity detection."""


class Release(Frozen):
    """Once per machine: free the session's resources after running work has ended."""


SocketEffect = Send | StartTimer | StopTimer | Close
DetectorEffect = Detect | ResetDetector | ScoreSpeech
WorkEffect = Prefill | Step | Finalize | Generate | Rollback | Retain
ConcurrentEffect = DetectorEffect | Transcribe | Prefetch
Effect = SocketEffect | WorkEffect | ConcurrentEffect | Interrupt | Cancel | Release
"""All effects of a machine."""


def label(effect: Effect) -> str:
    """Return the effect's name in the transition tables: `Send(result)`, `Step`, …."""
    match effect:
        case Send(message):
            return f"Send({message.type})"
        case StartTimer(name) | StopTimer(name):
            return f"{type(effect).__name__}({name})"
        case _:
            return type(effect).__name__
