"""The body of `POST /v1/chat/completions`, and the request that a worker gets for it.

Fields that are not declared here are ignored, as OpenAI's own server ignores what a model lacks.
Source: OpenAI's API reference, "Create chat completion".
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from core.schemas import limits
from core.schemas.chat import SOCKET_MAX_NEW_TOKENS
from core.schemas.common import WireModel

STOP_SEQUENCES_MAX: Final = 4  # Source: the API reference
NEW_TOKENS_MAX: Final = 4_096
WIRE_CHARS: Final = limits.base64_chars(limits.VIDEO_MAX_BYTES)

AnswerFormat = Literal["wav", "mp3", "flac", "opus", "pcm16"]


class TextPart(WireModel):
    """A piece of text."""

    type: Literal["text"]
    text: str = Field(max_length=limits.TEXT_MAX_CHARS)


class Url(WireModel):
    """A file inside a data URL; this server fetches nothing."""

    url: str = Field(max_length=WIRE_CHARS + 128)


class ImagePart(WireModel):
    """A picture."""

    type: Literal["image_url"]
    image_url: Url


class VideoPart(WireModel):
    """A video with its sound; an extension that vLLM has too."""

    type: Literal["video_url"]
    video_url: Url


class InputAudio(WireModel):
    """A sound file as Base64; its format is told by its content."""

    data: str = Field(max_length=WIRE_CHARS)


class AudioPart(WireModel):
    """A piece of sound."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class RefusalPart(WireModel):
    """What an assistant declined with."""

    type: Literal["refusal"]
    refusal: str = Field(max_length=limits.TEXT_MAX_CHARS)


Part = Annotated[
    TextPart | ImagePart | VideoPart | AudioPart | RefusalPart, Field(discriminator="type")
]


class SpokenAnswer(WireModel):
    """An earlier answer, named by the id of its sound."""

    id: str = Field(max_length=limits.ID_MAX_CHARS)


class ChatMessage(WireModel):
    """One message of the history."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        Annotated[str, Field(max_length=limits.TEXT_MAX_CHARS)]
        | Annotated[list[Part], Field(max_length=limits.ITEMS_MAX)]
        | None
    ) = None
    audio: SpokenAnswer | None = None


class AudioOptions(WireModel):
    """How an answer is spoken."""

    voice: str | dict[str, str] = "default"
    format: AnswerFormat = "wav"

    @property
    def voice_name(self) -> str:
        """The voice's name or id."""
        return self.voice.get("id", "") if isinstance(self.voice, dict) else self.voice


class StreamOptions(WireModel):
    """What a stream says besides the answer."""

    include_usage: bool = False


class CompletionRequest(WireModel):
    """The body of a request."""

    model: str = Field(max_length=limits.ID_MAX_CHARS)
    messages: list[ChatMessage] = Field(min_length=1, max_length=limits.MESSAGES_MAX)
    modalities: list[Literal["text", "audio"]] = Field(["text"], min_length=1)
    audio: AudioOptions | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    stop: str | Annotated[list[str], Field(max_length=STOP_SEQUENCES_MAX)] | None = None
    n: Literal[1] | None = None
    # Any: only whether something is asked for matters.
    tools: list[Any] | None = Field(None, max_length=0)
    response_format: ResponseFormat | None = None

    @model_validator(mode="after")
    def _audio_is_described(self) -> CompletionRequest:
        if self.speaks and self.audio is None:
            raise ValueError("audio: required when modalities contain audio")
        if self.speaks and self.stream and self.answer_audio.format != "pcm16":
            raise ValueError("audio.format: a stream has pcm16 only")
        return self

    @property
    def speaks(self) -> bool:
        """Whether the answer is spoken."""
        return "audio" in self.modalities

    @property
    def answer_audio(self) -> AudioOptions:
        """How the answer is spoken."""
        return self.audio or AudioOptions()

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        """What the answer ends before."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(sequence for sequence in given if sequence)

    @property
    def token_limit(self) -> int:
        """Most tokens of the answer."""
        wanted = self.max_completion_tokens or self.max_tokens or SOCKET_MAX_NEW_TOKENS
        return min(wanted, NEW_TOKENS_MAX)


class ResponseFormat(WireModel):
    """In which form the answer is; this model gives text."""

    type: Literal["text"]


CompletionRequest.model_rebuild()
