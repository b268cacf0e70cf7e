"""Client events of OpenAI's Realtime protocol, and what is wrong with one that cannot be used."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from core.schemas import limits
from core.schemas.common import WireModel
from core.schemas.openai_errors import EVENT_ID_MAX_CHARS, parse_client_event
from core.schemas.realtime_items import Base64Sound, ClientItem, ItemId
from core.schemas.realtime_session import ResponsePatch, SessionPatch

APPEND_MAX_BYTES: Final = 15 * limits.MIB


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


class ImageAppend(NamedEvent):
    """What the camera sees: an event of ours."""

    image: str = Field(
        max_length=limits.base64_chars(limits.FRAME_MAX_BYTES),
        description="Base64 of a JPEG, PNG or WebP picture; it goes into the next unit.",
    )


class InputImageAppend(ImageAppend):
    """What the camera sees: an event of ours."""

    type: Literal["input_image_buffer.append"] = Field(description="Kind of event.")


class ItemCreate(NamedEvent):
    """Add an item to the conversation."""

    type: Literal["conversation.item.create"] = Field(description="Kind of event.")
    item: ClientItem = Field(description="The item.")
    previous_item_id: ItemId | None = Field(
        None, description='Where: behind this item; "root": first; otherwise last.'
    )


class ItemCommand(NamedEvent):
    """Ask for an item with its audio, or take it out of the conversation."""

    type: Literal["conversation.item.retrieve", "conversation.item.delete"] = Field(
        description="Kind of event."
    )
    item_id: ItemId = Field(description="Which.")


class ItemTruncate(NamedEvent):
    """Only so much of the assistant's sound was heard."""

    type: Literal["conversation.item.truncate"] = Field(description="Kind of event.")
    item_id: ItemId = Field(description="Which.")
    content_index: int = Field(0, ge=0, le=64, description="Which part: 0.")
    audio_end_ms: int = Field(ge=0, le=86_400_000, description="What was heard of it, ms.")


class ResponseCreate(NamedEvent):
    """Answer now."""

    type: Literal["response.create"] = Field(description="Kind of event.")
    response: ResponsePatch | None = Field(None, description="What is different this time.")


class ResponseCancel(NamedEvent):
    """Stop answering."""

    type: Literal["response.cancel"] = Field(description="Kind of event.")
    response_id: str | None = Field(None, max_length=64, description="Which; any otherwise.")


class BufferCommand(NamedEvent):
    """End the user's turn, forget the user's audio, or forget audio that was not played.

    Over a socket the client holds the last itself.
    """

    type: Literal[
        "input_audio_buffer.commit", "input_audio_buffer.clear", "output_audio_buffer.clear"
    ] = Field(description="Kind of event.")


ClientEvent = Annotated[
    SessionUpdate
    | BufferAppend
    | InputImageAppend
    | ItemCreate
    | ItemCommand
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | BufferCommand,
    Field(discriminator="type"),
]
"""What a client may send."""

EVENT: Final[TypeAdapter[ClientEvent]] = TypeAdapter(ClientEvent)
EVENT_TYPES: Final = tuple(EVENT.json_schema()["discriminator"]["mapping"])


def parse_event(text: str) -> ClientEvent:
    return parse_client_event(EVENT, EVENT_TYPES, text)
