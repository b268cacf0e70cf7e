"""Errors of OpenAI's protocols: types, codes, and the `error` event of a socket."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from core.errors import BadRequestError, ErrorCode, NotFoundError, OmniError
from core.schemas.common import WireModel, check_json_shape, json_text, reason_of

OPENAI_CODES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNAUTHORIZED: "invalid_api_key",
    ErrorCode.QUEUE_FULL: "server_overloaded",
    ErrorCode.NO_WORKER: "server_overloaded",
    ErrorCode.CONTEXT_FULL: "context_length_exceeded",
    ErrorCode.BAD_JSON: "invalid_value",
    ErrorCode.INTERNAL: "internal_error",
}
"""OpenAI's codes; others are unchanged."""

SOCKET_CODES: Final[Mapping[ErrorCode, str]] = {
    **OPENAI_CODES,
    ErrorCode.BAD_JSON: "invalid_event",
    ErrorCode.UNKNOWN_TYPE: "invalid_event",
    ErrorCode.TOO_BIG: "invalid_event",
    ErrorCode.TIMEOUT: "session_expired",
    ErrorCode.GENERATION_FAILED: "internal_error",
    ErrorCode.WORKER_LOST: "internal_error",
    ErrorCode.WORKER_UNREACHABLE: "internal_error",
}
SERVER_CODES: Final = frozenset({"internal_error", "server_overloaded", "shutting_down"})
LAST_CODES: Final = SERVER_CODES | {"session_expired", ErrorCode.RATE_LIMITED.value}
"""Codes of errors after which the server closes."""

MISSING: Final[Mapping[str, str | None]] = {"missing": None, "union_tag_not_found": "type"}
"""Problems of an absent field, and its name, unless the problem's place says it."""
EVENT_ID_BYTES: Final = 10
EVENT_ID_MAX_CHARS: Final = 512
INVALID_EVENT: Final = "invalid_event"

AnyModel = TypeVar("AnyModel")
AnyBody = TypeVar("AnyBody", bound=WireModel)


class OpenAIError(OmniError):
    """An error whose code is specific to OpenAI's interface."""

    openai_code: str
    param: str | None = None


class ModelNotFoundError(NotFoundError, OpenAIError):
    """No model of this name is served."""

    openai_code = "model_not_found"
    param = "model"

    def __init__(self, name: str) -> None:
        super().__init__(f"The model '{name[:64]}' does not exist.")


class FieldError(BadRequestError, OpenAIError):
    """A request body or client event is invalid."""

    def __init__(
        self, code: str, message: str, param: str | None = None, event_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.openai_code = code
        self.param = param  # path of the invalid field
        self.event_id = event_id  # id of the client's event


def socket_code(code: ErrorCode) -> str:
    return SOCKET_CODES.get(code, code.value)


def error_type(code: str) -> str:
    if code == ErrorCode.RATE_LIMITED:
        return "rate_limit_error"
    return "server_error" if code in SERVER_CODES else "invalid_request_error"


def error_fields(
    code: str, message: str, *, param: str | None = None, event_id: str | None = None
) -> dict[str, str | None]:
    """Return the `error` of an event.

    `param` is the path of the invalid field, `event_id` the id of the client's invalid event.
    """
    kind = error_type(code)
    return {"type": kind, "code": code, "message": message, "param": param, "event_id": event_id}


def error_event(code: str, message: str, **named: str) -> str:
    """Return the JSON of an `error` event of any of OpenAI's protocols.

    `named` are more fields of the error. One without a value is absent, as GPT-Live requires.
    """
    event_id = f"event_{secrets.token_hex(EVENT_ID_BYTES)}"
    fields = {**error_fields(code, message), **named}
    known = {name: value for name, value in fields.items() if value is not None}
    return json_text({"type": "error", "event_id": event_id, "error": known})


def parse_body(model: type[AnyBody], text: str | bytes) -> AnyBody:
    """Validate the body of a request; raises `FieldError`, or `TooBigError` for too many values."""
    check_json_shape(text)
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        raise field_error(error, text, "invalid_json") from error


def field_error(error: ValidationError, text: str | bytes, invalid: str) -> FieldError:
    """Return an error that names the first invalid field, never its value.

    `invalid` is the code for a text that is not a JSON object.
    """
    try:
        given = from_json(text)  # as the validator reads it
    except ValueError:
        return FieldError(invalid, "This is not valid JSON.")
    if not isinstance(given, dict):
        return FieldError(invalid, "This is not a JSON object.")
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    found = [(_path(given, problem), problem) for problem in problems]
    param, problem = found[0]
    for path, other in found[1:]:  # of the members of a union, the closest match
        is_closer = len(path) > len(param) and path.startswith(param)
        if is_closer or (path == param and other["type"] == "too_long"):
            param, problem = path, other
    event_id = given.get("event_id")
    known_id = event_id[:EVENT_ID_MAX_CHARS] if isinstance(event_id, str) else None
    if problem["type"] in MISSING:
        message = f"Missing required parameter: '{param}'."
        return FieldError("missing_required_parameter", message, param, known_id)
    message = f"Invalid value of '{param}': {reason_of(problem)}."
    return FieldError("invalid_value", message, param, known_id)


# Any: an annotated union of models, which has no type of its own.
def event_types(client_event: Any) -> tuple[str, ...]:
    """Return the types of all events of a discriminated union, sorted."""
    models = get_args(get_args(client_event)[0])
    types = [get_args(model.model_fields["type"].annotation) for model in models]
    return tuple(sorted(itertools.chain.from_iterable(types)))


def parse_client_event(adapter: TypeAdapter[AnyModel], types: Sequence[str], text: str) -> AnyModel:
    """Validate a client event, whose supported types are `types`; raises as `parse_body`."""
    check_json_shape(text)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        found = field_error(error, text, INVALID_EVENT)
        problem = error.errors(include_url=False, include_input=False)[0]
        if found.openai_code == INVALID_EVENT or problem["loc"]:
            raise found from error
        tag = str(problem["ctx"].get("tag", ""))[:64] if "ctx" in problem else ""
        message = f"Unknown event type '{tag}'. Supported: {', '.join(types)}."
        raise FieldError(INVALID_EVENT, message, "type", found.event_id) from error


# Any: the client's JSON.
def _path(given: Any, problem: ErrorDetails) -> str:
    """Return the path of the field in the client's JSON, without names of our models."""
    path = ""
    for step in problem["loc"]:
        if isinstance(given, list) and isinstance(step, int) and step < len(given):
            path, given = f"{path}[{step}]", given[step]
        elif isinstance(given, dict) and step in given:
            path, given = f"{path}.{step}" if path else str(step), given[step]
    if problem["type"] in MISSING:
        name = MISSING[problem["type"]] or str(problem["loc"][-1])
        path = f"{path}.{name}" if path else name
    return path
