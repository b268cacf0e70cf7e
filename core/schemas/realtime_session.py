"""Items and settings of a Realtime session, as sent by clients: messages, calls and their outputs.

All settings are optional. The flat spellings of the protocol's beta are accepted too.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from core.schemas import limits
from core.schemas.common import (
    FUNCTIONS_MAX,
    AudioBytes,
    Function,
    Id,
    ReferenceAudio,
    Text,
    WireModel,
)

ITEM_ID_MAX_CHARS: Final = 64
CALL_ID_MAX_CHARS: Final = 64
PARTS_MAX: Final = 64  # ours: content parts of one item
DATA_URL_HEADS: Final = tuple(
    f"data:image/{kind};base64," for kind in ("png", "jpeg", "jpg", "webp")
)

ItemId = Annotated[str, Field(min_length=1, max_length=ITEM_ID_MAX_CHARS)]


class TextPart(WireModel):
    """A text of any role, under any of the protocol's names."""

    type: Literal["input_text", "text", "output_text"]
    text: Text


class AudioPart(WireModel):
    type: Literal["input_audio"]
    audio: AudioBytes | None = None  # Base64 in the session's input format
    transcript: Text | None = None


class SpokenPart(WireModel):
    """The assistant's speech as a transcript; its audio is not accepted."""

    type: Literal["output_audio", "audio"]
    transcript: Text | None = None


class PicturePart(WireModel):
    type: Literal["input_image"]
    # Data URL of a PNG, JPEG or WebP; other URLs are not fetched.
    image_url: str = Field(max_length=limits.base64_chars(limits.PICTURE_MAX_BYTES) + 64)
    detail: str | None = Field(None, max_length=16)  # accepted, without effect

    @field_validator("image_url")
    @classmethod
    def _is_data(cls, value: str) -> str:
        if not value.startswith(DATA_URL_HEADS):
            raise ValueError("send the picture as data:image/jpeg;base64,DATA, PNG or WebP")
        return value

    @property
    def base64(self) -> str:
        return self.image_url.partition(",")[2]


Part = Annotated[TextPart | AudioPart | SpokenPart | PicturePart, Field(discriminator="type")]


class MessageItem(WireModel):
    type: Literal["message"] = "message"
    id: ItemId | None = None  # by default chosen by the server
    role: Literal["user", "assistant", "system", "developer"]
    content: tuple[Part, ...] = Field((), max_length=PARTS_MAX)  # in order

    @property
    def known_role(self) -> Literal["user", "assistant", "system"]:
        return "system" if self.role == "developer" else self.role


class FunctionCallItem(WireModel):
    """A function call of an earlier conversation."""

    type: Literal["function_call"]
    id: ItemId | None = None
    call_id: str | None = Field(None, max_length=CALL_ID_MAX_CHARS)
    name: str = Field(max_length=64)
    arguments: Text = "{}"  # JSON


class FunctionOutputItem(WireModel):
    type: Literal["function_call_output"]
    id: ItemId | None = None
    call_id: str = Field(max_length=CALL_ID_MAX_CHARS)
    output: Text  # text, usually JSON


class ItemReference(WireModel):
    """Reference to an item of the conversation, as input of a response."""

    type: Literal["item_reference"]
    id: ItemId


def _kind(value: object) -> str:
    """Return an item's type; beta clients may omit `message`."""
    kind = value.get("type", "message") if isinstance(value, dict) else ""
    return kind if isinstance(kind, str) else ""


_NewItem = (
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
)
NO_ITEM: Final = "The type should be 'message', 'function_call' or 'function_call_output'"
ClientItem = Annotated[_NewItem, Discriminator(_kind, "item_type", NO_ITEM)]
"""Items a client may create."""

InputItem = Annotated[
    _NewItem | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind, "item_type", f"{NO_ITEM}, or 'item_reference'"),
]
"""Input of a response instead of the conversation."""


# --- settings ---

PCM_RATES_HZ: Final = (16_000, 24_000, 48_000)
TELEPHONE_RATE_HZ: Final = 8_000
MAX_OUTPUT_TOKENS: Final = 4_096
METADATA_MAX: Final = 16
INPUT_ITEMS_MAX: Final = 500

Modality = Literal["text", "audio"]
TokenLimit = Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | Literal["inf"]
BetaFormat = Literal["pcm16", "g711_ulaw", "g711_alaw"]


class AudioFormat(WireModel):
    """Format of headerless mono audio."""

    # 16-bit little-endian, or G.711 μ-law or A-law.
    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int | None = None  # PCM: 16000, 24000 or 48000 Hz; G.711: 8000

    @model_validator(mode="after")
    def _has_a_known_rate(self) -> AudioFormat:
        rates = PCM_RATES_HZ if self.type == "audio/pcm" else (TELEPHONE_RATE_HZ,)
        if self.rate is not None and self.rate not in rates:
            raise ValueError(f"rate must be one of {', '.join(map(str, rates))}")
        return self

    @property
    def is_pcm(self) -> bool:
        return self.type == "audio/pcm"

    @cached_property
    def rate_hz(self) -> int:
        return (self.rate or limits.OUTPUT_SAMPLE_RATE_HZ) if self.is_pcm else TELEPHONE_RATE_HZ

    @cached_property
    def sample_bytes(self) -> int:
        return 2 if self.is_pcm else 1

    @cached_property
    def bytes_per_s(self) -> int:
        return self.rate_hz * self.sample_bytes

    def silence(self, duration_ms: int) -> bytes:
        sample = {"audio/pcm": b"\0\0", "audio/pcmu": b"\xff", "audio/pcma": b"\xd5"}[self.type]
        return sample * (duration_ms * self.rate_hz // 1_000)

    @classmethod
    def of_beta(cls, name: BetaFormat) -> AudioFormat:
        types = {"g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
        return cls.model_validate({"type": types.get(name, "audio/pcm")})


class ServerVad(WireModel):
    """Silence ends the user's turn."""

    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(0.5, ge=0, le=1)  # probability at which speech begins
    prefix_padding_ms: int = Field(300, ge=0, le=10_000)  # padding before speech, ms
    silence_duration_ms: int = Field(500, ge=0, le=60_000)  # silence that ends a turn, ms
    # Silence after which the model speaks, ms.
    idle_timeout_ms: int | None = Field(None, ge=1_000, le=600_000)
    create_response: bool = True  # respond to each turn
    interrupt_response: bool = True  # speech cancels the active response

    @property
    def silence_ms(self) -> int:
        return self.silence_duration_ms


EAGERNESS_SILENCE_MS: Final = {"low": 1_200, "medium": 700, "auto": 700, "high": 400}


class SemanticVad(WireModel):
    """Silence ends the user's turn, sooner the more eager the model is."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"  # how soon the model responds
    create_response: bool = True  # respond to each turn
    interrupt_response: bool = True  # speech cancels the active response

    threshold: float = Field(0.5, ge=0, le=1, exclude=True)  # as in server_vad
    prefix_padding_ms: int = Field(300, ge=0, exclude=True)  # as in server_vad
    idle_timeout_ms: None = Field(None, exclude=True)  # not supported

    @property
    def silence_ms(self) -> int:
        return EAGERNESS_SILENCE_MS[self.eagerness]


TurnDetection = Annotated[ServerVad | SemanticVad, Field(discriminator="type")]


class Transcription(WireModel):
    model: Id | None = None  # accepted, without effect
    language: str | None = Field(None, max_length=16)
    prompt: Text | None = None  # hint for the transcriber


class NoiseReduction(WireModel):
    """Accepted, without effect."""

    type: Literal["near_field", "far_field"]  # where the microphone is


class Voice(WireModel):
    id: Id


VoiceName = Id | Voice


class AudioInput(WireModel):
    format: AudioFormat = AudioFormat()
    transcription: Transcription | None = None
    noise_reduction: NoiseReduction | None = None  # accepted, without effect
    turn_detection: TurnDetection | None = None  # null: the client ends turns


class VoiceChoice(WireModel):
    voice: VoiceName = "default"  # an uploaded voice; any other name selects the server's
    # Ours: the voice itself, Base64 of float32 at 16 kHz, at most 30 s.
    voice_sample: ReferenceAudio | None = None


class AudioOutput(VoiceChoice):
    format: AudioFormat = AudioFormat()
    speed: float = Field(1.0, ge=0.25, le=1.5)  # accepted; always 1.0


class SessionAudio(WireModel):
    input: AudioInput = AudioInput()
    output: AudioOutput = AudioOutput()


class FunctionTool(Function):
    type: Literal["function"] = "function"  # no other tools are supported


class FunctionChoice(WireModel):
    """A function that has to be called."""

    type: Literal["function"] = "function"
    name: str = Field(max_length=64)


ToolChoice = Literal["auto", "none", "required"] | FunctionChoice
Tools = Annotated[tuple[FunctionTool, ...], Field(max_length=FUNCTIONS_MAX)]


class RetentionRatio(WireModel):
    """Share of the conversation kept when the context is full."""

    type: Literal["retention_ratio"] = "retention_ratio"
    retention_ratio: float = Field(ge=0, le=1)  # share of the tokens kept


Truncation = Literal["auto", "disabled"] | RetentionRatio


class _Shared(WireModel):
    """Settings common to sessions and responses."""

    instructions: Text | None = None
    # ["audio"], whose transcript is sent as well, or ["text"].
    output_modalities: tuple[Modality, ...] | None = Field(None, min_length=1, max_length=1)
    # Beta spelling: ["text", "audio"] or ["text"].
    modalities: tuple[Modality, ...] | None = Field(None, min_length=1, max_length=2)
    tools: Tools | None = None  # functions the model may call
    tool_choice: ToolChoice | None = None  # whether it may or must call one
    max_output_tokens: TokenLimit | None = None  # most tokens of a response
    max_response_output_tokens: TokenLimit | None = None  # beta spelling
    temperature: float | None = Field(None, ge=0, le=2)  # of the text; beta only
    voice: VoiceName | None = None  # beta spelling
    output_audio_format: BetaFormat | None = None  # beta spelling


class SessionPatch(_Shared):
    """Settings changed by `session.update`."""

    type: Literal["realtime"] | None = None
    audio: SessionAudio | None = None
    truncation: Truncation | None = None  # handling of a full context
    tracing: Any = None  # Any: echoed, without effect
    input_audio_format: BetaFormat | None = None  # beta spelling
    input_audio_transcription: Transcription | None = None  # beta spelling
    turn_detection: TurnDetection | None = None  # beta spelling


class ResponseAudio(WireModel):
    output: AudioOutput = AudioOutput()


class ResponsePatch(_Shared):
    audio: ResponseAudio | None = None
    # Whether the response is part of the conversation.
    conversation: Literal["auto", "none"] = "auto"
    metadata: dict[str, Any] | None = Field(None, max_length=METADATA_MAX)  # Any: echoed
    # Items to respond to instead of the conversation.
    input: tuple[InputItem, ...] | None = Field(None, max_length=INPUT_ITEMS_MAX)
