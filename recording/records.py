"""What `meta.json` and `recording.json` hold, field by field.

Source: docs/specification/service.md#5.2 to #5.4; fields it does not name say so. What is absent
is left out of the file.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from core.schemas.duplex import Result
from core.schemas.queue import RequestType

SCHEMA_VERSION: Final = 1

DUPLEX_TYPES: Final = frozenset({RequestType.AUDIO_DUPLEX, RequestType.OMNI_DUPLEX})


def _one_decimal(value: float) -> float:
    return round(value, 1)


Milliseconds = Annotated[float, AfterValidator(_one_decimal)]
Seconds = Annotated[float, AfterValidator(_one_decimal)]
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
    """Why a session ended."""

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
    """What one unit cost."""

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
    """What the model did in one unit."""

    mode: Literal["LISTEN", "SPEAK"]
    timing: ChunkTiming = Field(default_factory=ChunkTiming)
    text: str | None = None
    ai_audio: str | None = None
    ai_audio_duration_ms: int | None = None
    end_of_turn: Literal[True] | None = None
    barge_in: Literal[True] | None = None  # the turn before was broken off here
    turn: int | None = None  # number of the speaking turn

    @classmethod
    def of(
        cls, result: Result, *, turn: int, prefill_ms: float | None, ai_audio: str | None
    ) -> Self:
        timing = ChunkTiming(
            prefill_ms=result.prefill_ms if prefill_ms is None else prefill_ms,
            llm_ms=result.cost_llm_ms,
            tts_prep_ms=result.cost_tts_prep_ms,
            tts_ms=result.cost_tts_ms,
            token2wav_ms=result.cost_token2wav_ms,
            all_ms=result.cost_all_ms,
            wall_clock_ms=result.wall_clock_ms,
            n_tokens=result.n_tokens,
            n_tts_tokens=result.n_tts_tokens,
            kv_cache_length=result.kv_cache_length,
            vision_slices=result.vision_slices,
            vision_tokens=result.vision_tokens,
        )
        if result.is_listen:
            return cls(mode="LISTEN", timing=timing, barge_in=result.barge_in or None)
        return cls(
            mode="SPEAK",
            timing=timing,
            text=result.text,
            ai_audio=ai_audio,
            end_of_turn=result.end_of_turn or None,
            barge_in=result.barge_in or None,
            turn=turn,
        )


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
    """What the user said in one turn."""

    type: Literal["voice"] = "voice"
    duration_ms: int = 0
    audio: str | None = None
    transcript: str | None = None


# The kind that more of the given fields fit; only voice has a `type`.
TurnInput = Annotated[TextInput | VoiceInput, Field(union_mode="smart")]


class TurnOutput(Record):
    """What the model answered."""

    text: str = ""
    audio: str | None = None
    audio_duration_ms: int | None = None


class TurnTiming(Record):
    """What one turn cost."""

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
    """`recording.json` of a duplex session."""

    mode: Literal["duplex"] = "duplex"
    chunks: tuple[Chunk, ...] = ()


class TurnRecording(_Recording):
    """`recording.json` of a turn-based or half-duplex session; `mode` is its app_type."""

    mode: TurnMode
    turns: tuple[Turn, ...] = ()


Recording = Annotated[DuplexRecording | TurnRecording, Field(discriminator="mode")]
"""What `recording.json` holds."""
