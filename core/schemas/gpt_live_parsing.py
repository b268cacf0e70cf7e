"""Turns a text of a GPT-Live client into an event, or into what is wrong with it."""

from __future__ import annotations

import json
from typing import Final

from pydantic import TypeAdapter, ValidationError

from core.errors import OmniError
from core.schemas.common import check_json_shape
from core.schemas.gpt_live import SpokenEvent, Unclear

EVENT: Final[TypeAdapter[SpokenEvent]] = TypeAdapter(SpokenEvent)
EVENT_TYPES: Final = tuple(EVENT.json_schema()["discriminator"]["mapping"])
"""Types of events a client may send."""
# Words of a place in a union, which no client has written.
UNION_WORDS: Final = frozenset({"audio/pcm", "audio/pcmu", "audio/pcma", "str", "VoiceId"})
INVALID_EVENT: Final = "invalid_event"


def parse_event(text: str) -> SpokenEvent | Unclear:
    """Validate the text of one message, once."""
    try:
        check_json_shape(text)
        return EVENT.validate_json(text)
    except OmniError as error:
        return Unclear(code=INVALID_EVENT, message=error.message)
    except ValidationError as error:
        return _explained(error, text)


def _explained(error: ValidationError, text: str) -> Unclear:
    """Name the first problem, never the input."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    kind, path = problem["type"], problem["loc"]
    if kind == "json_invalid":
        return Unclear(code=INVALID_EVENT, message="The message is not valid JSON.")
    event = json.loads(text)
    if not isinstance(event, dict):
        return Unclear(code=INVALID_EVENT, message="An event is a JSON object.")
    name = event.get("event_id")
    event_id = name if isinstance(name, str) else None
    if not path:
        kind, known = str(event.get("type"))[:64], ", ".join(EVENT_TYPES)
        message = f"Unknown event type '{kind}'. Supported: {known}."
        return Unclear(code=INVALID_EVENT, message=message, event_id=event_id)
    param = ".".join(str(part) for part in path[1:] if part not in UNION_WORDS)
    if kind == "missing":
        code, message = "missing_required_parameter", f"Missing required parameter: '{param}'."
    else:
        code, message = "invalid_value", f"Invalid value for '{param}': {problem['msg']}."
    return Unclear(code=code, message=message, param=param, event_id=event_id)
