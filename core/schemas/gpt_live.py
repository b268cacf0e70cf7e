"""Client events of GPT-Live, OpenAI's full-duplex protocol: `/v1/live/sessions`.

Optional fields without a value are absent, never null. Settings without effect here (delegation,
triggers) are accepted and echoed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from core.schemas import limits, realtime
from core.schemas.common import OpenModel, Text, WireModel
from core.schemas.openai_errors import event_types, parse_client_event
from core.schemas.realtime_session import TELEPHONE_RATE_HZ, AudioFormat, VoiceChoice

MODEL_MAX_CHARS: Final = 256
INITIAL_ITEMS_MAX: Final = 128  # source: the original protocol
FIXTURE_MAX_S: Final = 30.0  # source: the original protocol
PCM_RATE_HZ: Final = 24_000

# Any: JSON of settings that are only echoed.
Json = dict[str, Any]


class PcmFormat(AudioFormat):
    """16-bit little-endian samples."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[16_000, 24_000] = PCM_RATE_HZ


class G711Format(AudioFormat):
    type: Literal["audio/pcmu", "audio/pcma"]
    rate: Literal[8_000] = TELEPHONE_RATE_HZ


class Audio(WireModel):
    """Audio of both directions."""

    format: PcmFormat | G711Format = Field(PcmFormat(), discriminator="type")
    output: VoiceChoice = VoiceChoice()


class TextPart(WireModel):
    type: Literal["input_text", "output_text", "text"] = "input_text"
    text: Text


class InitialItem(WireModel):
    """An earlier message."""

    role: Literal["developer", "user", "assistant"]
    content: list[TextPart] = Field(min_length=1, max_length=1)


class Delegation(WireModel):
    """Delegation of tasks; accepted and echoed, nothing is delegated."""

    model_config = ConfigDict(extra="allow")

    type: Literal["client", "responses", "decisions"]  # who carries out tasks


class SessionSettings(OpenModel):
    model: str = Field(max_length=MODEL_MAX_CHARS)  # any name
    instructions: Text | None = None
    input: list[InitialItem] | None = Field(None, max_length=INITIAL_ITEMS_MAX)
    audio: Audio = Audio()
    delegation: Delegation | None = None  # echoed, without effect
    store: bool | None = None  # false: the session is not recorded
    triggers: list[Json] | None = None  # echoed, without effect
    client: Json | None = None  # echoed, without effect
    safety_identifier: str | None = None  # echoed, without effect


class SessionStart(realtime.NamedEvent):
    """Start the session; the first event of every socket."""

    type: Literal["session.start"] = "session.start"
    session: SessionSettings


class SessionChanges(WireModel):
    """Settings that may change during a session."""

    delegation: Delegation | None = None  # of unchanged type
    triggers: list[Json] | None = None  # replaces the former list


class SessionUpdate(realtime.NamedEvent):
    type: Literal["session.update"] = "session.update"
    session: SessionChanges


class InputAudioAppend(realtime.NamedEvent):
    type: Literal["session.input_audio.append"]
    audio: str  # Base64 of samples in the session's format


class InputImageAppend(realtime.ImageAppend):
    type: Literal["session.input_image.append"]


class ContextAppend(realtime.NamedEvent):
    # An instruction; silent context; something to speak about now.
    type: Literal[
        "session.instructions.append", "session.thinking.append", "session.commentary.append"
    ]
    content: Text  # the text, at most 500 tokens
    delegation_id: str | None  # required; null, as nothing is delegated


class FixturePlay(realtime.NamedEvent):
    """Play a recording instead of the model's audio."""

    type: Literal["session.output_audio.fixture.play"]
    # Base64 of 16-bit samples at 24 kHz, at most 30 s, regardless of the format.
    audio: str = Field(max_length=limits.base64_chars(int(FIXTURE_MAX_S * PCM_RATE_HZ) * 2))


class Command(realtime.NamedEvent):
    """Mute the microphone for the model, unmute it, or end the session."""

    type: Literal["session.input_audio.mute", "session.input_audio.unmute", "session.close"]


class NotOffered(realtime.NamedEvent):
    """An event that requires a delegation, which this server does not support."""

    type: Literal[
        "response.item.create",
        "response.create",
        "decision.create",
        "decision.item.create",
        "decision.item.delete",
    ]


@dataclass(frozen=True, slots=True)
class AudioReceived:
    """The audio of an append, decoded for the model: little-endian float32, mono, 16 kHz."""

    samples: bytes = field(repr=False)
    event_id: str | None = None
    type: str = "audio_received"


@dataclass(frozen=True, slots=True)
class Fixture(AudioReceived):
    """The audio of a recording to be played, in the session's format."""

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

ClientMessage = ClientEvent | AudioReceived | Fixture
"""Client events with decoded audio, as the machine receives them."""

EVENT: Final[TypeAdapter[ClientEvent]] = TypeAdapter(ClientEvent)
parse_event: Final = partial(parse_client_event, EVENT, event_types(ClientEvent))
