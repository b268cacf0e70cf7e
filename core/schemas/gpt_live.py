"""GPT-Live on the wire: what a client says on `/v1/live/sessions`, OpenAI's full-duplex protocol.

An optional field that has no value is absent, never null. Settings of what the model cannot do
(delegation, triggers) are taken and sent back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from core.schemas import limits, realtime
from core.schemas.common import WireModel
from core.schemas.openai_errors import parse_client_event
from core.schemas.realtime_session import AudioFormat, VoiceChoice

MODEL_MAX_CHARS: Final = 256
INITIAL_ITEMS_MAX: Final = 128  # the original's
FIXTURE_MAX_S: Final = 30.0  # the original's
PCM_RATE_HZ: Final = 24_000
G711_RATE_HZ: Final = 8_000

# Any: JSON of settings that mean nothing here and are sent back as they came.
Json = dict[str, Any]
ClientText = Annotated[str, Field(max_length=limits.TEXT_MAX_CHARS)]


class PcmFormat(AudioFormat):
    """16-bit little-endian samples."""

    type: Literal["audio/pcm"] = Field("audio/pcm", description="Encoding.")
    rate: Literal[16_000, 24_000] = Field(PCM_RATE_HZ, description="Samples per second.")


class G711Format(AudioFormat):
    """G.711, as telephones have it."""

    type: Literal["audio/pcmu", "audio/pcma"] = Field(description="Encoding: μ-law or A-law.")
    rate: Literal[8_000] = Field(G711_RATE_HZ, description="Samples per second.")


class Audio(WireModel):
    """Sound of both directions."""

    format: PcmFormat | G711Format = Field(
        default_factory=PcmFormat, discriminator="type", description="Of both directions."
    )
    output: VoiceChoice = Field(default_factory=VoiceChoice, description="How the model speaks.")


class TextPart(WireModel):
    """A text."""

    type: Literal["input_text", "output_text", "text"] = Field(
        "input_text", description="Kind of part."
    )
    text: ClientText = Field(description="The text.")


class InitialItem(WireModel):
    """What was said before the session."""

    role: Literal["developer", "user", "assistant"] = Field(description="Who said it.")
    content: list[TextPart] = Field(min_length=1, max_length=1, description="One text.")


class Delegation(WireModel):
    """Who would carry out tasks; accepted and sent back, nothing is delegated."""

    model_config = ConfigDict(extra="allow")

    type: Literal["client", "responses", "decisions"] = Field(description="Who would.")


class SessionSettings(WireModel):
    """What a session begins with."""

    model_config = ConfigDict(extra="allow")  # kept so that they can be named

    model: str = Field(max_length=MODEL_MAX_CHARS, description="Any name.")
    instructions: ClientText | None = Field(None, description="System prompt.")
    input: list[InitialItem] | None = Field(
        None, max_length=INITIAL_ITEMS_MAX, description="What was said before."
    )
    audio: Audio = Field(default_factory=Audio, description="Sound.")
    delegation: Delegation | None = Field(None, description="Told back, without effect.")
    store: bool | None = Field(None, description="False: the session is not recorded.")
    triggers: list[Json] | None = Field(None, description="Told back, without effect.")
    client: Json | None = Field(None, description="Told back, without effect.")
    safety_identifier: str | None = Field(None, description="Told back, without effect.")

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        return tuple(sorted(self.model_extra or {}))


class SessionStart(realtime.NamedEvent):
    """Begin; the first event of every socket."""

    type: Literal["session.start"] = Field("session.start", description="Kind of event.")
    session: SessionSettings = Field(description="What to begin with.")


class SessionChanges(WireModel):
    """What may be changed later."""

    delegation: Delegation | None = Field(None, description="Of the same type as before.")
    triggers: list[Json] | None = Field(None, description="Replaces the former.")


class SessionUpdate(realtime.NamedEvent):
    """Change settings."""

    type: Literal["session.update"] = Field("session.update", description="Kind of event.")
    session: SessionChanges = Field(description="What to change.")


class InputAudioAppend(realtime.NamedEvent):
    """What the microphone heard next."""

    type: Literal["session.input_audio.append"] = Field(description="Kind of event.")
    audio: str = Field(description="Base64 of samples in the session's format.")


class InputImageAppend(realtime.ImageAppend):
    """What the camera sees: an event of ours."""

    type: Literal["session.input_image.append"] = Field(description="Kind of event.")


class ContextAppend(realtime.NamedEvent):
    """Tell the model something in words."""

    type: Literal[
        "session.instructions.append", "session.thinking.append", "session.commentary.append"
    ] = Field(
        description="An instruction; something to know in silence; something to speak of now."
    )
    content: ClientText = Field(description="The text, at most 500 tokens.")
    delegation_id: str | None = Field(
        description="Must be there; null, as nothing is ever delegated."
    )


class FixturePlay(realtime.NamedEvent):
    """Play a recording in place of the model's voice."""

    type: Literal["session.output_audio.fixture.play"] = Field(description="Kind of event.")
    audio: str = Field(
        max_length=limits.base64_chars(int(FIXTURE_MAX_S * PCM_RATE_HZ) * 2),
        description="Base64 of 16-bit samples at 24 kHz, at most 30 s, whatever the format is.",
    )


class Command(realtime.NamedEvent):
    """Mute the microphone for the model, unmute it, or end the session."""

    type: Literal["session.input_audio.mute", "session.input_audio.unmute", "session.close"] = (
        Field(description="Kind of event.")
    )


class NotOffered(realtime.NamedEvent):
    """What needs a delegation, which this server does not offer."""

    type: Literal[
        "response.item.create",
        "response.create",
        "decision.create",
        "decision.item.create",
        "decision.item.delete",
    ] = Field(description="Kind of event.")


@dataclass(frozen=True, slots=True)
class AudioReceived:
    """The audio of an append, decoded for the model: little-endian float32, mono, 16 kHz."""

    samples: bytes = field(repr=False)
    event_id: str | None = None
    type: str = "audio_received"


@dataclass(frozen=True, slots=True)
class Fixture:
    """The audio of a recording to be played, in the session's format."""

    samples: bytes = field(repr=False)
    event_id: str | None = None
    type: str = "fixture"


ClientEvent = Annotated[
    SessionStart
    | SessionUpdate
    | InputAudioAppend
    | InputImageAppend
    | Command
    | ContextAppend
    | FixturePlay
    | NotOffered,
    Field(discriminator="type"),
]
"""What a client may send."""

ClientMessage = ClientEvent | AudioReceived | Fixture
"""What the protocol's machine gets of it: audio is decoded."""

EVENT: Final[TypeAdapter[ClientEvent]] = TypeAdapter(ClientEvent)
EVENT_TYPES: Final = tuple(EVENT.json_schema()["discriminator"]["mapping"])


def parse_event(text: str) -> ClientEvent:
    return parse_client_event(EVENT, EVENT_TYPES, text)
