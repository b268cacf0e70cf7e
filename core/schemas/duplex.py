"""Full duplex on the wire: the messages of `/ws/duplex`; settings come from `duplex_calls`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from core.schemas import limits
from core.schemas.common import (
    ChunkSound,
    ReferenceAudio,
    ServerPath,
    SliceCount,
    SoundBytes,
    WireModel,
)
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult, FrameList
from core.schemas.queue import (
    Heartbeat,
    Interrupt,
    Problem,
    QueueMessage,
    ResumeMessage,
    SessionSecret,
    Stop,
    UserTranscript,
)


class BargeInConfig(WireModel):
    """The server listens for the user while the model speaks, and breaks the model off."""

    threshold: float = Field(
        0.8, ge=0.05, le=0.99, description="Speech begins at this probability; lower is keener."
    )
    min_speech_duration_ms: int = Field(
        128, ge=0, le=10_000, description="Shorter bursts break nothing off, ms."
    )


class Prepare(WireModel):
    """Set up the session; once, after queue_done."""

    type: Literal["prepare"] = Field("prepare", description="Kind of message.")
    prefix_system_prompt: str = Field(
        "",
        max_length=limits.TEXT_MAX_CHARS,
        validation_alias=AliasChoices("prefix_system_prompt", "system_prompt"),
        description="The system prompt; comes before the voice sample.",
    )
    suffix_system_prompt: str | None = Field(
        None, max_length=limits.TEXT_MAX_CHARS, description="Comes after the voice sample."
    )
    config: DuplexConfig = Field(
        default_factory=DuplexConfig, description="Settings of this session."
    )
    ref_audio_path: ServerPath | None = Field(
        None, description="Voice sample by path, inside the server's reference folders only."
    )
    ref_audio_base64: ReferenceAudio | None = Field(
        None, description="Voice sample the model hears, Base64 of float32 at 16 kHz, ≤ 30 s."
    )
    tts_ref_audio_base64: ReferenceAudio | None = Field(
        None, description="Voice sample to speak with; without it, the former."
    )
    ref_audio_id: str | None = Field(
        None, max_length=limits.ID_MAX_CHARS, description="The former by its registered name."
    )
    tts_ref_audio_id: str | None = Field(
        None, max_length=limits.ID_MAX_CHARS, description="The latter by its registered name."
    )
    max_slice_nums: SliceCount | None = Field(
        None, description="Most tiles per picture; overrides config."
    )
    deferred_finalize: bool = Field(
        True, description="Send each result before the unit's bookkeeping."
    )
    early_audio: bool = Field(
        False,
        description="Send the beginning of a unit's sound ahead of its result, in result_part.",
    )
    transcribe: bool = Field(
        False, description="Say in user_transcript what the user said, if the server can."
    )
    barge_in: BargeInConfig | None = Field(
        None, description="When given, the user's voice breaks the model off; else it never does."
    )

    @model_validator(mode="before")
    @classmethod
    def _prefer_a_prompt_that_says_something(cls, given: Any) -> Any:
        # Any: a "before" validator sees whatever was sent.
        if not isinstance(given, dict) or given.get("prefix_system_prompt"):
            return given
        others = {key: value for key, value in given.items() if key != "prefix_system_prompt"}
        if others.get("system_prompt") is None:
            others.pop("system_prompt", None)
        return others

    @property
    def voice_base64(self) -> str | None:
        return self.tts_ref_audio_base64 or self.ref_audio_base64

    @property
    def slice_limit(self) -> int:
        return self.config.max_slice_nums if self.max_slice_nums is None else self.max_slice_nums


class AudioChunk(WireModel):
    """What the microphone heard, one unit long; pictures may come with it."""

    type: Literal["audio_chunk"] = Field("audio_chunk", description="Kind of message.")
    audio: ChunkSound = Field(
        validation_alias=AliasChoices("audio", "audio_base64"),
        description="Base64 of little-endian float32 samples, mono, 16 kHz, chunk_ms long.",
    )
    frame_base64_list: FrameList | None = Field(
        None, description="Base64 JPEG, PNG or WebP pictures of this unit."
    )
    force_listen: bool = Field(False, description="The model must listen in this unit.")
    force_speak: bool = Field(
        False, description="The model must speak in this unit, unless it must listen."
    )
    max_slice_nums: SliceCount | None = Field(
        None, description="Most tiles per picture in this unit."
    )
    client_ts: float | None = Field(None, description="When it was sent, for the client's use.")
    seq: int | None = Field(None, ge=0, description="Number of the chunk, for the client's use.")


class VideoFrame(WireModel):
    """One camera picture."""

    type: Literal["video_frame"] = Field("video_frame", description="Kind of message.")
    frame: str = Field(
        validation_alias=AliasChoices("frame", "frame_base64"),
        description="Base64 of a JPEG, PNG or WebP picture, at most 4 MiB and 4096 px a side.",
    )


class TextInput(WireModel):
    """What the user typed; known from the model's next pause on."""

    type: Literal["text_input"] = Field("text_input", description="Kind of message.")
    text: str = Field(
        max_length=limits.TEXT_MAX_CHARS, description="The words, at most 1,000 characters."
    )
    force_speak: bool = Field(
        True, description="The model must speak in the first unit that knows it."
    )


class TextAdded(WireModel):
    """Answer to text_input: it is taken."""

    type: Literal["text_added"] = Field("text_added", description="Kind of message.")
    text: str = Field(description="The words, without the space around them.")
    start_ms: int = Field(ge=0, description="How long the sound was that was sent before, ms.")


class Pause(WireModel):
    """Suspend the session."""

    type: Literal["pause"] = Field("pause", description="Kind of message.")
    timeout: float | None = Field(
        None, gt=0, description="Release after this long, s; at most the server's own limit."
    )


class Resume(WireModel):
    """Continue after a pause."""

    type: Literal["resume"] = Field("resume", description="Kind of message.")


class ClientDiagnostic(WireModel):
    """What the client measured; fields outside `metrics` are kept too."""

    model_config = ConfigDict(extra="allow")

    type: Literal["client_diagnostic"] = Field("client_diagnostic", description="Kind of message.")
    # Any: free-form, written to the recording as it came.
    metrics: dict[str, Any] = Field(default_factory=dict, description="Measurements by name.")


class Prepared(WireModel):
    """Ready: start to capture now."""

    type: Literal["prepared"] = Field("prepared", description="Kind of message.")
    prompt_length: int = Field(0, ge=0, description="Characters of the system prompt.")
    prompt_tokens: int = Field(0, ge=0, description="Tokens of the system prompt.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")
    session_id: str = Field("", description="The session.")
    session_secret: SessionSecret | None = Field(
        None, description="The session's secret, as in `queue_done`."
    )
    chunk_ms: int = Field(1_000, ge=1, description="Length of one unit, ms.")
    max_kv_tokens: int = Field(0, ge=0, description="Most tokens the conversation may hold.")
    pause_timeout: float = Field(0.0, ge=0, description="Longest pause, s.")


class Result(DuplexGenerateResult):
    """What the model did in one unit; one per audio_chunk, in order."""

    type: Literal["result"] = Field("result", description="Kind of message.")
    audio_data: SoundBytes = Field(
        b"", description="New sound: Base64 of float32, mono, 24 kHz; empty when listening."
    )
    wall_clock_ms: float = Field(
        0.0, ge=0, description="Time from the chunk's arrival to this result, ms."
    )
    turn_id: int = Field(0, ge=0, description="Number of the speaking turn.")
    step: int = Field(0, ge=0, description="Number of the unit, from 0.")
    barge_in: bool = Field(
        False, description="The model broke off what it was saying: flush what is not yet played."
    )


class ResultPart(WireModel):
    """The beginning of a unit's sound, sent ahead; the rest is in the unit's result."""

    type: Literal["result_part"] = Field("result_part", description="Kind of message.")
    audio_data: SoundBytes = Field(
        description="Base64 of float32, mono, 24 kHz; to be played at once."
    )
    turn_id: int = Field(0, ge=0, description="Number of the speaking turn.")
    step: int = Field(0, ge=0, description="Number of the unit, from 0.")
    elapsed_ms: float = Field(
        0.0, ge=0, description="Time from the chunk's arrival to this message, ms."
    )


class Paused(WireModel):
    """Answer to pause."""

    type: Literal["paused"] = Field("paused", description="Kind of message.")
    timeout: float = Field(ge=0, description="The worker is released after this long, s.")


class Resumed(WireModel):
    """Answer to resume."""

    type: Literal["resumed"] = Field("resumed", description="Kind of message.")


class Interrupted(WireModel):
    """Answer to interrupt: the next unit listens."""

    type: Literal["interrupted"] = Field("interrupted", description="Kind of message.")


class Stopped(WireModel):
    """Answer to stop."""

    type: Literal["stopped"] = Field("stopped", description="Kind of message.")
    session_id: str = Field(description="The session.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")


class Timeout(WireModel):
    """The pause or the session was too long; the connection closes."""

    type: Literal["timeout"] = Field("timeout", description="Kind of message.")
    reason: Literal["pause", "max_session", "inactivity"] = Field(
        "pause", description="Which limit was reached; inactivity is silence without a pause."
    )
    elapsed_s: float = Field(ge=0, description="How long it was, s.")
    session_id: str = Field(description="The session.")


ClientMessage = Annotated[
    Prepare
    | AudioChunk
    | VideoFrame
    | TextInput
    | Pause
    | Resume
    | Interrupt
    | Stop
    | ClientDiagnostic
    | Heartbeat,
    Field(discriminator="type"),
]
"""What a client may send on `/ws/duplex`."""

ServerMessage = Annotated[
    QueueMessage
    | ResumeMessage
    | Prepared
    | ResultPart
    | Result
    | Paused
    | Resumed
    | Interrupted
    | Stopped
    | Timeout
    | TextAdded
    | UserTranscript
    | Problem,
    Field(discriminator="type"),
]
"""What a client may receive on `/ws/duplex`."""
