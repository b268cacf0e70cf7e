"""What `meta.json`, `recording.json` and the timeline, `events.jsonl`, hold, field by field.

The timeline gets a line for each thing that happens, as it happens; no line ever changes. All that
`recording.json` says follows from these lines and from which media files are whole, so a recording
can be read whatever byte its process died at. What is absent is left out of the file.
Source: docs/specification/service.md#5.2 to #5.4; fields it does not name say so.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from core.schemas.limits import MIB
from core.schemas.queue import RequestType

SCHEMA_VERSION: Final = 1
LONGEST_LINE_BYTES: Final = 4 * MIB  # far above any text; longer is damage

DUPLEX_TYPES: Final = frozenset({RequestType.AUDIO_DUPLEX, RequestType.OMNI_DUPLEX})


Seconds = Annotated[float, AfterValidator(lambda value: round(value, 1))]
Milliseconds = Seconds
# Any: a snapshot of settings, whose names belong to the protocol it comes from.
Settings = dict[str, Any]


class Record(BaseModel):
    """Base of everything in a recording: frozen, what is unknown ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    def to_json(self, indent: int | None = None) -> str:
        return self.model_dump_json(indent=indent, exclude_none=True)


class Status(StrEnum):
    """How far a recording has come."""

    RECORDING = "recording"
    FINALIZING = "finalizing"
    READY = "ready"
    FAILED = "failed"  # it was cut off before there was anything to show


OVER: Final = frozenset({Status.READY, Status.FAILED})


class EndReason(StrEnum):
    STOPPED = "stopped"
    TIMEOUT = "timeout"
    DISCONNECT = "disconnect"
    ERROR = "error"
    CONTEXT_FULL = "context_full"


class Meta(Record):
    """`meta.json`: what a list of recordings shows."""

    schema_version: int = Field(SCHEMA_VERSION, description="Version of this layout.")
    session_id: str = Field(description="The recording's id and the name of its folder.")
    app_type: RequestType = Field(description="Which kind of conversation it was.")
    created_at: AwareDatetime = Field(description="When it started, UTC.")
    ended_at: AwareDatetime | None = Field(None, description="When it ended, UTC.")
    duration_s: Seconds | None = Field(None, description="How long it lasted, s.")
    worker_id: str = Field("", description="Which worker it ran on.")
    title: str = Field("", description="A neutral name: month, day and time of its start.")
    config: Settings = Field(default_factory=dict, description="Its settings, without any sound.")
    end_reason: EndReason | None = Field(None, description="Why it ended.")
    status: Status = Field(Status.RECORDING, description="How far the recording has come.")
    size_bytes: int | None = Field(None, ge=0, description="Size of what was recorded.")
    # what a reader should know about what is missing.
    problem: str | None = Field(None, description="Why the recording is not complete.")
    files_left_out: int | None = Field(None, description="Files lost because the disk was slow.")

    @property
    def is_over(self) -> bool:
        return self.status in OVER


class ChunkTiming(Record):
    prefill_ms: Milliseconds | None = None
    llm_ms: Milliseconds | None = None
    tts_prep_ms: Milliseconds | None = None
    tts_ms: Milliseconds | None = None
    token2wav_ms: Milliseconds | None = None
    all_ms: Milliseconds | None = None
    wall_clock_ms: Milliseconds | None = None
    n_tokens: int | None = None
    n_tts_tokens: int | None = None
    kv_cache_length: int | None = None
    vision_slices: int | None = None
    vision_tokens: int | None = None


class ChunkResult(Record):
    mode: Literal["LISTEN", "SPEAK"]
    timing: ChunkTiming = Field(default_factory=ChunkTiming)
    text: str | None = None
    ai_audio: str | None = None
    ai_audio_duration_ms: int | None = None
    end_of_turn: Literal[True] | None = None
    barge_in: Literal[True] | None = None  # the turn before was broken off here
    turn: int | None = None  # number of the speaking turn


class Chunk(Record):
    """One chunk the user sent, and what came of it; without a result it was never answered."""

    index: int = Field(ge=0)
    receive_ts_ms: Milliseconds | None = None  # absent when only the files are left
    user_audio: str | None = None
    user_audio_duration_ms: int | None = None
    user_frame: str | None = None
    extra_frames: tuple[str, ...] | None = None  # the chunk's further pictures
    result: ChunkResult | None = None


class TimelineEvent(Record):
    """Something that happened between chunks: pause, resume, interrupt, force_listen, warning.

    A user_transcript has the words; in a duplex session it began at `ts_ms` of the sound that was
    sent, in any other it belongs to a turn.
    """

    ts_ms: Milliseconds
    type: str
    text: str | None = None
    duration_ms: int | None = None
    turn_index: int | None = None


class TextInput(Record):
    """What the user wrote or attached in one turn."""

    text: str = ""
    images: tuple[str, ...] | None = None
    audio: str | None = None
    more_audio: tuple[str, ...] | None = None  # further pieces of sound
    videos: tuple[str, ...] | None = None
    transcript: str | None = None  # what was said in the sound


class VoiceInput(Record):
    type: Literal["voice"] = "voice"
    duration_ms: int = 0
    audio: str | None = None
    transcript: str | None = None


# The kind that more of the given fields fit; only voice has a `type`.
TurnInput = Annotated[TextInput | VoiceInput, Field(union_mode="smart")]


class TurnOutput(Record):
    text: str = ""
    audio: str | None = None
    audio_duration_ms: int | None = None


class TurnTiming(Record):
    elapsed_ms: Milliseconds | None = None
    tokens: int | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None
    total_tokens: int | None = None
    speech_input_ms: Milliseconds | None = None
    first_audio_ms: Milliseconds | None = None  # from the request to the first sound


class Turn(Record):
    """A round of a turn-based conversation; without timing it was never finished."""

    turn_index: int = Field(ge=0)
    request_ts_ms: Milliseconds | None = None  # absent when only the files are left
    input: TurnInput | None = None
    output: TurnOutput = Field(default_factory=TurnOutput)
    timing: TurnTiming = Field(default_factory=TurnTiming)
    interrupted: Literal[True] | None = None


TurnMode = Literal[RequestType.CHAT, RequestType.STREAMING, RequestType.HALF_DUPLEX_AUDIO]

ReplayTiming = Literal["session", "logical"]
"""Position of sound in a replay: on the session's clock, or unit after unit, none overlapping."""


class _Recording(Record):
    session_id: str
    worker_id: str = ""
    start_ts: AwareDatetime
    config: Settings = Field(default_factory=dict)
    events: tuple[TimelineEvent, ...] = ()
    merged_replay: str | None = None
    merged_replay_video: str | None = None
    merged_replay_subtitles: str | None = None
    merged_replay_timing: ReplayTiming | None = None


class DuplexRecording(_Recording):
    mode: Literal["duplex"] = "duplex"
    chunks: tuple[Chunk, ...] = ()

    @property
    def length(self) -> int:
        return len(self.chunks)


class TurnRecording(_Recording):
    """`recording.json` of a turn-based or half-duplex session; `mode` is its app_type."""

    mode: TurnMode
    turns: tuple[Turn, ...] = ()

    @property
    def length(self) -> int:
        return len(self.turns)


# What `recording.json` holds.
Recording = Annotated[DuplexRecording | TurnRecording, Field(discriminator="mode")]


class SessionLine(Record):
    """The first line: what is recorded."""

    line: Literal["session"] = "session"
    schema_version: int = SCHEMA_VERSION
    session_id: str
    app_type: RequestType
    worker_id: str = ""
    start_ts: AwareDatetime
    config: Settings = Field(default_factory=dict)


class ConfigLine(Record):
    """Settings learned later; they replace those of the same name."""

    line: Literal["config"] = "config"
    extra: Settings


class ChunkLine(Record):
    line: Literal["chunk"] = "chunk"
    chunk: Chunk


class EventLine(Record):
    line: Literal["event"] = "event"
    event: TimelineEvent


class TurnStartLine(Record):
    line: Literal["turn_start"] = "turn_start"
    turn_index: int = Field(ge=0)
    request_ts_ms: Milliseconds
    input: TurnInput


class TextLine(Record):
    line: Literal["text"] = "text"
    turn_index: int = Field(ge=0)
    text: str


class TurnEndLine(Record):
    line: Literal["turn_end"] = "turn_end"
    turn_index: int = Field(ge=0)
    timing: TurnTiming
    interrupted: Literal[True] | None = None
    text: str | None = None  # the whole reply, where it did not come in pieces


class EndLine(Record):
    """How the session ended; the last line, unless another turn followed."""

    line: Literal["end"] = "end"
    end_reason: EndReason
    ended_at: AwareDatetime
    duration_s: Seconds
    problem: str | None = None
    files_left_out: int | None = None


Line = (
    SessionLine
    | ConfigLine
    | ChunkLine
    | EventLine
    | TurnStartLine
    | TextLine
    | TurnEndLine
    | EndLine
)
_LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="line")])


@dataclass
class Timeline:
    """All readable lines of one session, sorted by kind."""

    session: SessionLine | None = None
    config: Settings = field(default_factory=dict)
    chunks: dict[int, Chunk] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)
    starts: dict[int, TurnStartLine] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    ends: dict[int, TurnEndLine] = field(default_factory=dict)
    end: EndLine | None = None

    def add(self, line: Line) -> None:
        """Add the next line; of two about the same thing the later counts."""
        match line:
            case SessionLine():
                self.session = line
                self.config |= line.config
            case ConfigLine():
                self.config |= line.extra
            case ChunkLine():
                self.chunks[line.chunk.index] = line.chunk
            case EventLine():
                self.events.append(line.event)
            case TurnStartLine():
                self.starts[line.turn_index] = line
                self.end = None  # the session continued after all
            case TextLine():
                self.texts.setdefault(line.turn_index, []).append(line.text)
            case TurnEndLine():
                self.ends[line.turn_index] = line
            case EndLine():
                self.end = line

    def complete_from(self, recording: Recording) -> None:
        """Fill in from an earlier `recording.json` what lines no longer say."""
        self.events = self.events or list(recording.events)
        if isinstance(recording, DuplexRecording):
            self.chunks = {chunk.index: chunk for chunk in recording.chunks} | self.chunks
            return
        for turn in recording.turns:
            index = turn.turn_index
            if index not in self.starts and turn.input and turn.request_ts_ms is not None:
                self.starts[index] = TurnStartLine(
                    turn_index=index, request_ts_ms=turn.request_ts_ms, input=turn.input
                )
            if index not in self.ends and len(turn.output.text) >= len(self.reply(index)):
                self.ends[index] = TurnEndLine(
                    turn_index=index,
                    timing=turn.timing,
                    interrupted=turn.interrupted,
                    text=turn.output.text,
                )

    def reply(self, turn_index: int) -> str:
        """Return the model's reply in a turn, as far as it is known."""
        end = self.ends.get(turn_index)
        if end is not None and end.text is not None:
            return end.text
        return "".join(self.texts.get(turn_index, ()))


def encode_line(line: Line) -> bytes:
    return line.to_json().encode() + b"\n"


def read_timeline(path: Path) -> Timeline:
    """Read all readable lines; a torn or damaged one is skipped."""
    timeline = Timeline()
    with suppress(FileNotFoundError), path.open("rb") as file:
        while raw := file.readline(LONGEST_LINE_BYTES):
            with suppress(ValidationError):
                timeline.add(_LINE.validate_json(raw))
    return timeline
