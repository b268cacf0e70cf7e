"""The check of every Realtime event, and the usual sequences of events."""

from __future__ import annotations

from typing import Any

from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

SERVER_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeServerEvent)

ITEM = ["conversation.item.added", "conversation.item.done"]
OPENED = [
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
]
SPOKEN = ["response.output_audio_transcript.delta", "response.output_audio.delta"]
CLOSED = [
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
]
ANSWER = [
    "response.created",
    *OPENED,
    *SPOKEN,
    "response.output_audio.delta",  # 300 ms are two deltas
    *SPOKEN,
    *CLOSED,
    "response.done",
]
WRITTEN = [
    "response.created",
    *OPENED,
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    *CLOSED[2:],
    "response.done",
]
SEGMENT = [
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "input_audio_buffer.committed",
    *ITEM,
]


def nulls(value: Any, path: str = "") -> list[str]:
    if value is None:
        return [path]
    if isinstance(value, dict):
        return [at for key, inner in value.items() for at in nulls(inner, f"{path}.{key}")]
    if isinstance(value, list):
        return [at for inner in value for at in nulls(inner, path)]
    return []


MAY_BE_NULL = (
    ".previous_item_id",
    ".response.status_details",
    ".response.usage",
    ".response.metadata",
    ".response.conversation_id",
    ".item.content.transcript",
    ".error.param",
    ".error.event_id",
    ".session.",
)


def check(event: dict[str, Any]) -> None:
    """Check that stock clients parse an event, and that only allowed fields are null."""
    read = SERVER_EVENT.validate_python(event, strict=True)
    assert read.type == event["type"]
    assert event["event_id"].startswith("event_")
    for path in nulls(event):
        assert path.startswith(MAY_BE_NULL), (event["type"], path)


TOOLS = [{"type": "function", "name": "look_up", "description": "Finds.", "parameters": {}}]
CALL = '<tool_call>\n{"name": "look_up", "arguments": {"word": "owl"}}\n</tool_call>'
