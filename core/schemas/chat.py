"""One-shot chat: request and reply of `POST /api/chat`, and the messages of `/ws/chat`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag

from core.schemas import limits
from core.schemas.common import (
    AudioBytes,
    GenerationConfig,
    ImageConfig,
    TokenStats,
    TTSConfig,
    WireModel,
)
from core.schemas.queue import Heartbeat, Problem, QueueMessage, SessionSecret, Stop
from core.schemas.streaming import MessageList

SOCKET_MAX_NEW_TOKENS = 256  # default of `/ws/chat`; source: docs/specification/service.md#2.6
REQUEST_TAG = "chat"  # of the one message that may omit its type


class ReplyRequest(WireModel):
    """Input of a reply, common to all interfaces."""

    messages: MessageList = Field(description="Full history, the new user message last.")
    generation: GenerationConfig = Field(GenerationConfig(), description="Generation of the text.")
    tts: TTSConfig = Field(TTSConfig(), description="Whether the reply is spoken.")
    image: ImageConfig = Field(ImageConfig(), description="How pictures are split.")
    use_tts_template: bool = Field(False, description="Prompt for a spoken reply.")
    omni_mode: bool = Field(False, description="Interleave pictures and audio second by second.")
    enable_thinking: bool = Field(False, description="Let the model think before it answers.")
    reply_start: str = Field(
        "",
        max_length=limits.REPLY_START_MAX_CHARS,
        description="Text the reply begins with, as if generated; its tokens count, "
        "so a reply of at most 1 new token is exactly this text.",
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    """Makes the sampling of this reply repeatable."""


class ChatRequest(ReplyRequest):
    """Body of `POST /api/chat`."""

    return_prompt: bool = Field(False, description="Return the full prompt.")


class ChatResponse(WireModel):
    """A whole reply, or why there is none."""

    text: str = Field("", description="The reply's text.")
    audio_path: str | None = Field(None, description="File of the spoken reply.")
    audio_data: str | None = None
    """The spoken reply: over HTTP, Base64 of a WAV file."""
    audio_sample_rate: int = Field(limits.OUTPUT_SAMPLE_RATE_HZ, ge=1)
    """Samples per second of the reply."""
    tokens_generated: int = Field(0, ge=0, description="Tokens of the reply.")
    duration_ms: float = Field(0.0, ge=0, description="Duration, ms.")
    prompt: str | None = Field(None, description="The prompt, if requested.")
    token_stats: TokenStats | None = Field(None, description="Token counts of the reply.")
    recording_session_id: str | None = Field(None, description="Name of the recording.")
    error: str | None = Field(None, description="Why there is no reply.")
    success: bool = Field(True, description="There is a reply.")


class GatewayChatResponse(ChatResponse):
    """A reply as the gateway returns it."""

    queue_wait_ms: int = Field(0, ge=0, description="Time spent in the queue, ms.")
    estimated_queue_wait_s: float = Field(0.0, ge=0)
    """Wait estimated when the request arrived, s."""
    session_secret: SessionSecret | None = None
    """Proves that a request about the recording is its owner's."""


class ChatSocketRequest(ReplyRequest):
    """The request of a `/ws/chat` connection; its type may be omitted."""

    type: Literal["chat"] = Field("chat", description="Message type.")
    streaming: bool = Field(True, description="Stream the reply.")
    generation: GenerationConfig = GenerationConfig(max_new_tokens=SOCKET_MAX_NEW_TOKENS)
    """Generation of the text."""

    def to_request(self) -> ChatRequest:
        """Return the equivalent body of `POST /api/chat`."""
        generation = self.generation
        if "max_new_tokens" not in generation.model_fields_set:
            generation = generation.model_copy(update={"max_new_tokens": SOCKET_MAX_NEW_TOKENS})
        return ChatRequest.model_validate({**dict(self), "generation": generation})


class ChatPrefillDone(WireModel):
    """The request is in the KV cache."""

    type: Literal["prefill_done"] = Field("prefill_done", description="Message type.")
    input_tokens: int = Field(ge=0, description="Tokens prefilled.")


class ChatChunk(WireModel):
    """A chunk of the reply."""

    type: Literal["chunk"] = Field("chunk", description="Message type.")
    text_delta: str | None = Field(None, description="New text.")
    audio_data: AudioBytes | None = Field(None, description="New audio: Base64 of float32, 24 kHz.")


class ChatDone(WireModel):
    """The reply is complete."""

    type: Literal["done"] = Field("done", description="Message type.")
    text: str = Field("", description="The whole reply.")
    generated_tokens: int = Field(0, ge=0, description="Tokens of the reply.")
    input_tokens: int = Field(0, ge=0, description="Tokens prefilled.")
    stopped: bool = Field(False, description="The reply was cut short on request.")
    audio_data: AudioBytes | None = None
    """All audio if not streamed: Base64 of float32, 24 kHz."""
    recording_session_id: str | None = Field(None, description="Name of the recording.")


ClientMessage = Annotated[
    Annotated[ChatSocketRequest, Tag(REQUEST_TAG)]
    | Annotated[Stop | Heartbeat, Field(discriminator="type")],
    Field(union_mode="left_to_right"),
]

ServerMessage = Annotated[
    QueueMessage | ChatPrefillDone | ChatChunk | ChatDone | Problem, Field(discriminator="type")
]
