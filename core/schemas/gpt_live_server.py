"""What the server says on `/v1/live/sessions`; what the client says is in `gpt_live`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pybase64 import b64encode_as_string
from pydantic import Field

from core.schemas.common import WireModel
from core.schemas.gpt_live import Audio, Delegation, InitialItem, Json, LiveEvent


class ServerEvent(LiveEvent):
    """Base of what the server says."""

    event_id: str = Field(description="This event.")
    client_event_id: str | None = Field(None, description="The client's event that it answers.")


class SessionResource(WireModel):
    """A session as it is."""

    id: str = Field(description="The session.")
    status: Literal["active"] = Field("active", description="Always this word.")
    expires_at: int = Field(description="When it ends at the latest, Unix seconds.")
    model: str = Field(description="The model that is served.")
    instructions: str | None = Field(None, description="System prompt.")
    input: list[InitialItem] | None = Field(None, description="What was said before.")
    audio: Audio = Field(description="Sound.")
    delegation: Delegation | None = Field(None, description="As it came.")
    store: bool | None = Field(None, description="As it came.")
    triggers: list[Json] | None = Field(None, description="As it came.")
    client: Json | None = Field(None, description="As it came.")
    safety_identifier: str | None = Field(None, description="As it came.")


class SessionEvent(ServerEvent):
    """The session has begun, or was changed."""

    type: Literal["session.started", "session.updated"] = Field(description="Kind of event.")
    session: SessionResource = Field(description="The session.")


@dataclass(frozen=True, slots=True)
class OutputAudioDelta:
    """40 ms of what the model says, or 100 ms of silence while it says nothing.

    Not a model of pydantic's, as there are 25 of them in a second of speech.
    """

    samples: bytes = field(repr=False)  # in the session's format
    type: str = "session.output_audio.delta"

    def to_json(self) -> str:
        # Base64 needs no escapes.
        return f'{{"type":"{self.type}","delta":"{b64encode_as_string(self.samples)}"}}'


class TranscriptDelta(ServerEvent):
    """What was said, word by word."""

    type: Literal["session.input_transcript.delta", "session.output_transcript.delta"] = Field(
        description="By the user, or by the model."
    )
    delta: str = Field(description="What follows.")
    start_ms: int = Field(ge=0, description="From here on the session's clock, ms.")
    end_ms: int = Field(ge=0, description="To here, ms.")


class Acknowledged(ServerEvent):
    """Something the client asked for is done."""

    type: Literal[
        "session.input_audio.muted",
        "session.input_audio.unmuted",
        "session.instructions.appended",
        "session.thinking.appended",
        "session.commentary.appended",
        "session.output_audio.fixture.playing",
        "session.output_audio.fixture.played",
    ] = Field(description="What.")
    start_ms: int | None = Field(None, ge=0, description="On the session's clock, ms.")
    end_ms: int | None = Field(None, ge=0, description="The same.")


class Usage(WireModel):
    """How long the session was."""

    seconds: float = Field(ge=0, description="Sound heard, s.")


class ContextWindow(WireModel):
    """How full the model's context is."""

    usage_ratio: float = Field(ge=0, description="1 is full.")


class UsageUpdated(ServerEvent):
    """How long the session is so far."""

    type: Literal["session.usage.updated"] = Field(
        "session.usage.updated", description="Kind of event."
    )
    usage: Usage = Field(description="How long.")
    context_window: ContextWindow = Field(description="How full.")


class SessionClosed(ServerEvent):
    """The session is over; the connection closes after this."""

    type: Literal["session.closed"] = Field("session.closed", description="Kind of event.")
    reason: Literal["close_requested", "expired", "connection_lost"] = Field(description="Why.")
    session: SessionResource = Field(description="The session.")
    usage: Usage = Field(description="How long it was.")


class Problem(WireModel):
    """What went wrong."""

    type: str = Field(description="Whose fault it is.")
    code: str = Field(description="For a program.")
    message: str = Field(description="For a person to read.")
    param: str | None = Field(None, description="The field that is wrong.")
    client_event_id: str | None = Field(None, description="The client's event that is wrong.")


class ErrorEvent(ServerEvent):
    """Something went wrong."""

    type: Literal["error"] = Field("error", description="Kind of event.")
    error: Problem = Field(description="What.")


class InfoEvent(ServerEvent):
    """Something the client may want to know."""

    type: Literal["info"] = Field("info", description="Kind of event.")
    code: str = Field(description="For a program.")
    message: str = Field(description="For a person to read.")


ServerMessage = (
    SessionEvent
    | OutputAudioDelta
    | TranscriptDelta
    | Acknowledged
    | UsageUpdated
    | SessionClosed
    | ErrorEvent
    | InfoEvent
)
"""What the protocol's machine says."""
