"""Turns the text of one WebSocket message into a model, or into the error a client is told."""

from __future__ import annotations

from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from core.errors import (
    AudioError,
    BadConfigError,
    BadPayloadError,
    OmniError,
    PictureError,
    TooBigError,
    UnknownTypeError,
)
from core.schemas.limits import JSON_VALUES_MAX, MIB

AnyMessage = TypeVar("AnyMessage")

COUNTED_AT_ONCE: Final = MIB  # characters; then a text far beyond the limit is read no further

_TYPE_PROBLEMS = frozenset({"union_tag_invalid", "union_tag_not_found"})
_SYNTAX_PROBLEMS = frozenset({"json_invalid", "json_type"})
_AUDIO_FIELDS = frozenset(
    {
        "audio",
        "audio_base64",
        "ref_audio_base64",
        "tts_ref_audio_base64",
        "ref_audio_data",
        "audio_data",
        "sample_rate",
    }
)
_FRAME_FIELDS = frozenset({"frame", "frame_base64", "frame_base64_list"})
_CONFIG_FIELDS = frozenset({"config", "generation", "streaming", "image", "tts"})


def count_values(part: str | bytes) -> int:
    """Return how many values a part of a JSON text may at most have.

    Every value but the outermost follows a comma or an opening bracket, so their number bounds that
    of the values and how deep they are nested. Those inside strings are counted too. Counting
    takes half a millisecond for each MiB and no memory.
    """
    if isinstance(part, str):
        return sum(part.count(mark) for mark in ",[{")
    return sum(part.count(mark) for mark in b",[{")


def check_values(count: int) -> None:
    """Refuse a JSON text of so many values.

    Raises:
        TooBigError: There are more than `JSON_VALUES_MAX`.
    """
    if count > JSON_VALUES_MAX:
        raise TooBigError(
            f"The message has more than {JSON_VALUES_MAX} commas and opening brackets."
        )


def check_json_shape(text: str | bytes) -> None:
    """Refuse a JSON text that would become too many objects; call this before any parser.

    Raises:
        TooBigError: It has more values than it may.
    """
    counted = 0
    for start in range(0, len(text), COUNTED_AT_ONCE):
        counted += count_values(text[start : start + COUNTED_AT_ONCE])
        check_values(counted)


def parse_message(adapter: TypeAdapter[AnyMessage], text: str | bytes) -> AnyMessage:
    """Validate the text of one message.

    Args:
        adapter: Made once, `TypeAdapter(streaming.ClientMessage)` for instance.
        text: JSON, UTF-8.

    Returns:
        The message, frozen.

    Raises:
        UnknownTypeError: The type is missing or not known; worth a warning, not an end.
        AudioError: Sound is missing, not text, too long, or of another rate.
        PictureError: A frame is missing or not text.
        BadConfigError: A setting is out of range or of the wrong kind.
        TooBigError: It has too many values, see `check_json_shape`.
        BadPayloadError: Anything else, broken JSON first of all.
    """
    check_json_shape(text)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise explain(error) from error


def explain(error: ValidationError) -> OmniError:
    """Turn a validation error into ours: the first problem in one sentence, never the input."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = next((found for found in problems if not _is_other_form(found)), problems[0])
    kind, path = problem["type"], [str(part) for part in problem["loc"]]
    is_unknown = kind in _TYPE_PROBLEMS and not path
    if is_unknown or (kind == "literal_error" and path[1:] == ["type"]):
        return UnknownTypeError("The message's type is missing or not known here.")
    if kind in _SYNTAX_PROBLEMS:
        return BadPayloadError("The message is not valid JSON.")
    sentence = f"{'.'.join(path) or 'message'}: {problem['msg']}"
    names, last = set(path), path[-1] if path else ""
    is_audio = last in _AUDIO_FIELDS or (last == "data" and "audio" in names)
    if names & _CONFIG_FIELDS and (not is_audio or last == "sample_rate"):
        return BadConfigError(sentence)
    if names & _FRAME_FIELDS:
        return PictureError(sentence)
    return AudioError(sentence) if is_audio else BadPayloadError(sentence)


def _is_other_form(problem: ErrorDetails) -> bool:
    """Whether it only says that a content, given as items, is not the one text it could also be."""
    return problem["type"] == "string_type" and problem["loc"][-2:] == ("content", "text")
