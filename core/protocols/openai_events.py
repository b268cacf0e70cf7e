"""Server events of OpenAI's protocols, with the beta spellings of Realtime.

A field is null only where all clients accept it; some validators accept only an absent key.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from core.schemas.common import json_text
from core.schemas.openai_errors import error_fields

# Any: JSON.
Json = dict[str, Any]

BETA_TYPES: Final = {
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}
UNKNOWN_TO_BETA: Final = frozenset({"conversation.item.done"})
BETA_PARTS: Final = {"output_text": "text", "output_audio": "audio"}
BETA_FORMATS: Final = {
    "audio/pcm": "pcm16",
    "audio/pcmu": "g711_ulaw",
    "audio/pcma": "g711_alaw",
}
BETA_TEMPERATURE: Final = 0.8  # source: the protocol's beta
SHOWN_SESSION_S: Final = 3_600  # reported where sessions are unlimited


@dataclass(frozen=True)
class ServerEvent:
    type: str
    fields: Json = field(default_factory=dict, repr=False)

    def to_json(self) -> str:
        return json_text({"type": self.type, **self.fields})


def in_beta(event: ServerEvent, temperature: float | None) -> ServerEvent | None:
    """Return the beta spelling of an event; None if the beta lacks it.

    `temperature` is a setting that only sessions of the beta show; None is their default.
    """
    if event.type in UNKNOWN_TO_BETA:
        return None
    fields = dict(event.fields)
    if "item" in fields:
        fields["item"] = _beta_item(fields["item"])
    if event.type.startswith("session."):
        fields["session"] = _beta_session(fields["session"], temperature)
    if "response" in fields:
        fields["response"] = _beta_response(fields["response"])
    return ServerEvent(BETA_TYPES.get(event.type, event.type), fields)


def error(
    code: str, message: str, *, param: str | None = None, event_id: str | None = None
) -> ServerEvent:
    fields = error_fields(code, message, param=param, event_id=event_id)
    return ServerEvent("error", {"error": fields})


def item_event(kind: str, item: Json, previous_item_id: str | None) -> ServerEvent:
    fields = {"previous_item_id": previous_item_id, "item": item}
    return ServerEvent(f"conversation.item.{kind}", fields)


def output_item(kind: str, response_id: str, index: int, item: Json) -> ServerEvent:
    fields = {"response_id": response_id, "output_index": index, "item": item}
    return ServerEvent(f"response.output_item.{kind}", fields)


def _beta_item(item: Json) -> Json:
    parts = [
        {**part, "type": BETA_PARTS.get(part["type"], part["type"])}
        for part in item.get("content", ())
    ]
    return {**item, "content": parts} if "content" in item else item


def _beta_session(wire: Json, temperature: float | None) -> Json:
    received, spoken = wire["audio"]["input"], wire["audio"]["output"]
    kept = ("id", "object", "model", "instructions", "tools", "tool_choice", "expires_at")
    modalities = ["text", "audio"] if wire["output_modalities"] == ["audio"] else ["text"]
    return {
        **{name: wire[name] for name in kept},
        "modalities": modalities,
        "voice": spoken["voice"],
        "input_audio_format": BETA_FORMATS[received["format"]["type"]],
        "output_audio_format": BETA_FORMATS[spoken["format"]["type"]],
        "input_audio_transcription": received["transcription"],
        "turn_detection": received["turn_detection"],
        "temperature": BETA_TEMPERATURE if temperature is None else temperature,
        "max_response_output_tokens": wire["max_output_tokens"],
    }


def _beta_response(wire: Json) -> Json:
    flat = {**wire, "output": [_beta_item(item) for item in wire.get("output", ())]}
    modalities = flat.pop("output_modalities", ["audio"])
    spoken = flat.pop("audio", {}).get("output", {})
    flat["modalities"] = ["text", "audio"] if modalities == ["audio"] else ["text"]
    if spoken:
        flat["voice"] = spoken["voice"]
        flat["output_audio_format"] = BETA_FORMATS[spoken["format"]["type"]]
    return flat
