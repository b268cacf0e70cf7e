"""Body of `POST /v1/chat/completions`, and validation of JSON responses.

Undeclared fields are ignored, as OpenAI's server ignores those that a model does not support.
Source: OpenAI's API reference, "Create chat completion".
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

import referencing
from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import UnknownType
from jsonschema.validators import extend
from pydantic import Field

from core.errors import BadRequestError, ErrorCode
from core.schemas import limits
from core.schemas.chat import SOCKET_MAX_NEW_TOKENS
from core.schemas.common import FUNCTIONS_MAX, Function, Id, Text, WireModel
from core.schemas.openai_errors import FieldError, OpenAIError
from core.tools import Offer

Json = dict[str, Any]  # Any: a JSON object

SCHEMA: Final = "response_format.json_schema.schema"
# Python's `re` has no time limit for patterns of clients.
REFUSED: Final = frozenset({"pattern", "patternProperties"})
REFERENCES: Final = ("$ref", "$dynamicRef")
SCHEMA_MAX_CHARS: Final = 32 * 1024  # ours: no context holds more, and checking it takes a second
REFERENCES_MAX: Final = 10_000  # ours: followed for one response; a schema can nest them endlessly
# What the library raises for such schemas: those that references lead to are not checked before.
UNCHECKABLE: Final = (
    referencing.exceptions.Unresolvable,
    UnknownType,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
PROMPT: Final = "Answer with one JSON object and nothing else, not even Markdown around it."


def missing(param: str, message: str) -> FieldError:
    """Return the error for a field that is required only with others, or only in a form."""
    return FieldError("missing_required_parameter", f"{param}: {message}", param)


class InvalidAnswerError(OpenAIError):
    code = ErrorCode.GENERATION_FAILED
    openai_code = "invalid_json"


class JsonSchema(WireModel):
    name: str = Field(pattern=r"^[\w-]{1,64}$")
    description: str | None = Field(None, max_length=limits.TEXT_MAX_CHARS)
    schema_: Json = Field(alias="schema")


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def prompt(self) -> str:
        if self.json_schema is None:
            return PROMPT
        about = self.json_schema.description or ""
        written = json.dumps(self.json_schema.schema_, ensure_ascii=False)
        return "\n".join(filter(None, (PROMPT, about, f"It fits this JSON Schema:\n{written}")))

    def check(self) -> None:
        if self.type != "json_schema":
            return
        if self.json_schema is None:
            raise missing("response_format.json_schema", "a schema is required.")
        if len(json.dumps(self.json_schema.schema_, ensure_ascii=False)) > SCHEMA_MAX_CHARS:
            raise BadRequestError(f"{SCHEMA}: longer than {SCHEMA_MAX_CHARS} characters.")
        refused = REFUSED & set(_keywords(self.json_schema.schema_))
        if refused:
            raise BadRequestError(f"{SCHEMA}: '{min(refused)}' is not supported.")
        try:
            Draft202012Validator.check_schema(self.json_schema.schema_)
        except (SchemaError, RecursionError) as error:
            reason = error.message if isinstance(error, SchemaError) else "nested too deep"
            raise BadRequestError(f"{SCHEMA}: not a valid JSON Schema: {reason[:200]}.") from None

    def end_of(self, text: str) -> int:
        """Return the end of the JSON object at the beginning of a text; 0 if it is incomplete."""
        begin = len(text) - len(text.lstrip())
        try:
            return json.JSONDecoder().raw_decode(text, begin)[1]
        except (ValueError, RecursionError):
            return 0

    def check_answer(self, text: str) -> None:
        try:
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise InvalidAnswerError("The model's answer is not a JSON object.")
        try:
            if self.json_schema is not None:
                _validator(self.json_schema.schema_).validate(value)
        except ValidationError as error:
            reason = f"does not fit the schema: {error.message[:200]}"
            raise InvalidAnswerError(f"The model's answer {reason}.") from None
        except UNCHECKABLE:
            raise InvalidAnswerError(
                "The model's answer cannot be checked: the schema has too many references or one "
                "that leads to no schema, or a number is too large."
            ) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON.")


def _keywords(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name == "patternProperties" or not isinstance(value, dict | bool):
                yield name
            yield from _keywords(value)
    elif isinstance(schema, list):
        for part in schema:
            yield from _keywords(part)


# Any: jsonschema has no types.
def _validator(schema: Json) -> Any:
    """Return a validator that fetches nothing and bounds the references it follows."""
    followed = 0

    def counted(keyword: str) -> Any:
        follow = Draft202012Validator.VALIDATORS[keyword]

        def check(*arguments: Any) -> Iterator[ValidationError]:
            nonlocal followed
            followed += 1
            if followed > REFERENCES_MAX:
                raise RecursionError
            yield from follow(*arguments) or ()

        return check

    bounded = extend(Draft202012Validator, {keyword: counted(keyword) for keyword in REFERENCES})
    return bounded(schema, registry=referencing.Registry())


STOP_SEQUENCES_MAX: Final = 4  # Source: the API reference
NEW_TOKENS_MAX: Final = 4_096
AUDIO_PARTS_MAX: Final = 64  # ours: each is decoded by a process, which takes half a second
WIRE_CHARS: Final = limits.base64_chars(limits.VIDEO_MAX_BYTES)

AnswerFormat = Literal["wav", "mp3", "flac", "opus", "pcm16"]


class TextPart(WireModel):
    type: Literal["text"]
    text: Text


class Url(WireModel):
    """A data URL; no URL is fetched."""

    url: str = Field(max_length=WIRE_CHARS + 128)


class ImagePart(WireModel):
    type: Literal["image_url"]
    image_url: Url


class VideoPart(WireModel):
    """A video with its audio; an extension, as in vLLM."""

    type: Literal["video_url"]
    video_url: Url


class InputAudio(WireModel):
    data: str = Field(max_length=WIRE_CHARS)


class AudioPart(WireModel):
    type: Literal["input_audio"]
    input_audio: InputAudio


class RefusalPart(WireModel):
    """A refusal of the assistant."""

    type: Literal["refusal"]
    refusal: Text


Part = Annotated[
    TextPart | ImagePart | VideoPart | AudioPart | RefusalPart, Field(discriminator="type")
]


class SpokenAnswer(WireModel):
    """An earlier response, by the id of its audio."""

    id: Id


class FunctionName(WireModel):
    name: Id


class CalledFunction(FunctionName):
    arguments: Text


class ToolCall(WireModel):
    id: Id
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(WireModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[Part], Field(max_length=limits.ITEMS_MAX)] | None = None
    audio: SpokenAnswer | None = None
    tool_calls: list[ToolCall] | None = Field(None, max_length=FUNCTIONS_MAX)
    tool_call_id: Id | None = None


class SpokenWith(WireModel):
    voice: str | dict[str, str] = "default"

    @property
    def voice_name(self) -> str:
        return self.voice.get("id", "") if isinstance(self.voice, dict) else self.voice


class AudioOptions(SpokenWith):
    format: AnswerFormat = "wav"


class FunctionTool(WireModel):
    type: Literal["function"]
    function: Function


class FunctionChoice(WireModel):
    type: Literal["function"]
    function: FunctionName


class StreamOptions(WireModel):
    include_usage: bool = False


class CompletionRequest(WireModel):
    model: Id
    messages: list[ChatMessage] = Field(min_length=1, max_length=limits.MESSAGES_MAX)
    modalities: list[Literal["text", "audio"]] | None = Field(None, min_length=1)
    audio: AudioOptions | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    stop: str | Annotated[list[str], Field(max_length=STOP_SEQUENCES_MAX)] | None = None
    n: Literal[1] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    tools: list[FunctionTool] | None = Field(None, max_length=FUNCTIONS_MAX)
    tool_choice: Literal["auto", "none", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None

    def check(self) -> None:
        names = [tool.function.name for tool in self.tools or []]
        if self.audio_parts > AUDIO_PARTS_MAX:
            raise BadRequestError(f"messages: more than {AUDIO_PARTS_MAX} parts are audio.")
        if self.json_format is not None:
            self.json_format.check()
            if self.speaks:
                raise BadRequestError("response_format: a spoken response is text.")
        if self.speaks and self.audio is None:
            raise missing("audio", "required when modalities contain audio.")
        if self.speaks and self.stream and self.answer_audio.format != "pcm16":
            raise BadRequestError("audio.format: a stream supports pcm16 only.")
        if len(set(names)) < len(names):
            raise BadRequestError("tools: two functions have the same name.")
        if self.tool_choice == "required" and not names:
            raise BadRequestError("tool_choice: there are no tools to call.")
        if isinstance(self.tool_choice, FunctionChoice) and not self.offer.functions:
            raise BadRequestError("tool_choice.function.name: no tool has this name.")

    @property
    def audio_parts(self) -> int:
        contents = (one.content for one in self.messages if isinstance(one.content, list))
        return sum(isinstance(part, AudioPart) for part in itertools.chain.from_iterable(contents))

    @property
    def offer(self) -> Offer:
        functions = tuple(tool.function for tool in self.tools or [])
        match self.tool_choice:
            case "none":
                return Offer()
            case FunctionChoice(function=chosen):
                named = tuple(each for each in functions if each.name == chosen.name)
                return Offer(named, must_call=True)
            case choice:
                return Offer(functions, must_call=choice == "required")

    @property
    def json_format(self) -> ResponseFormat | None:
        wanted = self.response_format
        return wanted if wanted is not None and wanted.type != "text" else None

    @property
    def reply_start(self) -> str:
        return "{" if self.json_format and not self.offer.functions else self.offer.reply_start

    @property
    def prompt(self) -> str:
        wanted = self.json_format.prompt if self.json_format is not None else ""
        return "\n\n".join(filter(None, (self.offer.prompt, wanted)))

    @property
    def speaks(self) -> bool:
        """Whether the response is spoken; a required tool call is not."""
        return "audio" in (self.modalities or ()) and not self.offer.must_call

    @property
    def answer_audio(self) -> AudioOptions:
        return self.audio or AudioOptions()

    @property
    def stop_sequences(self) -> tuple[str, ...]:
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(sequence for sequence in given if sequence)

    @property
    def token_limit(self) -> int:
        wanted = self.max_completion_tokens or self.max_tokens or SOCKET_MAX_NEW_TOKENS
        return min(wanted, NEW_TOKENS_MAX)
