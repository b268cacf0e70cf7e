"""Schemas of `meta.json`, `recording.json`, `seal.json` and the timeline `events.jsonl`.

The timeline is append-only. `recording.json` is derived from it and from the complete media files,
so a recording is readable whenever its process died. Absent values are omitted.
Source: docs/specification/service.md#5.2 to #5.4.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
LONGEST_LINE_BYTES: Final = 4 * MIB  # far above any valid line

DUPLEX_TYPES: Final = frozenset({RequestType.AUDIO_DUPLEX, RequestType.OMNI_DUPLEX})


Seconds = Annotated[float, AfterValidator(lambda value: round(value, 1))]
Milliseconds = Seconds
# Any: a snapshot of settings, whose fields depend on the protocol.
Settings = dict[str, Any]


class Record(BaseModel):
    """Base of all records: frozen, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    def to_json(self, indent: int | None = None) -> str:
        return self.model_dump_json(indent=indent, exclude_none=True)


class Status(StrEnum):
    """Progress of a recording."""

    RECORDING = "recording"
    FINALIZING = "finalizing"
    READY = "ready"
    FAILED = "failed"  # cut off before anything was recorded


class EndReason(StrEnum):
    STOPPED = "stopped"
    TIMEOUT = "timeout"
    DISCONNECT = "disconnect"
    ERROR = "error"
    CONTEXT_FULL = "context_full"


class Meta(Record):
    """`meta.json`: metadata for lists of recordings."""

    schema_version: int = Field(SCHEMA_VERSION, description="Version of this layout.")
    session_id: str = Field(description="The recording's id, also the name of its folder.")
    app_type: RequestType = Field(description="Kind of conversation.")
    created_at: AwareDatetime = Field(description="Start, UTC.")
    ended_at: AwareDatetime | None = Field(None, description="End, UTC.")
    duration_s: Seconds | None = Field(None, description="Duration, s.")
    worker_id: str = Field("", description="Its worker.")
    title: str = Field("", description="Month, day and time of the start.")
    config: Settings = Field(
        default_factory=dict, description="Settings of the session, without audio."
    )
    end_reason: EndReason | None = Field(None, description="Why it ended.")
    status: Status = Field(Status.RECORDING, description="Progress of the recording.")
    size_bytes: int | None = Field(None, ge=0, description="Size of the recorded files.")
    problem: str | None = Field(None, description="Why the recording is incomplete.")
    files_left_out: int | None = Field(None, description="Files lost because the disk was slow.")

    @property
    def is_over(self) -> bool:
        return self.status in (Status.READY, Status.FAILED)


def title_of(created: datetime) -> str:
    return f"{created.astimezone(UTC):%m-%d %H:%M}"


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
    barge_in: Literal[True] | None = None  # the previous turn was interrupted here
    turn: int | None = None  # number of the speaking turn


class Chunk(Record):
    """A chunk of user input and its result; without a result it was never answered."""

    index: int = Field(ge=0)
    receive_ts_ms: Milliseconds | None = None  # absent if reconstructed from files
    sent_ts_ms: Milliseconds | None = None  # position in the sent audio, dropped chunks included
    user_audio: str | None = None
    user_audio_duration_ms: int | None = None
    user_frame: str | None = None
    extra_frames: tuple[str, ...] | None = None  # further pictures of the chunk
    result: ChunkResult | None = None


class TimelineEvent(Record):
    """An event between chunks: pause, resume, interrupt, force_listen, warning, user_transcript.

    A transcript has a text; in a duplex session `ts_ms` is its position in the sent audio, in other
    sessions it belongs to a turn.
    """

    ts_ms: Milliseconds
    type: str
    text: str | None = None
    duration_ms: int | None = None
    turn_index: int | None = None


class TextInput(Record):
    text: str = ""
    images: tuple[str, ...] | None = None
    audio: str | None = None
    more_audio: tuple[str, ...] | None = None  # further audio attachments
    videos: tuple[str, ...] | None = None
    transcript: str | None = None  # of the audio


class VoiceInput(Record):
    type: Literal["voice"] = "voice"
    duration_ms: int = 0
    audio: str | None = None
    transcript: str | None = None


# Resolved by the number of matching fields; only voice has a `type`.
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
    """A round of a turn-based conversation; without timing it was not finished."""

    turn_index: int = Field(ge=0)
    request_ts_ms: Milliseconds | None = None  # absent if reconstructed from files
    input: TurnInput | None = None
    output: TurnOutput = Field(default_factory=TurnOutput)
    timing: TurnTiming = Field(default_factory=TurnTiming)
    interrupted: Literal[True] | None = None


TurnMode = Literal[RequestType.CHAT, RequestType.STREAMING, RequestType.HALF_DUPLEX_AUDIO]

ReplayTiming = Literal["session", "logical"]
"""Position of audio in a replay: by the session's clock, or unit after unit without overlap."""


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


class TurnRecording(_Recording):
    """`recording.json` of a turn-based or half-duplex session; `mode` is its app_type."""

    mode: TurnMode
    turns: tuple[Turn, ...] = ()


# Content of `recording.json`.
Recording = Annotated[DuplexRecording | TurnRecording, Field(discriminator="mode")]


class SealedFile(Record):
    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Seal(Record):
    """`seal.json`: the files and metadata of a complete recording."""

    version: int = 1
    sealed_at: AwareDatetime
    worker: str = ""
    files: tuple[SealedFile, ...]
    meta: Meta


class SessionLine(Record):
    """The first line: identity of the session."""

    line: Literal["session"] = "session"
    schema_version: int = SCHEMA_VERSION
    session_id: str
    app_type: RequestType
    worker_id: str = ""
    start_ts: AwareDatetime
    config: Settings = Field(default_factory=dict)


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
    text: str | None = None  # the reply, where it was not streamed


class EndLine(Record):
    """End of the session; the last line, unless another turn follows."""

    line: Literal["end"] = "end"
    end_reason: EndReason
    ended_at: AwareDatetime
    duration_s: Seconds
    problem: str | None = None
    files_left_out: int | None = None


Line = SessionLine | ChunkLine | EventLine | TurnStartLine | TextLine | TurnEndLine | EndLine
_LINE: Final[TypeAdapter[Line]] = TypeAdapter(Annotated[Line, Field(discriminator="line")])


@dataclass
class Timeline:
    session: SessionLine | None = None
    chunks: dict[int, Chunk] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)
    starts: dict[int, TurnStartLine | Turn] = field(default_factory=dict)
    texts: dict[int, list[str]] = field(default_factory=dict)
    ends: dict[int, TurnEndLine] = field(default_factory=dict)
    end: EndLine | None = None

    def add(self, line: Line) -> None:
        """Add the next line; a later line overrides an earlier one about the same thing."""
        match line:
            case SessionLine():
                self.session = line
            case ChunkLine():
                self.chunks[line.chunk.index] = line.chunk
            case EventLine():
                self.events.append(line.event)
            case TurnStartLine():
                self.starts[line.turn_index] = line
                self.end = None  # the session continued
            case TextLine():
                self.texts.setdefault(line.turn_index, []).append(line.text)
            case TurnEndLine():
                self.ends[line.turn_index] = line
            case EndLine():
                self.end = line

    def complete_from(self, recording: Recording) -> None:
        """Restore from an earlier `recording.json` what was lost from the timeline."""
        self.events = self.events or list(recording.events)
        if isinstance(recording, DuplexRecording):
            self.chunks = {chunk.index: chunk for chunk in recording.chunks} | self.chunks
            return
        for turn in recording.turns:
            index = turn.turn_index
            if turn.input and turn.request_ts_ms is not None:
                self.starts.setdefault(index, turn)
            if index not in self.ends and len(turn.output.text) >= len(self.reply(index)):
                self.ends[index] = TurnEndLine(
                    turn_index=index,
                    timing=turn.timing,
                    interrupted=turn.interrupted,
                    text=turn.output.text,
                )

    def reply(self, turn_index: int) -> str:
        end = self.ends.get(turn_index)
        if end is not None and end.text is not None:
            return end.text
        return "".join(self.texts.get(turn_index, ()))


def encode_line(line: Line) -> bytes:
    return line.to_json().encode() + b"\n"


def read_timeline(path: Path) -> Timeline:
    """Read a timeline; torn or damaged lines are skipped."""
    timeline = Timeline()
    with suppress(FileNotFoundError), path.open("rb") as file:
        while raw := file.readline(LONGEST_LINE_BYTES):
            with suppress(ValidationError):
                timeline.add(_LINE.validate_json(raw))
    return timeline
