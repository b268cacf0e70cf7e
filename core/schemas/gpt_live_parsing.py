"""Turns a text of a GPT-Live client into an event."""

from __future__ import annotations

from typing import Final

from pydantic import TypeAdapter, ValidationError

from core.schemas.common import check_json_shape
from core.schemas.gpt_live import SpokenEvent
from core.schemas.openai_errors import event_error

EVENT: Final[TypeAdapter[SpokenEvent]] = TypeAdapter(SpokenEvent)
EVENT_TYPES: Final = tuple(EVENT.json_schema()["discriminator"]["mapping"])
"""Types of events a client may send."""


def parse_event(text: str) -> SpokenEvent:
    """Validate the text of one message, once.

    Raises:
        FieldError: It cannot be used; the error names the field.
        TooBigError: It has too many values.
    """
    check_json_shape(text)
    try:
        return EVENT.validate_json(text)
    except ValidationError as error:
        raise event_error(error, text, EVENT_TYPES) from error
