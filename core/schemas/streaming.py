"""Turn-based chat: requests and results of the library, and messages of `/ws/streaming`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from core.schemas import limits, queue
from core.schemas.common import (
    AudioBytes,
    AudioContent,
    GenerationConfig,
    Id,
    ImageConfig,
    Message,
    ReferenceAudio,
    Role,
    ServerPath,
    SliceCount,
    TextSampling,
    TokenStats,
    TTSConfig,
    TTSSamplingParams,
    WireModel,
)

MessageList = Annotated[
    list[Message], Field(fail_fast=True, min_length=1, max_length=limits.MESSAGES_MAX)
]
"""A history, oldest first. Validation stops at the first error."""


class StreamingConfig(WireModel):
    """Speech of a streamed reply."""

    generate_audio: bool = Field(True, description="Speak the reply.")
    ref_audio_path: ServerPath | None = None
    """Voice sample as a file of the server; library use only."""
    ref_audio_data: ReferenceAudio | None = None
    """Voice sample, Base64 of float32 at 16 kHz, at most 30 s."""
    tts_sampling: TTSSamplingParams = TTSSamplingParams()
    """Sampling of speech tokens."""


class StreamingRequest(WireModel):
    """One prefill, as a library call."""

    session_id: Id = Field(description="Session whose cache is extended.")
    messages: MessageList = Field(description="Messages to prefill, oldest first.")
    is_last_chunk: bool = Field(False, description="A reply is generated next.")
    generation: GenerationConfig = Field(GenerationConfig(), description="Generation of the text.")
    streaming: StreamingConfig = Field(StreamingConfig(), description="Speech of the reply.")
    omni_mode: bool = Field(True, description="Interleave pictures and audio second by second.")
    use_tts_template: bool = Field(True, description="Prompt for a spoken reply.")
    enable_thinking: bool = Field(False, description="Let the model think before it answers.")
    image: ImageConfig = Field(ImageConfig(), description="How pictures are split.")


class StreamingChunk(WireModel):
    """A chunk of a reply: new text, new audio, or both."""

    chunk_index: int = Field(ge=0, description="Number of the chunk, from 0.")
    text_delta: str | None = Field(None, description="New text.")
    audio_data: AudioBytes | None = None
    """New audio: Base64 of float32, mono, at audio_sample_rate."""
    audio_sample_rate: int = Field(limits.OUTPUT_SAMPLE_RATE_HZ, ge=1)
    """Samples per second of audio_data."""
    is_final: bool = Field(False, description="The last chunk, without text and audio.")
    duration_ms: float = Field(0.0, ge=0, description="Time to generate this chunk, ms.")


class ReplyEnd(WireModel):
    """End of a reply."""

    text: str = Field("", description="The whole text, exactly as in its chunks.")
    generated_tokens: int = Field(0, ge=0, description="Tokens of the reply.")
    stopped: bool = Field(False, description="The reply was cut short.")
    is_begun: bool = True
    """Part of it is in the cache; otherwise the user's turn is still open."""


class RollbackResult(WireModel):
    """Result of a rollback."""

    success: bool = Field(description="The session is back at its rollback point.")
    reason: str | None = Field(None, description="Why it failed.")
    restored_position: int | None = Field(None, ge=0)
    """Tokens in the KV cache after the rollback."""


class Prefill(WireModel):
    """Start of a turn: the whole history, the new user message last."""

    type: Literal["prefill"] = Field("prefill", description="Message type.")
    messages: MessageList = Field(description="Full history, the new user message last.")
    session_id: Id | None = Field(None, description="The session; the path's one counts.")
    session_secret: queue.SessionSecret | None = None
    """From an earlier socket of this session, whose recording continues."""
    tts_ref_audio_base64: ReferenceAudio | None = None
    """Voice to speak with, Base64 of float32 at 16 kHz, at most 30 s."""
    ref_audio_base64: ReferenceAudio | None = None
    """The same, used when tts_ref_audio_base64 is absent."""
    max_slice_nums: SliceCount | None = Field(None, description="Most tiles per picture.")
    omni_mode: bool | None = None
    """Interleave pictures and audio second by second."""
    use_tts_template: bool | None = Field(None, description="Prompt for a spoken reply.")
    enable_thinking: bool = Field(False, description="Let the model think before it answers.")
    is_last_chunk: bool = Field(True, description="A reply is generated next.")
    generation: GenerationConfig | None = None
    """Defaults for the `generate` that follows."""
    streaming: StreamingConfig | None = None
    """Defaults for the `generate` that follows."""
    image: ImageConfig | None = Field(None, description="Older place of max_slice_nums.")
    tts: TTSConfig | None = Field(None, description="Older place of voice and speech settings.")
    transcribe: bool = False
    """Send user_transcript of the new message's audio before done."""

    @property
    def speech(self) -> list[str]:
        """The audio to transcribe, wire audio."""
        last = self.messages[-1]
        if not self.transcribe or last.role is not Role.USER or isinstance(last.content, str):
            return []
        return [item.data for item in last.content if isinstance(item, AudioContent)]

    @property
    def voice_base64(self) -> str | None:
        """The voice sample to speak with: the first one given."""
        candidates = (
            self.tts_ref_audio_base64,
            self.ref_audio_base64,
            self.tts.ref_audio_data if self.tts else None,
            self.streaming.ref_audio_data if self.streaming else None,
        )
        return next((voice for voice in candidates if voice), None)

    @property
    def slice_limit(self) -> int | None:
        """Most tiles per picture, from either place."""
        if self.max_slice_nums is not None:
            return self.max_slice_nums
        return self.image.max_slice_nums if self.image else None


class WorkerPrefill(Prefill):
    """A prefill as the gateway passes it to a worker."""

    clear_kv_cache: bool = Field(False, description="Clear the cache first.")
    expect_hash: Id | None = None
    """History the cache must hold; otherwise the worker answers cache_miss."""


class Generate(TextSampling):
    """Generate the reply to what was prefilled."""

    type: Literal["generate"] = Field("generate", description="Message type.")
    session_id: Id | None = Field(None, description="The session; the path's one counts.")
    generate_audio: bool = Field(True, description="Speak the reply.")
    max_new_tokens: int = Field(256, ge=1, le=4_096, description="Most tokens of the reply.")

    def with_defaults(self, prefill: Prefill) -> Generate:
        """Return the message with unset fields filled from the prefill's defaults."""
        given = self.model_dump(include=self.model_fields_set)
        defaults: dict[str, object] = {}
        if prefill.tts is not None and "enabled" in prefill.tts.model_fields_set:
            defaults["generate_audio"] = prefill.tts.enabled
        for group in (prefill.streaming, prefill.generation):
            if group is not None:
                shared = group.model_fields_set & set(Generate.model_fields)
                defaults |= group.model_dump(include=shared)
        return Generate.model_validate(defaults | given)


class ReplyRequest(Generate):
    """Request of a worker to a view, with fields that clients do not have."""

    reply_start: str = Field("", description="Text the reply has to begin with.")


class PrefillDone(WireModel):
    """The history is in the KV cache."""

    type: Literal["prefill_done"] = Field("prefill_done", description="Message type.")
    cached_tokens: int = Field(ge=0, description="Tokens reused; above 0 on a cache hit.")
    input_tokens: int = Field(ge=0, description="Tokens prefilled now.")
    message_count: int = Field(0, ge=0, description="Messages prefilled now.")
    prompt_length: int = Field(0, ge=0, description="Characters of the prompt prefilled now.")
    cache_hit: bool = Field(False, description="Earlier turns were reused.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")


class Chunk(StreamingChunk):
    """A chunk of the reply."""

    type: Literal["chunk"] = Field("chunk", description="Message type.")


class Done(WireModel):
    """The turn is over."""

    type: Literal["done"] = Field("done", description="Message type.")
    session_id: str = Field(description="The session.")
    text: str = Field("", description="The whole reply.")
    elapsed_ms: float = Field(0.0, ge=0, description="Time from prefill to here, ms.")
    stopped: bool = Field(False, description="The reply was cut short on request.")
    token_stats: TokenStats = Field(TokenStats(), description="Token counts of the turn.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")


class CacheMiss(WireModel):
    """Worker to gateway: the cache lacks the expected history; send all of it."""

    type: Literal["cache_miss"] = Field("cache_miss", description="Message type.")


ClientMessage = Annotated[
    Prefill | Generate | queue.Stop | queue.Close | queue.Heartbeat, Field(discriminator="type")
]

ServerMessage = Annotated[
    queue.QueueMessage | PrefillDone | Chunk | queue.UserTranscript | Done | queue.Problem,
    Field(discriminator="type"),
]

WorkerClientMessage = Annotated[
    WorkerPrefill | Generate | queue.Stop | queue.Close | queue.Heartbeat,
    Field(discriminator="type"),
]
"""Messages to a worker's own `/ws/streaming`."""

WorkerServerMessage = Annotated[
    PrefillDone | Chunk | queue.UserTranscript | Done | CacheMiss | queue.Problem,
    Field(discriminator="type"),
]
"""Messages from a worker's own `/ws/streaming`."""
