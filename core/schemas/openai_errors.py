"""Errors in the words of OpenAI's protocols: types, codes, and the `error` event of a socket."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pydantic import Field

from core.errors import ErrorCode
from core.schemas.common import WireModel
from core.schemas.queue import ErrorMessage, WarningMessage

OPENAI_CODES: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        ErrorCode.UNAUTHORIZED: "invalid_api_key",
        ErrorCode.QUEUE_FULL: "server_overloaded",
        ErrorCode.NO_WORKER: "server_overloaded",
        ErrorCode.CONTEXT_FULL: "context_length_exceeded",
        ErrorCode.BAD_JSON: "invalid_value",
        ErrorCode.INTERNAL: "internal_error",
    }
)
"""OpenAI's codes; the others keep their own."""

SOCKET_CODES: Final[Mapping[ErrorCode, str]] = MappingProxyType(
    {
        **OPENAI_CODES,
        ErrorCode.BAD_JSON: "invalid_event",
        ErrorCode.UNKNOWN_TYPE: "invalid_event",
        ErrorCode.TOO_BIG: "invalid_event",
        ErrorCode.TIMEOUT: "session_expired",
        ErrorCode.GENERATION_FAILED: "internal_error",
        ErrorCode.WORKER_LOST: "internal_error",
        ErrorCode.WORKER_UNREACHABLE: "internal_error",
    }
)
SERVER_CODES: Final = frozenset({"internal_error", "server_overloaded", "shutting_down"})
LAST_CODES: Final = SERVER_CODES | {"session_expired"}
"""Codes of errors after which the server closes."""


class EventError(WireModel):
    """What went wrong."""

    type: str = Field("invalid_request_error", description="Whose fault it is.")
    code: str = Field(description="What went wrong, for a program.")
    message: str = Field(description="What went wrong, for a person to read.")
    param: str | None = Field(None, description="The field that is wrong.")
    event_id: str | None = Field(None, description="The client's event that is wrong.")


class ErrorEvent(WireModel):
    """The `error` event of OpenAI's sockets."""

    type: str = Field("error", description="Kind of event.")
    event_id: str = Field(description="This event.")
    error: EventError = Field(description="What went wrong.")


def error_event(problem: ErrorMessage | WarningMessage, event_id: str) -> ErrorEvent:
    """Return the event for an error of ours."""
    code = SOCKET_CODES.get(problem.code, problem.code.value)
    kind = "invalid_request_error"
    if problem.code is ErrorCode.RATE_LIMITED:
        kind = "rate_limit_error"
    elif code in SERVER_CODES:
        kind = "server_error"
    return ErrorEvent(
        event_id=event_id, error=EventError(type=kind, code=code, message=problem.message)
    )
