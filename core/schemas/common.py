"""Words every protocol shares: roles, content items, messages, generation and voice settings.

A wire field is defined here or in a sibling module and nowhere else. Never import anything heavy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Tag, field_validator

from core.schemas import limits


class WireModel(BaseModel):
    """Base of everything on the wire: frozen, unknown fields ignored, no NaN, no infinity."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        validate_by_alias=True,
        validate_by_name=True,
        protected_namespaces=(),
    )

    def to_json(self) -> str:
        """Return the text of one WebSocket message."""
        return self.model_dump_json()


class Role(StrEnum):
    """Who says a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class TTSMode(StrEnum):
    """What the system prompt asks the model to do with the voice sample."""

    DEFAULT = "default"
    AUDIO_ASSISTANT = "audio_assistant"
    OMNI = "omni"
    AUDIO_ROLEPLAY = "audio_roleplay"
    VOICE_CLONING = "voice_cloning"


ReferenceAudio = Annotated[str, Field(max_length=limits.audio_chars(limits.REFERENCE_MAX_S))]
"""A voice sample: Base64 of little-endian float32 at 16 kHz, mono, at most 30 s."""

ServerPath = Annotated[str, Field(max_length=limits.PATH_MAX_CHARS)]
"""A file on the server: for use as a library; over the network it is confined or refused."""

SliceCount = Annotated[int, Field(ge=1, le=limits.MAX_SLICES)]
"""Into how many tiles a picture may be cut."""


class TextContent(WireModel):
    """A piece of text."""

    type: Literal["text"] = Field("text", description="Kind of content item.")
    text: str = Field(max_length=limits.TEXT_MAX_CHARS, description="The text; may be empty.")


class ImageContent(WireModel):
    """A picture."""

    type: Literal["image"] = Field("image", description="Kind of content item.")
    data: str = Field(
        max_length=limits.base64_chars(limits.PICTURE_MAX_BYTES),
        description="Base64 of an encoded picture (JPEG, PNG, WebP, GIF, BMP or TIFF).",
    )


class AudioContent(WireModel):
    """A piece of sound."""

    type: Literal["audio"] = Field("audio", description="Kind of content item.")
    data: str = Field(
        max_length=limits.audio_chars(limits.CHAT_AUDIO_MAX_S),
        description="Base64 of little-endian float32 samples, mono, 16 kHz, at most 10 min.",
    )
    sample_rate: int = Field(
        limits.INPUT_SAMPLE_RATE_HZ, description="Samples per second; must be 16000."
    )

    @field_validator("sample_rate")
    @classmethod
    def _only_the_input_rate(cls, value: int) -> int:
        if value != limits.INPUT_SAMPLE_RATE_HZ:
            raise ValueError(
                f"sample_rate must be {limits.INPUT_SAMPLE_RATE_HZ}, not {value}: "
                "resample before sending"
            )
        return value


class VideoContent(WireModel):
    """A video with its sound."""

    type: Literal["video"] = Field("video", description="Kind of content item.")
    data: str = Field(
        max_length=limits.base64_chars(limits.VIDEO_MAX_BYTES),
        description="Base64 of a container file such as MP4 or WebM.",
    )
    stack_frames: int = Field(
        1, ge=1, le=limits.MAX_SLICES, description="Pictures taken from each second of video."
    )


ContentItem = Annotated[
    TextContent | ImageContent | AudioContent | VideoContent, Field(discriminator="type")
]


ItemList = Annotated[list[ContentItem], Field(fail_fast=True, max_length=limits.ITEMS_MAX)]
"""What somebody said, in order. The first mistake in it is enough to refuse it."""

Content = (
    Annotated[str, Field(max_length=limits.TEXT_MAX_CHARS), Tag("text")]
    | Annotated[ItemList, Tag("items")]
)


class Message(WireModel):
    """What one party said."""

    role: Role = Field(description="Who says it.")
    content: Content = Field(
        description="A text, or a list of text, image, audio and video items in order."
    )


class TTSSamplingParams(WireModel):
    """How speech tokens are drawn."""

    top_p: float = Field(0.85, gt=0, le=1, description="Nucleus: probability mass kept.")
    top_k: int = Field(25, ge=0, le=10_000, description="Candidates kept; 0 keeps all.")
    repetition_penalty: float = Field(
        1.05, ge=0.1, le=5, description="Above 1 discourages speech tokens drawn before."
    )
    temperature: float = Field(0.8, ge=0, le=2, description="Higher is more varied.")


class TTSConfig(WireModel):
    """Whether and with which voice a reply is spoken."""

    enabled: bool = Field(False, description="Speak the reply.")
    mode: TTSMode = Field(
        TTSMode.AUDIO_ASSISTANT, description="What the model is asked to do with the voice sample."
    )
    ref_audio_path: ServerPath | None = Field(
        None, description="Voice sample as a file of the server; library use only."
    )
    ref_audio_data: ReferenceAudio | None = Field(
        None, description="Voice sample, Base64 of float32 at 16 kHz, at most 30 s."
    )
    ref_audio_max_ms: int | None = Field(
        None, ge=1_000, description="Use at most this much of the voice sample, ms."
    )
    output_path: ServerPath | None = Field(
        None, description="Where to write the spoken reply; library use only."
    )
    language: str = Field(
        "en", max_length=16, description="Language of the prompt around the voice sample."
    )
    sampling: TTSSamplingParams = Field(
        default_factory=TTSSamplingParams, description="How speech tokens are drawn."
    )

    @property
    def server_paths(self) -> tuple[str, ...]:
        """Names of the fields set that point into the server's file system."""
        paths = {"ref_audio_path": self.ref_audio_path, "output_path": self.output_path}
        return tuple(name for name, path in paths.items() if path)


class ImageConfig(WireModel):
    """How pictures are cut before the model sees them."""

    max_slice_nums: SliceCount | None = Field(
        None, description="Most tiles per picture, 1 to 16; null leaves it to the model."
    )
    use_image_id: bool = Field(False, description="Number the pictures in the prompt.")


class GenerationConfig(WireModel):
    """How the text of a reply is drawn."""

    max_new_tokens: int = Field(512, ge=1, le=4_096, description="Most tokens of the reply.")
    min_new_tokens: int = Field(0, ge=0, le=4_096, description="Fewest tokens of the reply.")
    do_sample: bool = Field(True, description="Draw at random; false takes the likeliest token.")
    temperature: float = Field(
        0.7, ge=0, le=2, description="Higher is more varied; 0 takes the likeliest token."
    )
    top_p: float = Field(0.8, gt=0, le=1, description="Nucleus: probability mass kept.")
    top_k: int = Field(100, ge=0, le=200_000, description="Candidates kept; 0 keeps all.")
    length_penalty: float = Field(
        1.1, ge=0.1, le=5, description="Above 1 makes replies longer, below 1 shorter."
    )
    max_inp_length: int = Field(
        8_192, ge=1, le=40_960, description="Most tokens of the prompt; the rest is cut."
    )


class TokenStats(WireModel):
    """What one turn cost, in tokens."""

    cached_tokens: int = Field(0, ge=0, description="Tokens already in the KV cache.")
    input_tokens: int = Field(0, ge=0, description="Tokens fed for this turn.")
    generated_tokens: int = Field(0, ge=0, description="Tokens of the reply.")
    total_tokens: int = Field(0, ge=0, description="Tokens in the KV cache afterwards.")
