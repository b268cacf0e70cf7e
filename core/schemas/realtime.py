"""Client events of OpenAI's Realtime protocol."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from core.schemas import limits
from core.schemas.common import AudioBytes, WireModel
from core.schemas.openai_errors import EVENT_ID_MAX_CHARS, event_types, parse_client_event
from core.schemas.realtime_session import ClientItem, ItemId, ResponsePatch, SessionPatch

APPEND_MAX_BYTES: Final = 15 * limits.MIB


class NamedEvent(WireModel):
    event_id: str | None = Field(None, max_length=EVENT_ID_MAX_CHARS)  # chosen by the client


class SessionUpdate(NamedEvent):
    """Change settings; absent ones stay."""

    type: Literal["session.update"]
    session: SessionPatch


class BufferAppend(NamedEvent):
    type: Literal["input_audio_buffer.append"]
    audio: AudioBytes = Field(max_length=APPEND_MAX_BYTES)  # Base64 in the session's input format


class ImageAppend(NamedEvent):
    """A camera picture; an extension."""

    # Base64 of a JPEG, PNG or WebP, which is part of the next unit.
    image: str = Field(max_length=limits.base64_chars(limits.FRAME_MAX_BYTES))


class InputImageAppend(ImageAppend):
    type: Literal["input_image_buffer.append"]


class ItemCreate(NamedEvent):
    type: Literal["conversation.item.create"]
    item: ClientItem
    previous_item_id: ItemId | None = None  # "root": first; default: last


class ItemCommand(NamedEvent):
    """Retrieve an item with its audio, or delete it."""

    type: Literal["conversation.item.retrieve", "conversation.item.delete"]
    item_id: ItemId


class ItemTruncate(NamedEvent):
    """Truncate the assistant's audio to what was played."""

    type: Literal["conversation.item.truncate"]
    item_id: ItemId
    content_index: Literal[0] = 0  # of the part, always the first
    audio_end_ms: int = Field(ge=0, le=86_400_000)  # audio that was played, ms


class ResponseCreate(NamedEvent):
    type: Literal["response.create"]
    response: ResponsePatch | None = None


class ResponseCancel(NamedEvent):
    type: Literal["response.cancel"]
    response_id: str | None = Field(None, max_length=64)  # default: the active one


class BufferCommand(NamedEvent):
    """Commit or clear the input audio, or clear output audio that was not played.

    Over a socket the client itself holds the latter.
    """

    type: Literal[
        "input_audio_buffer.commit", "input_audio_buffer.clear", "output_audio_buffer.clear"
    ]


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

EVENT: Final[TypeAdapter[ClientEvent]] = TypeAdapter(ClientEvent)
parse_event: Final = partial(parse_client_event, EVENT, event_types(ClientEvent))
