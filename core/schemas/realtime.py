"""Client events of OpenAI's Realtime protocol, and what is wrong with one that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from core.errors import BadPayloadError
from core.schemas import limits
from core.schemas.common import WireModel, check_json_shape
from core.schemas.realtime_items import Base64Sound, ClientItem, ItemId
from core.schemas.realtime_session import ResponsePatch, SessionPatch

EVENT_ID_MAX_CHARS: Final = 512
APPEND_MAX_BYTES: Final = 15 * limits.MIB


class EventProblemError(BadPayloadError):
    """An event cannot be used; the session goes on.

    Attributes:
        event_code: the protocol's code.
        param: the field that is wrong.
        event_id: the client's name of the event.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, event_id: str | None = None
    ) -> None:
        """Keep what the `error` event says."""
        super().__init__(message)
        self.event_code = code
        self.param = param
        self.event_id = event_id


class NamedEvent(WireModel):
    """An event that its client may name."""

    event_id: str | None = Field(
        None, max_length=EVENT_ID_MAX_CHARS, description="The client's name of the event."
    )


class SessionUpdate(NamedEvent):
    """Change settings; what is not said stays."""

    type: Literal["session.update"] = Field(description="Kind of event.")
    session: SessionPatch = Field(description="What changes.")


class BufferAppend(NamedEvent):
    """What the microphone heard."""

    type: Literal["input_audio_buffer.append"] = Field(description="Kind of event.")
    audio: Base64Sound = Field(
        max_length=APPEND_MAX_BYTES, description="Base64 in the session's input format."
    )


class BufferCommit(NamedEvent):
    """The user's turn ends here."""

    type: Literal["input_audio_buffer.commit"] = Field(description="Kind of event.")


class BufferClear(NamedEvent):
    """Forget what the microphone heard."""

    type: Literal["input_audio_buffer.clear"] = Field(description="Kind of event.")


class ItemCreate(NamedEvent):
    """Add an item to the conversation."""

    type: Literal["conversation.item.create"] = Field(description="Kind of event.")
    item: ClientItem = Field(description="The item.")
    previous_item_id: ItemId | None = Field(
        None, description='Where: behind this item; "root": first; otherwise last.'
    )


class ItemRetrieve(NamedEvent):
    """Ask for an item with its sound."""

    type: Literal["conversation.item.retrieve"] = Field(description="Kind of event.")
    item_id: ItemId = Field(description="Which.")


class ItemTruncate(NamedEvent):
    """Only so much of the assistant's sound was heard."""

    type: Literal["conversation.item.truncate"] = Field(description="Kind of event.")
    item_id: ItemId = Field(description="Which.")
    content_index: int = Field(0, ge=0, le=64, description="Which part: 0.")
    audio_end_ms: int = Field(ge=0, le=86_400_000, description="What was heard of it, ms.")


class ItemDelete(NamedEvent):
    """Take an item out of the conversation."""

    type: Literal["conversation.item.delete"] = Field(description="Kind of event.")
    item_id: ItemId = Field(description="Which.")


class ResponseCreate(NamedEvent):
    """Answer now."""

    type: Literal["response.create"] = Field(description="Kind of event.")
    response: ResponsePatch | None = Field(None, description="What is different this time.")


class ResponseCancel(NamedEvent):
    """Stop answering."""

    type: Literal["response.cancel"] = Field(description="Kind of event.")
    response_id: str | None = Field(None, max_length=64, description="Which; any otherwise.")


class OutputClear(NamedEvent):
    """Forget sound that was not played; over a socket the client holds it."""

    type: Literal["output_audio_buffer.clear"] = Field(description="Kind of event.")


ClientEvent = Annotated[
    SessionUpdate
    | BufferAppend
    | BufferCommit
    | BufferClear
    | ItemCreate
    | ItemRetrieve
    | ItemTruncate
    | ItemDelete
    | ResponseCreate
    | ResponseCancel
    | OutputClear,
    Field(discriminator="type"),
]
"""What a client may send."""

EVENT: Final[TypeAdapter[ClientEvent]] = TypeAdapter(ClientEvent)
EVENT_TYPES: Final = tuple(
    kind.model_fields["type"].annotation.__args__[0]  # type: ignore[union-attr]
    for kind in (
        SessionUpdate,
        BufferAppend,
        BufferCommit,
        BufferClear,
        ItemCreate,
        ItemRetrieve,
        ItemTruncate,
        ItemDelete,
        ResponseCreate,
        ResponseCancel,
        OutputClear,
    )
)
MISSING: Final = frozenset({"missing", "union_tag_not_found"})


def parse_event(text: str) -> ClientEvent:
    """Validate the text of one client event.

    Raises:
        EventProblemError: It cannot be used; the error names the field.
        TooBigError: It has too many values.
    """
    check_json_shape(text)
    try:
        return EVENT.validate_json(text)
    except ValidationError as error:
        raise _explain(error, text) from error


def _explain(error: ValidationError, text: str) -> EventProblemError:
    try:
        # Any: whatever the client sent.
        given: Any = json.loads(text)
    except (ValueError, RecursionError):
        return EventProblemError("invalid_event", "The event is not valid JSON.")
    if not isinstance(given, dict):
        return EventProblemError("invalid_event", "The event is not a JSON object.")
    event_id = given.get("event_id")
    known_id = event_id[:EVENT_ID_MAX_CHARS] if isinstance(event_id, str) else None
    kind = given.get("type")
    if kind not in EVENT_TYPES:
        shown = repr(kind[:64]) if isinstance(kind, str) else "missing"
        message = f"Unknown event type {shown}. Supported: {', '.join(EVENT_TYPES)}."
        return EventProblemError("invalid_event", message, "type", known_id)
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    param = _path(given, problem["loc"])
    if problem["type"] in MISSING:
        message = f"Missing required parameter: '{param}'."
        return EventProblemError("missing_required_parameter", message, param, known_id)
    message = f"Invalid value of '{param}': {problem['msg']}."
    return EventProblemError("invalid_value", message, param, known_id)


# Any: whatever the client sent.
def _path(given: Any, where: Sequence[int | str]) -> str:
    """Return the field's name as a client writes it, without the names of our models."""
    path = ""
    for number, step in enumerate(where):
        if isinstance(given, list) and isinstance(step, int) and step < len(given):
            path, given = f"{path}[{step}]", given[step]
        elif isinstance(given, dict) and step in given:
            path, given = f"{path}.{step}" if path else str(step), given[step]
        elif isinstance(given, dict) and number == len(where) - 1 and isinstance(step, str):
            path = f"{path}.{step}" if path else step
    return path
