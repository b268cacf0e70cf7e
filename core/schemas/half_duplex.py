"""Settings and messages of `/ws/half_duplex`: voice chat with turn-taking by the server."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, Field

from core.schemas import duplex, queue
from core.schemas.common import (
    AudioContent,
    ChunkAudio,
    ContentItem,
    Id,
    ItemList,
    LengthPenalty,
    ReferenceAudio,
    Temperature,
    Text,
    TextContent,
    TokenStats,
    WireModel,
)
from core.schemas.streaming import Chunk

COLD_START_MS = 500  # audio ignored after `prepared`; source: docs/specification/service.md#2.4.3


class VadConfig(duplex.BargeInConfig):
    """Voice activity detection."""

    min_silence_duration_ms: int = Field(800, ge=0, le=10_000)
    """Silence that ends the user's turn, ms."""
    speech_pad_ms: int = Field(30, ge=0, le=10_000)
    """Padding before and after the speech, ms."""


class TurnGenerationConfig(WireModel):
    """Generation of a reply's text."""

    max_new_tokens: int = Field(256, ge=1, le=2_048, description="Most tokens of the reply.")
    length_penalty: LengthPenalty = 1.1
    temperature: Temperature = 0.7


class TurnSpeechConfig(WireModel):
    """Whether replies are spoken."""

    enabled: bool = Field(True, description="Speak the reply; false: text only.")


class SessionConfig(WireModel):
    """Time-out of the session."""

    timeout_s: float = Field(180, ge=10, le=3_600)
    """Ends after this long without an audio_chunk, s."""


class HalfDuplexConfig(WireModel):
    """All settings of one half-duplex session."""

    vad: VadConfig = Field(VadConfig(), description="Voice activity detection.")
    generation: TurnGenerationConfig = TurnGenerationConfig()
    """Generation of the text."""
    tts: TurnSpeechConfig = Field(TurnSpeechConfig(), description="Whether replies are spoken.")
    session: SessionConfig = Field(SessionConfig(), description="Time-out of the session.")


class Prepare(WireModel):
    """Set up the session; the first message after queue_done."""

    type: Literal["prepare"] = Field("prepare", description="Message type.")
    system_prompt: Text | None = None
    """The system prompt; ignored with system_content."""
    system_content: ItemList | None = None
    """The same as items (text, audio, image); ideally text, voice sample, text."""
    ref_audio_base64: ReferenceAudio | None = None
    """Voice sample, Base64 of float32 at 16 kHz, at most 30 s."""
    tts_ref_audio_base64: ReferenceAudio | None = None
    """Voice to speak with, if not that of the system content."""
    ref_audio_id: Id | None = Field(None, description="Voice sample by its registered name.")
    transcribe: bool = False
    """Send user_transcript, if the server can transcribe."""
    config: HalfDuplexConfig = Field(HalfDuplexConfig(), description="Settings of this session.")

    @property
    def voice_base64(self) -> str | None:
        """The voice sample to speak with, by the documented precedence."""
        items = self.system_content or []
        first_audio = next((item.data for item in items if isinstance(item, AudioContent)), None)
        return self.tts_ref_audio_base64 or first_audio or self.ref_audio_base64

    def system_items(self, voice_instruction: str, default_prompt: str) -> list[ContentItem]:
        """Return the system content by the documented precedence.

        That is the given content; else `voice_instruction`, voice sample and prompt; else the
        prompt, or `default_prompt`, alone.
        """
        if self.system_content:
            return list(self.system_content)
        prompt = TextContent(text=self.system_prompt or default_prompt)
        if not self.ref_audio_base64:
            return [prompt]
        voice = AudioContent(data=self.ref_audio_base64)
        return [TextContent(text=voice_instruction), voice, prompt]


class AudioChunk(WireModel):
    """Microphone audio, about half a second."""

    type: Literal["audio_chunk"] = Field("audio_chunk", description="Message type.")
    audio_base64: ChunkAudio = Field(validation_alias=AliasChoices("audio_base64", "audio"))
    """Base64 of little-endian float32 samples, mono, 16 kHz, at most 2 s."""


class Prepared(WireModel):
    """The session is ready: send audio now."""

    type: Literal["prepared"] = Field("prepared", description="Message type.")
    session_id: str = Field(description="The session.")
    timeout_s: float = Field(ge=0, description="Ends after this long without an audio_chunk, s.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")
    session_secret: queue.SessionSecret | None = None
    """The session's secret, as in `queue_done`."""


class VadState(WireModel):
    """The user began or stopped speaking; false also if a short burst was discarded."""

    type: Literal["vad_state"] = Field("vad_state", description="Message type.")
    speaking: bool = Field(description="The user is speaking.")


class Generating(WireModel):
    """The user's turn is over and the reply is being generated: stop sending audio."""

    type: Literal["generating"] = Field("generating", description="Message type.")
    speech_duration_ms: int = Field(ge=0, description="Length of the user's speech, ms.")


class TurnDone(WireModel):
    """The reply is complete."""

    type: Literal["turn_done"] = Field("turn_done", description="Message type.")
    turn_index: int = Field(ge=0, description="Number of the turn, from 0.")
    text: str = Field("", description="The whole reply.")
    interrupted: bool = Field(False, description="The reply was cut short on request.")
    elapsed_ms: float = Field(0.0, ge=0, description="Time the turn took, ms.")
    kv_cache_length: int = Field(0, ge=0, description="Tokens in the KV cache.")
    token_stats: TokenStats = Field(TokenStats(), description="Token counts of the turn.")


class Timeout(WireModel):
    """No audio arrived for too long, or the session reached its longest duration."""

    type: Literal["timeout"] = Field("timeout", description="Message type.")
    elapsed_s: float = Field(ge=0, description="Duration, s, to one decimal.")
    reason: Literal["inactivity", "max_session"] = "inactivity"
    """The limit reached."""


class Stopped(duplex.Stopped):
    """Reply to stop."""


ClientMessage = Annotated[
    Prepare | AudioChunk | queue.Stop | queue.Interrupt | queue.Heartbeat,
    Field(discriminator="type"),
]

ServerMessage = Annotated[
    queue.QueueMessage
    | queue.ResumeMessage
    | Prepared
    | VadState
    | Generating
    | Chunk
    | TurnDone
    | Timeout
    | Stopped
    | queue.UserTranscript
    | queue.Problem,
    Field(discriminator="type"),
]
