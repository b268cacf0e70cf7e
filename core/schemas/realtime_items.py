"""Client items of OpenAI's Realtime protocol: messages, function calls and outputs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Discriminator, Field, Tag, field_validator

from core.schemas import limits
from core.schemas.common import AudioBytes, Text, WireModel

ITEM_ID_MAX_CHARS: Final = 64
CALL_ID_MAX_CHARS: Final = 64
PARTS_MAX: Final = 64  # ours: content parts of one item
DATA_URL_HEADS: Final = tuple(
    f"data:image/{kind};base64," for kind in ("png", "jpeg", "jpg", "webp")
)


ItemId = Annotated[str, Field(min_length=1, max_length=ITEM_ID_MAX_CHARS)]


class TextPart(WireModel):
    """A text of any role, under any of the protocol's names."""

    type: Literal["input_text", "text", "output_text"] = Field(description="Part type.")
    text: Text = Field(description="The text.")


class AudioPart(WireModel):
    """Spoken input."""

    type: Literal["input_audio"] = Field(description="Part type.")
    audio: AudioBytes | None = Field(None, description="Base64 in the session's input format.")
    transcript: Text | None = Field(None, description="Its transcript, if known.")


class SpokenPart(WireModel):
    """The assistant's speech as a transcript; its audio is not accepted."""

    type: Literal["output_audio", "audio"] = Field(description="Part type.")
    transcript: Text | None = Field(None, description="The transcript.")


class PicturePart(WireModel):
    """A picture."""

    type: Literal["input_image"] = Field(description="Part type.")
    image_url: str = Field(
        max_length=limits.base64_chars(limits.PICTURE_MAX_BYTES) + 64,
        description="Data URL of a PNG, JPEG or WebP; other URLs are not fetched.",
    )
    detail: str | None = Field(None, max_length=16, description="Accepted, without effect.")

    @field_validator("image_url")
    @classmethod
    def _is_data(cls, value: str) -> str:
        if not value.startswith(DATA_URL_HEADS):
            raise ValueError("send the picture as data:image/jpeg;base64,DATA, PNG or WebP")
        return value

    @property
    def base64(self) -> str:
        return self.image_url.partition(",")[2]


Part = Annotated[TextPart | AudioPart | SpokenPart | PicturePart, Field(discriminator="type")]


class MessageItem(WireModel):
    """A message: speech, text or pictures."""

    type: Literal["message"] = Field("message", description="Item type.")
    id: ItemId | None = Field(None, description="Its id; by default chosen by the server.")
    role: Literal["user", "assistant", "system", "developer"] = Field(description="Its author.")
    content: tuple[Part, ...] = Field(
        (), max_length=PARTS_MAX, description="Text, audio and pictures in order."
    )

    @property
    def known_role(self) -> Literal["user", "assistant", "system"]:
        return "system" if self.role == "developer" else self.role


class FunctionCallItem(WireModel):
    """A function call of an earlier conversation."""

    type: Literal["function_call"] = Field(description="Item type.")
    id: ItemId | None = Field(None, description="Its id.")
    call_id: str | None = Field(None, max_length=CALL_ID_MAX_CHARS, description="Id of the call.")
    name: str = Field(max_length=64, description="The function.")
    arguments: Text = Field("{}", description="JSON.")


class FunctionOutputItem(WireModel):
    """Result of a function call."""

    type: Literal["function_call_output"] = Field(description="Item type.")
    id: ItemId | None = Field(None, description="Its id.")
    call_id: str = Field(max_length=CALL_ID_MAX_CHARS, description="Id of the call.")
    output: Text = Field(description="Text, usually JSON.")


class ItemReference(WireModel):
    """Reference to an item of the conversation, as input of a response."""

    type: Literal["item_reference"] = Field(description="Item type.")
    id: ItemId = Field(description="Id of the item.")


def _kind(value: object) -> str:
    """Return an item's type; beta clients may omit `message`."""
    kind = value.get("type", "message") if isinstance(value, dict) else ""
    return kind if isinstance(kind, str) else ""


_NewItem = (
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
)
NO_ITEM: Final = "The type should be 'message', 'function_call' or 'function_call_output'"
ClientItem = Annotated[_NewItem, Discriminator(_kind, "item_type", NO_ITEM)]
"""Items a client may create."""

InputItem = Annotated[
    _NewItem | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind, "item_type", f"{NO_ITEM}, or 'item_reference'"),
]
"""Input of a response instead of the conversation."""
