"""Turns the text of one WebSocket message into a model, or into the error a client is told."""

from __future__ import annotations

from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from core.errors import (
    AudioError,
    BadConfigError,
    BadPayloadError,
    OmniError,
    PictureError,
    UnknownTypeError,
)

AnyMessage = TypeVar("AnyMessage")

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
        BadPayloadError: Anything else, broken JSON first of all.
    """
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        raise explain(error) from error


def explain(error: ValidationError) -> OmniError:
    """Turn a validation error into ours: the first problem in one sentence, never the input."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    kind, path = problem["type"], [str(part) for part in problem["loc"]]
    if kind in _TYPE_PROBLEMS and not path:
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
