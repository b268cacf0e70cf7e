"""Types common to all protocols, and the parser of messages.

A wire field is defined here or in a sibling module and nowhere else. Imports nothing heavy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, AnyStr, Final, Literal, TypeVar

from pybase64 import b64decode, b64encode_as_string
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Tag,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError, to_json

from core import errors
from core.errors import OmniError
from core.schemas import limits
from core.schemas.limits import JSON_VALUES_MAX, MIB

MS_PER_S: Final = 1_000


def json_text(value: object) -> str:
    """Serialize five times as fast as the standard library."""
    return to_json(value).decode()


class WireModel(BaseModel):
    """Base of everything on the wire: frozen, unknown fields ignored, no NaN, no infinity.

    A description that does not fit into its field's line is the string after it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        validate_by_alias=True,
        validate_by_name=True,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    def to_json(self) -> str:
        return self.model_dump_json()


class OpenModel(WireModel):
    """Base of settings whose unknown keys are kept, to be named in a warning."""

    model_config = ConfigDict(extra="allow")

    def unknown(self, kind: str) -> str | None:
        """Return a sentence that names the unknown keys; None if there are none."""
        names = ", ".join(sorted(self.model_extra or {}))[:REASON_MAX_CHARS]
        return f"These {kind} are unknown and were ignored: {names}." if names else None


class Role(StrEnum):
    """Author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class TTSMode(StrEnum):
    """Use of the voice sample in the system prompt."""

    DEFAULT = "default"
    AUDIO_ASSISTANT = "audio_assistant"
    OMNI = "omni"
    AUDIO_ROLEPLAY = "audio_roleplay"
    VOICE_CLONING = "voice_cloning"


def _from_base64(audio: object) -> object:
    if isinstance(audio, bytes):  # from our own code
        return audio
    if not isinstance(audio, str):
        raise PydanticCustomError("base64", "Input should be a Base64 string")
    try:
        return b64decode(audio, validate=True)
    except ValueError as error:
        raise PydanticCustomError("base64", "The audio is not valid Base64.") from error


AudioBytes = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(b64encode_as_string, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string"}),
]
"""Samples, mono; their Base64 in JSON. Little-endian float32 except in OpenAI's protocols."""

CHUNK_MAX_BYTES: Final = limits.audio_bytes(limits.CHUNK_MAX_S)


def _short_enough(audio: bytes) -> bytes:
    if len(audio) > CHUNK_MAX_BYTES:
        text = f"The audio is longer than {limits.CHUNK_MAX_S:g} s."
        raise PydanticCustomError("audio_too_long", text)
    return audio


ChunkAudio = Annotated[
    AudioBytes,
    AfterValidator(_short_enough),
    WithJsonSchema({"type": "string", "maxLength": limits.audio_chars(limits.CHUNK_MAX_S)}),
]
"""Audio of one chunk of a live call, at 16 kHz."""

ReferenceAudio = Annotated[str, Field(max_length=limits.audio_chars(limits.REFERENCE_MAX_S))]
"""A voice sample: Base64 of little-endian float32 at 16 kHz, mono, at most 30 s."""

Id = Annotated[str, Field(max_length=limits.ID_MAX_CHARS)]
"""An id or a name."""

Text = Annotated[str, Field(max_length=limits.TEXT_MAX_CHARS)]

ServerPath = Annotated[str, Field(max_length=limits.PATH_MAX_CHARS)]
"""A file on the server: for library use; over the network it is confined or refused."""

SliceCount = Annotated[int, Field(ge=1, le=limits.MAX_SLICES)]
"""Number of tiles a picture is split into."""


class TextContent(WireModel):
    """A text."""

    type: Literal["text"] = Field("text", description="Content type.")
    text: Text = Field(description="The text; may be empty.")


class ImageContent(WireModel):
    """A picture."""

    type: Literal["image"] = Field("image", description="Content type.")
    data: str = Field(max_length=limits.base64_chars(limits.PICTURE_MAX_BYTES))
    """Base64 of an encoded picture (JPEG, PNG, WebP, GIF, BMP or TIFF)."""


class AudioContent(WireModel):
    """An audio clip."""

    type: Literal["audio"] = Field("audio", description="Content type.")
    data: str = Field(max_length=limits.audio_chars(limits.CHAT_AUDIO_MAX_S))
    """Base64 of little-endian float32 samples, mono, 16 kHz, at most 10 min."""
    sample_rate: int = limits.INPUT_SAMPLE_RATE_HZ
    """Samples per second; must be 16000."""

    @field_validator("sample_rate")
    @classmethod
    def _only_the_input_rate(cls, value: int) -> int:
        rate_hz = limits.INPUT_SAMPLE_RATE_HZ
        if value != rate_hz:
            raise ValueError(f"sample_rate must be {rate_hz}, not {value}: resample before sending")
        return value


class VideoContent(WireModel):
    """A video with its audio."""

    type: Literal["video"] = Field("video", description="Content type.")
    data: str = Field(max_length=limits.base64_chars(limits.VIDEO_MAX_BYTES))
    """Base64 of a container file such as MP4 or WebM."""
    stack_frames: int = Field(1, ge=1, le=limits.MAX_SLICES)
    """Pictures taken from each second of video."""


ContentItem = Annotated[
    TextContent | ImageContent | AudioContent | VideoContent, Field(discriminator="type")
]

ItemList = Annotated[list[ContentItem], Field(fail_fast=True, max_length=limits.ITEMS_MAX)]
"""Content items of one message, in order. Validation stops at the first error."""

Content = Annotated[Text, Tag("text")] | Annotated[ItemList, Tag("items")]


class Message(WireModel):
    """A message of one party."""

    role: Role = Field(description="Its author.")
    content: Content
    """A text, or a list of text, image, audio and video items in order."""


class TTSSamplingParams(WireModel):
    """Sampling of speech tokens."""

    top_p: float = Field(0.85, gt=0, le=1, description="Nucleus: probability mass kept.")
    top_k: int = Field(25, ge=0, le=10_000, description="Candidates kept; 0 keeps all.")
    repetition_penalty: float = Field(1.05, ge=0.1, le=5)
    """Above 1 discourages speech tokens drawn before."""
    temperature: float = Field(0.8, ge=0, le=2, description="Higher is more varied.")


class TTSConfig(WireModel):
    """Whether and with which voice a reply is spoken."""

    enabled: bool = Field(False, description="Speak the reply.")
    mode: TTSMode = TTSMode.AUDIO_ASSISTANT
    """Use of the voice sample in the prompt."""
    ref_audio_path: ServerPath | None = None
    """Voice sample as a file of the server; library use only."""
    ref_audio_data: ReferenceAudio | None = None
    """Voice sample, Base64 of float32 at 16 kHz, at most 30 s."""
    ref_audio_max_ms: int | None = Field(None, ge=1_000)
    """Use at most this much of the voice sample, ms."""
    output_path: ServerPath | None = None
    """Where to write the spoken reply; library use only."""
    language: str = Field("en", max_length=16)
    """Language of the prompt around the voice sample."""
    sampling: TTSSamplingParams = TTSSamplingParams()
    """Sampling of speech tokens."""

    @property
    def server_paths(self) -> tuple[str, ...]:
        paths = {"ref_audio_path": self.ref_audio_path, "output_path": self.output_path}
        return tuple(name for name, path in paths.items() if path)


class ImageConfig(WireModel):
    """How pictures are split into tiles."""

    max_slice_nums: SliceCount | None = None
    """Most tiles per picture, 1 to 16; null leaves it to the model."""
    use_image_id: bool = Field(False, description="Number the pictures in the prompt.")


Temperature = Annotated[
    float, Field(ge=0, le=2, description="Higher is more varied; 0 takes the likeliest token.")
]
LengthPenalty = Annotated[
    float, Field(ge=0.1, le=5, description="Above 1 makes replies longer, below 1 shorter.")
]


class TextSampling(WireModel):
    """Sampling of text tokens."""

    do_sample: bool = Field(True, description="Draw at random; false takes the likeliest token.")
    temperature: Temperature = 0.7
    top_p: float = Field(0.8, gt=0, le=1, description="Nucleus: probability mass kept.")
    top_k: int = Field(100, ge=0, le=200_000, description="Candidates kept; 0 keeps all.")
    length_penalty: LengthPenalty = 1.1


class GenerationConfig(TextSampling):
    """Generation of a reply's text."""

    max_new_tokens: int = Field(512, ge=1, le=4_096, description="Most tokens of the reply.")
    min_new_tokens: int = Field(0, ge=0, le=4_096, description="Fewest tokens of the reply.")
    max_inp_length: int = Field(8_192, ge=1, le=40_960)
    """Most tokens of the prompt; the rest is cut."""


class TokenStats(WireModel):
    """Token counts of one turn."""

    cached_tokens: int = Field(0, ge=0, description="Tokens already in the KV cache.")
    input_tokens: int = Field(0, ge=0, description="Tokens fed for this turn.")
    generated_tokens: int = Field(0, ge=0, description="Tokens of the reply.")
    total_tokens: int = Field(0, ge=0, description="Tokens in the KV cache afterwards.")


FUNCTIONS_MAX: Final = 128  # source: OpenAI's API reference, "tools"
FUNCTION_NAME: Final = r"^[a-zA-Z0-9_-]{1,64}$"  # same, "function.name"


class Function(WireModel):
    """A function that a reply may call."""

    name: str = Field(pattern=FUNCTION_NAME, description="Its name.")
    description: Text | None = Field(None, description="Description for the model.")
    # Any: a JSON schema.
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments; none: no arguments."""


AnyMessage = TypeVar("AnyMessage")

REASON_MAX_CHARS: Final = 300  # ours: a reason may quote the input
COUNTED_AT_ONCE: Final = MIB  # characters; a text far beyond the limit is not read to its end
SEARCHES_MAX: Final = 64  # more marks than most messages have outside their media

_TYPE_PROBLEMS = frozenset({"union_tag_invalid", "union_tag_not_found"})
_SYNTAX_PROBLEMS = frozenset({"json_invalid", "json_type"})
_AUDIO_FIELDS = frozenset(
    "audio audio_base64 ref_audio_base64 tts_ref_audio_base64 ref_audio_data audio_data "
    "sample_rate".split()
)
_FRAME_FIELDS = frozenset({"frame", "frame_base64", "frame_base64_list"})
_CONFIG_FIELDS = frozenset({"config", "generation", "streaming", "image", "tts"})


def count_values(part: str | bytes) -> int:
    """Return an upper bound of the number of values in a part of a JSON text.

    Every value but the outermost follows a comma or an opening bracket, so their number bounds that
    of the values and their depth. Those inside strings are counted too. Takes no memory.
    """
    if isinstance(part, str):
        return sum(_count(part, mark) for mark in ",[{")
    return sum(_count(part, mark) for mark in (b",", b"[", b"{"))


def _count(part: AnyStr, mark: AnyStr) -> int:
    """Return `part.count(mark)`; where the mark is rare, searches take a twentieth of the time."""
    at = -1
    for found in range(SEARCHES_MAX):
        at = part.find(mark, at + 1)
        if at < 0:
            return found
    return SEARCHES_MAX + part.count(mark, at + 1)


def check_values(count: int) -> None:
    if count > JSON_VALUES_MAX:
        raise errors.TooBigError(
            f"The message has more than {JSON_VALUES_MAX} commas and opening brackets."
        )


def check_json_shape(text: str | bytes) -> None:
    """Raise a TooBigError for a JSON text of too many values; call this before any parser."""
    if len(text) <= JSON_VALUES_MAX:
        return  # no text has more values than characters
    counted = 0
    for start in range(0, len(text), COUNTED_AT_ONCE):
        counted += count_values(text[start : start + COUNTED_AT_ONCE])
        check_values(counted)


def parse_message(adapter: TypeAdapter[AnyMessage], text: str | bytes) -> AnyMessage:
    """Validate the JSON text of one message.

    Raises `UnknownTypeError` if the type is missing or unknown, `AudioError` for audio that is
    missing, not text, too long or of another rate, `PictureError` for a frame that is missing or no
    text, `BadConfigError` for a setting, `TooBigError` for too many values, see `check_json_shape`,
    and `BadPayloadError` for anything else, such as invalid JSON.
    """
    check_json_shape(text)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise explain(error) from error


def reason_of(problem: ErrorDetails) -> str:
    """Return why a value is invalid, without a full stop."""
    return problem["msg"].removeprefix("Value error, ")[:REASON_MAX_CHARS].removesuffix(".")


def explain(error: ValidationError) -> OmniError:
    """Convert a validation error: its first problem in one sentence, never the input."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if any(map(_is_of_type, problems)):
        return errors.UnknownTypeError("The message's type is missing or unknown.")
    problem = next((found for found in problems if not _is_other_form(found)), problems[0])
    kind, path = problem["type"], [str(part) for part in problem["loc"]]
    if kind in _SYNTAX_PROBLEMS:
        return errors.BadPayloadError("The message is not valid JSON.")
    sentence = f"{'.'.join(path) or 'message'}: {reason_of(problem)}."
    names, last = set(path), path[-1] if path else ""
    is_audio = last in _AUDIO_FIELDS or (last == "data" and "audio" in names)
    # Further in, behind the message's type and field, "image" is a kind of content.
    if set(path[:2]) & _CONFIG_FIELDS and (not is_audio or last == "sample_rate"):
        return errors.BadConfigError(sentence)
    if names & _FRAME_FIELDS:
        return errors.PictureError(sentence)
    return errors.AudioError(sentence) if is_audio else errors.BadPayloadError(sentence)


def _is_of_type(problem: ErrorDetails) -> bool:
    kind, path = problem["type"], problem["loc"]
    return (kind in _TYPE_PROBLEMS and not path) or (
        kind == "literal_error" and path[1:] == ("type",)
    )


def _is_other_form(problem: ErrorDetails) -> bool:
    """Whether a list of content items was only rejected as a text."""
    return problem["type"] == "string_type" and problem["loc"][-2:] == ("content", "text")
