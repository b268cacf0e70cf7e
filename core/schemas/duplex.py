"""Messages of `/ws/duplex`; the settings are in `duplex_calls`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from core.schemas import queue
from core.schemas.common import (
    AudioBytes,
    ChunkAudio,
    Id,
    ReferenceAudio,
    ServerPath,
    SliceCount,
    Text,
    WireModel,
)
from core.schemas.duplex_calls import DuplexConfig, DuplexGenerateResult, FrameList


class BargeInConfig(WireModel):
    """The server interrupts the model when it detects the user's speech."""

    threshold: float = Field(0.8, ge=0.05, le=0.99)
    """Probability at which speech begins; lower is more sensitive."""
    min_speech_duration_ms: int = Field(128, ge=0, le=10_000)
    """Shorter bursts are ignored, ms."""


class Prepare(WireModel):
    """Set up the session; once, after queue_done."""

    type: Literal["prepare"] = Field("prepare", description="Message type.")
    prefix_system_prompt: Text = Field(
        "",
        validation_alias=AliasChoices("prefix_system_prompt", "system_prompt"),
        description="The system prompt; precedes the voice sample.",
    )
    suffix_system_prompt: Text | None = Field(None, description="Follows the voice sample.")
    config: DuplexConfig = Field(DuplexConfig(), description="Settings of this session.")
    ref_audio_path: ServerPath | None = None
    """Voice sample by path, inside the server's reference folders only."""
    ref_audio_base64: ReferenceAudio | None = None
    """Voice sample in the prompt, Base64 of float32 at 16 kHz, ≤ 30 s."""
    tts_ref_audio_base64: ReferenceAudio | None = None
    """Voice sample to speak with; by default the former."""
    ref_audio_id: Id | None = Field(None, description="The former by its registered name.")
    tts_ref_audio_id: Id | None = Field(None, description="The latter by its registered name.")
    max_slice_nums: SliceCount | None = None
    """Most tiles per picture; overrides config."""
    deferred_finalize: bool = True
    """Send each result before the unit is finalized."""
    early_audio: bool = False
    """Send the beginning of a unit's audio ahead of its result, in result_part."""
    transcribe: bool = False
    """Send user_transcript, if the server can transcribe."""
    barge_in: BargeInConfig | None = None
    """If set, the user's speech interrupts the model."""

    @model_validator(mode="before")
    @classmethod
    def _prefer_the_prompt_that_is_not_empty(cls, given: Any) -> Any:
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
    """One unit of microphone audio, optionally with pictures."""

    type: Literal["audio_chunk"] = Field("audio_chunk", description="Message type.")
    audio: ChunkAudio = Field(validation_alias=AliasChoices("audio", "audio_base64"))
    """Base64 of little-endian float32 samples, mono, 16 kHz, chunk_ms long."""
    frame_base64_list: FrameList | None = None
    """Base64 JPEG, PNG or WebP pictures of this unit."""
    force_listen: bool = Field(False, description="The model must listen in this unit.")
    force_speak: bool = False
    """The model must speak in this unit, unless it must listen."""
    max_slice_nums: SliceCount | None = None
    """Most tiles per picture in this unit."""
    client_ts: float | None = Field(None, description="Time it was sent, for the client's use.")
    seq: int | None = Field(None, ge=0, description="Number of the chunk, for the client's use.")


class VideoFrame(WireModel):
    """One camera picture."""

    type: Literal["video_frame"] = Field("video_frame", description="Message type.")
    frame: str = Field(validation_alias=AliasChoices("frame", "frame_base64"))
    """Base64 of a JPEG, PNG or WebP picture, at most 4 MiB and 4096 px a side."""


class TextInput(WireModel):
    """Text typed by the user; the model gets it at its next pause."""

    type: Literal["text_input"] = Field("text_input", description="Message type.")
    text: Text = Field(description="The text, at most 1,000 characters.")
    force_speak: bool = Field(True, description="The model must speak in the first unit after it.")


class TextAdded(WireModel):
    """Reply to text_input: it was accepted."""

    type: Literal["text_added"] = Field("text_added", description="Message type.")
    text: str = Field(description="The text without surrounding space.")
    start_ms: int = Field(ge=0, description="Length of the audio sent before it, ms.")


class Pause(WireModel):
    """Suspend the session."""

    type: Literal["pause"] = Field("pause", description="Message type.")
    timeout: float | None = Field(None, gt=0)
    """Release after this long, s; at most the server's own limit."""


class Resume(WireModel):
    """Continue after a pause."""

    type: Literal["resume"] = Field("resume", description="Message type.")


class ClientDiagnostic(WireModel):
    """Measurements of the client; fields outside `metrics` are kept too."""

    model_config = ConfigDict(extra="allow")

    type: Literal["client_diagnostic"] = Field("client_diagnostic", description="Message type.")
    # Any: free-form, recorded as received.
    metrics: dict[str, Any] = Field({}, description="Measurements by name.")


class Prepared(WireModel):
    """The session is ready: start capturing."""

    type: Literal["prepared"] = Field("prepared", description="Message type.")
    prompt_length: int = Field(0, ge=0, description="Characters of the system prompt.")
    prompt_tokens: int = Field(0, ge=0, description="Tokens of the system prompt.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")
    session_id: str = Field("", description="The session.")
    session_secret: queue.SessionSecret | None = None
    """The session's secret, as in `queue_done`."""
    chunk_ms: int = Field(1_000, ge=1, description="Length of one unit, ms.")
    max_kv_tokens: int = Field(0, ge=0, description="Most tokens the conversation may hold.")
    pause_timeout: float = Field(0.0, ge=0, description="Longest pause, s.")


class Result(DuplexGenerateResult):
    """Outcome of one unit; one per audio_chunk, in order."""

    type: Literal["result"] = Field("result", description="Message type.")
    audio_data: AudioBytes = b""
    """New audio: Base64 of float32, mono, 24 kHz; empty when listening."""
    wall_clock_ms: float = Field(0.0, ge=0)
    """Time from the chunk's arrival to this result, ms."""
    turn_id: int = Field(0, ge=0, description="Number of the speaking turn.")
    step: int = Field(0, ge=0, description="Number of the unit, from 0.")
    barge_in: bool = False
    """The model was interrupted: drop audio that was not played yet."""


class ResultPart(WireModel):
    """Beginning of a unit's audio, sent ahead; the rest is in the unit's result."""

    type: Literal["result_part"] = Field("result_part", description="Message type.")
    audio_data: AudioBytes = Field(description="Base64 of float32, mono, 24 kHz; play at once.")
    turn_id: int = Field(0, ge=0, description="Number of the speaking turn.")
    step: int = Field(0, ge=0, description="Number of the unit, from 0.")
    elapsed_ms: float = Field(0.0, ge=0)
    """Time from the chunk's arrival to this message, ms."""


class Paused(WireModel):
    """Reply to pause."""

    type: Literal["paused"] = Field("paused", description="Message type.")
    timeout: float = Field(ge=0, description="The worker is released after this long, s.")


class Resumed(WireModel):
    """Reply to resume."""

    type: Literal["resumed"] = Field("resumed", description="Message type.")


class Interrupted(WireModel):
    """Reply to interrupt: the next unit listens."""

    type: Literal["interrupted"] = Field("interrupted", description="Message type.")


class Stopped(WireModel):
    """Reply to stop."""

    type: Literal["stopped"] = Field("stopped", description="Message type.")
    session_id: str = Field(description="The session.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")


class Timeout(WireModel):
    """The pause or the session was too long; the connection closes."""

    type: Literal["timeout"] = Field("timeout", description="Message type.")
    reason: Literal["pause", "max_session", "inactivity"] = "pause"
    """The limit reached; inactivity is missing audio without a pause."""
    elapsed_s: float = Field(ge=0, description="Duration, s.")
    session_id: str = Field(description="The session.")


ClientMessage = Annotated[
    Prepare
    | AudioChunk
    | VideoFrame
    | TextInput
    | Pause
    | Resume
    | queue.Interrupt
    | queue.Stop
    | ClientDiagnostic
    | queue.Heartbeat,
    Field(discriminator="type"),
]

ServerMessage = Annotated[
    queue.QueueMessage
    | queue.ResumeMessage
    | Prepared
    | ResultPart
    | Result
    | Paused
    | Resumed
    | Interrupted
    | Stopped
    | Timeout
    | TextAdded
    | queue.UserTranscript
    | queue.Problem,
    Field(discriminator="type"),
]
