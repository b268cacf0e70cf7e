"""Client events of OpenAI's Realtime protocol."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from core.schemas import limits
from core.schemas.common import AudioBytes, WireModel
from core.schemas.openai_errors import EVENT_ID_MAX_CHARS, event_types, parse_client_event
from core.schemas.realtime_session import ClientItem, ItemId, ResponsePatch, SessionPatch

APPEND_MAX_BYTES: Final = 15 * limits.MIB


class NamedEvent(WireModel):
    """An event with an optional id."""

    event_id: str | None = Field(
        None, max_length=EVENT_ID_MAX_CHARS, description="Id of the event, chosen by the client."
    )


class SessionUpdate(NamedEvent):
    """Change settings; absent ones stay."""

    type: Literal["session.update"] = Field(description="Event type.")
    session: SessionPatch = Field(description="Changed settings.")


class BufferAppend(NamedEvent):
    """Microphone audio."""

    type: Literal["input_audio_buffer.append"] = Field(description="Event type.")
    audio: AudioBytes = Field(
        max_length=APPEND_MAX_BYTES, description="Base64 in the session's input format."
    )


class ImageAppend(NamedEvent):
    """A camera picture; an extension."""

    image: str = Field(
        max_length=limits.base64_chars(limits.FRAME_MAX_BYTES),
        description="Base64 of a JPEG, PNG or WebP picture; part of the next unit.",
    )


class InputImageAppend(ImageAppend):
    """A camera picture; an extension."""

    type: Literal["input_image_buffer.append"] = Field(description="Event type.")


class ItemCreate(NamedEvent):
    """Add an item to the conversation."""

    type: Literal["conversation.item.create"] = Field(description="Event type.")
    item: ClientItem = Field(description="The item.")
    previous_item_id: ItemId | None = Field(
        None, description='Insert after this item; "root": first; default: last.'
    )


class ItemCommand(NamedEvent):
    """Retrieve an item with its audio, or delete it."""

    type: Literal["conversation.item.retrieve", "conversation.item.delete"] = Field(
        description="Event type."
    )
    item_id: ItemId = Field(description="Id of the item.")


class ItemTruncate(NamedEvent):
    """Truncate the assistant's audio to what was played."""

    type: Literal["conversation.item.truncate"] = Field(description="Event type.")
    item_id: ItemId = Field(description="Id of the item.")
    content_index: int = Field(0, ge=0, le=64, description="Content part: 0.")
    audio_end_ms: int = Field(ge=0, le=86_400_000, description="Audio that was played, ms.")


class ResponseCreate(NamedEvent):
    """Create a response now."""

    type: Literal["response.create"] = Field(description="Event type.")
    response: ResponsePatch | None = Field(None, description="Settings of this response.")


class ResponseCancel(NamedEvent):
    """Cancel a response."""

    type: Literal["response.cancel"] = Field(description="Event type.")
    response_id: str | None = Field(
        None, max_length=64, description="Id of the response; default: the active one."
    )


class BufferCommand(NamedEvent):
    """Commit or clear the input audio, or clear output audio that was not played.

    Over a socket the client itself holds the latter.
    """

    type: Literal[
        "input_audio_buffer.commit", "input_audio_buffer.clear", "output_audio_buffer.clear"
    ] = Field(description="Event type.")


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
"""Client events."""

EVENT: Final[TypeAdapter[ClientEvent]] = TypeAdapter(ClientEvent)
EVENT_TYPES: Final = event_types(ClientEvent)


def parse_event(text: str) -> ClientEvent:
    return parse_client_event(EVENT, EVENT_TYPES, text)
