"""Messages every socket shares: the queue, errors and warnings, and the bare client commands."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import AliasChoices, Field, StringConstraints, computed_field

from core.errors import BadRequestError, ErrorCode, InvalidSessionIdError, OmniError, describe_error
from core.schemas import limits
from core.schemas.common import WireModel

RESUMABLE: Final = "resumable"  # query: the session may continue over another socket
RESUME_TOKEN: Final = "resume_token"  # query of such another socket: shows whose it is
RETURN_TICKET: Final = "ticket"  # query of the same: the place that it had in the queue
LAST_SEQ: Final = "last_seq"  # query of the same: the newest message that the client has
SEQ_PATTERN: Final = re.compile(r"[0-9]{1,15}")
SESSION_ID_PATTERN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
SESSION_SECRET_HEADER: Final = "X-Session-Secret"  # shows that a request is the session's owner's
SESSION_SECRET_BYTES: Final = 16

SECRET_PATTERN: Final = re.compile(r"^[0-9a-f]{32}([0-9a-f]{16})?$")

SessionSecret = Annotated[str, StringConstraints(pattern=SECRET_PATTERN)]
"""Hexadecimal digits, made by the gateway; only the session's owner knows them."""


class RequestType(StrEnum):
    """What a place in the queue is for."""

    CHAT = "chat"
    STREAMING = "streaming"
    HALF_DUPLEX_AUDIO = "half_duplex_audio"
    AUDIO_DUPLEX = "audio_duplex"
    OMNI_DUPLEX = "omni_duplex"
    DUPLEX = "duplex"  # older name of a duplex request of either kind

    @classmethod
    def _missing_(cls, value: object) -> RequestType | None:
        match value:
            case "chat_ws":
                return cls.CHAT
            case "half_duplex":
                return cls.HALF_DUPLEX_AUDIO
        return None


def check_session_id(session_id: str) -> str:
    if SESSION_ID_PATTERN.fullmatch(session_id) is None:
        raise InvalidSessionIdError()
    return session_id


def read_seq(text: str) -> int:
    if SEQ_PATTERN.fullmatch(text) is None:
        raise BadRequestError(f"{LAST_SEQ}: a whole number of 1 to 15 digits.")
    return int(text)


def duplex_request_type(session_id: str) -> RequestType:
    """Derive the type from the session id's prefix; anything unknown is omni."""
    if session_id.startswith(("audio_duplex_", "adx_")):
        return RequestType.AUDIO_DUPLEX
    return RequestType.OMNI_DUPLEX


class _QueuePlace(WireModel):
    """Where a request stands in the queue."""

    ticket_id: str = Field(max_length=limits.ID_MAX_CHARS, description="Name of the place.")
    position: int = Field(ge=0, description="1 is next.")
    estimated_wait_s: float = Field(
        ge=0,
        validation_alias=AliasChoices("estimated_wait_s", "eta_seconds"),
        description="Estimated wait, s.",
    )
    queue_length: int = Field(ge=0, description="How many requests wait.")
    return_ticket: str = Field(
        "", description="Keeps the place for a minute: `?ticket=` of another socket."
    )

    @computed_field(description="Same as estimated_wait_s.")  # type: ignore[prop-decorator]
    @property
    def eta_seconds(self) -> float:
        return self.estimated_wait_s


class Queued(_QueuePlace):
    """The request waits; sent once and only if no worker is free."""

    type: Literal["queued"] = Field("queued", description="Kind of message.")
    session_secret: SessionSecret | None = Field(
        None, description="Shows over HTTP that a request is from the session's owner."
    )


class QueueUpdate(_QueuePlace):
    """The place in the queue or the estimate changed."""

    type: Literal["queue_update"] = Field("queue_update", description="Kind of message.")


class QueueDone(WireModel):
    """A worker is assigned; the client may prepare now.

    It comes again if that worker could not be reached and another one takes over.
    """

    type: Literal["queue_done"] = Field("queue_done", description="Kind of message.")
    worker_id: str | None = Field(None, description="Name of the worker.")
    position: int = Field(0, ge=0, description="Always 0.")
    session_secret: SessionSecret | None = Field(
        None, description="Shows over HTTP that a request is from the session's owner."
    )


class SessionResumable(WireModel):
    """The session may continue over another socket; sent first to who asked for it."""

    type: Literal["session_resumable"] = Field("session_resumable", description="Kind of message.")
    session_id: str = Field(description="The session's id.")
    resume_token: SessionSecret = Field(description="Shows that a socket is the session's owner's.")
    grace_s: float = Field(gt=0, description="How long the session waits for another socket, s.")
    return_ticket: str = Field(
        "", description="OpenAI's protocols, which have no `queued`: comes with each new place."
    )


class SessionResumed(WireModel):
    """The session continues over this socket; the messages that were missed follow."""

    type: Literal["session_resumed"] = Field("session_resumed", description="Kind of message.")
    last_seq: int = Field(ge=0, description="`seq` of the newest message of the session.")
    lost_messages: int = Field(0, ge=0, description="Messages that are no longer kept.")
    away_ms: int = Field(0, ge=0, description="How long the session had no socket, ms.")


class ErrorMessage(WireModel):
    """Something cannot be helped; the connection closes after this."""

    type: Literal["error"] = Field("error", description="Kind of message.")
    message: str = Field(
        validation_alias=AliasChoices("message", "error"),
        description="What went wrong, for a person to read.",
    )
    code: ErrorCode = Field(ErrorCode.INTERNAL, description="What went wrong, for a program.")
    fatal: bool = Field(True, description="Always true: the connection closes.")

    @computed_field(description="Same as message.")  # type: ignore[prop-decorator]
    @property
    def error(self) -> str:
        return self.message

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Build the message for an exception; any of others is reported as "internal"."""
        fields = describe_error(error)
        return cls(message=fields.message, code=fields.code)


class UserTranscript(WireModel):
    """What the user said, as text; some time after it was said."""

    type: Literal["user_transcript"] = Field("user_transcript", description="Kind of message.")
    text: str = Field(description="What was said; empty if it could not be written down.")
    language: str = Field("", description="ISO 639-1 code, if it is known.")
    start_ms: int = Field(ge=0, description="Where it began in the sound that was sent, ms.")
    duration_ms: int = Field(ge=0, description="How long it was, ms.")
    turn_index: int | None = Field(
        None, ge=0, description="Number of the turn that answers it, in half duplex."
    )
    error: str | None = Field(None, description="Why there is no text.")


class WarningMessage(WireModel):
    """Something was ignored or left out; the connection stays open."""

    type: Literal["warning"] = Field("warning", description="Kind of message.")
    code: ErrorCode = Field(description="What happened, for a program.")
    message: str = Field(description="What happened, for a person to read.")

    @classmethod
    def of(cls, error: OmniError) -> Self:
        return cls(code=error.code, message=error.message)


class Stop(WireModel):
    """End what is going on: the wait, the reply or the session, as each protocol says."""

    type: Literal["stop"] = Field("stop", description="Kind of message.")


class Close(WireModel):
    """End of the connection."""

    type: Literal["close"] = Field("close", description="Kind of message.")


class Interrupt(WireModel):
    """Stop speaking and listen; the session continues."""

    type: Literal["interrupt"] = Field("interrupt", description="Kind of message.")


class Heartbeat(WireModel):
    """A sign of life; tolerated, never answered."""

    type: Literal["heartbeat"] = Field("heartbeat", description="Kind of message.")


QueueMessage = Queued | QueueUpdate | QueueDone
ResumeMessage = SessionResumable | SessionResumed
Problem = WarningMessage | ErrorMessage
