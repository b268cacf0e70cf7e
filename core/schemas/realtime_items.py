"""Items of OpenAI's Realtime protocol as clients send them: messages, function calls, outputs."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from core.schemas import limits
from core.schemas.common import WireModel, from_base64

ITEM_ID_MAX_CHARS: Final = 64
CALL_ID_MAX_CHARS: Final = 64
PARTS_MAX: Final = 64  # ours: content parts of one item
DATA_URL_HEADS: Final = tuple(
    f"data:image/{kind};base64," for kind in ("png", "jpeg", "jpg", "webp")
)
TEXT_TYPES: Final = ("input_text", "text", "output_text")


Base64Sound = Annotated[bytes, BeforeValidator(from_base64)]
"""Sound as Base64, decoded."""

ItemId = Annotated[str, Field(min_length=1, max_length=ITEM_ID_MAX_CHARS)]


class TextPart(WireModel):
    """Words, of any role and under any of the protocol's names."""

    type: Literal["input_text", "text", "output_text"] = Field(description="Kind of part.")
    text: str = Field(max_length=limits.TEXT_MAX_CHARS, description="The words.")


class SoundPart(WireModel):
    """What somebody said."""

    type: Literal["input_audio"] = Field(description="Kind of part.")
    audio: Base64Sound | None = Field(None, description="Base64 in the session's input format.")
    transcript: str | None = Field(
        None, max_length=limits.TEXT_MAX_CHARS, description="Its words, if the client knows them."
    )


class SpokenPart(WireModel):
    """What the assistant said, as words: its sound is not taken back."""

    type: Literal["output_audio", "audio"] = Field(description="Kind of part.")
    transcript: str | None = Field(
        None, max_length=limits.TEXT_MAX_CHARS, description="What was said."
    )


class PicturePart(WireModel):
    """A picture."""

    type: Literal["input_image"] = Field(description="Kind of part.")
    image_url: str = Field(
        max_length=limits.base64_chars(limits.PICTURE_MAX_BYTES) + 64,
        description="A data URL with a PNG, JPEG or WebP; other addresses are not fetched.",
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


Part = Annotated[TextPart | SoundPart | SpokenPart | PicturePart, Field(discriminator="type")]


class MessageItem(WireModel):
    """What somebody said, wrote or showed."""

    type: Literal["message"] = Field("message", description="Kind of item.")
    id: ItemId | None = Field(None, description="Its name; the server chooses one otherwise.")
    role: Literal["user", "assistant", "system", "developer"] = Field(description="Whose it is.")
    content: tuple[Part, ...] = Field(
        (), max_length=PARTS_MAX, description="Words, sound and pictures in order."
    )

    @property
    def known_role(self) -> Literal["user", "assistant", "system"]:
        return "system" if self.role == "developer" else self.role


class FunctionCallItem(WireModel):
    """A call of a function, of an earlier conversation."""

    type: Literal["function_call"] = Field(description="Kind of item.")
    id: ItemId | None = Field(None, description="Its name.")
    call_id: str | None = Field(None, max_length=CALL_ID_MAX_CHARS, description="The call's name.")
    name: str = Field(max_length=64, description="The function.")
    arguments: str = Field("{}", max_length=limits.TEXT_MAX_CHARS, description="JSON.")


class FunctionOutputItem(WireModel):
    """What a function returned."""

    type: Literal["function_call_output"] = Field(description="Kind of item.")
    id: ItemId | None = Field(None, description="Its name.")
    call_id: str = Field(max_length=CALL_ID_MAX_CHARS, description="Which call returned it.")
    output: str = Field(max_length=limits.TEXT_MAX_CHARS, description="Text, JSON as a rule.")


class ItemReference(WireModel):
    """An item of the conversation, as input of a response."""

    type: Literal["item_reference"] = Field(description="Kind of item.")
    id: ItemId = Field(description="Which.")


def _kind(value: object) -> str:
    """Return an item's type; a beta client may omit `message`."""
    kind = value.get("type", "message") if isinstance(value, dict) else ""
    return kind if isinstance(kind, str) else ""


ClientItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")],
    Discriminator(_kind),
]
"""What a client may add to the conversation."""

InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(_kind),
]
"""What a response may be asked to answer instead of the conversation."""
