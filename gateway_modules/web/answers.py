"""Errors as HTTP answers, never more than a client may read.

They are `{"detail", "code"}`; below /v1 they are what OpenAI's clients read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from core.errors import ErrorCode, InternalError, describe_error
from core.schemas.common import WireModel
from core.schemas.openai_errors import OPENAI_CODES, OpenAIError

CLIENT_LEFT: Final = 499  # nginx's number for it, seen in logs only
RETRY_AFTER_S: Final = 5  # told with "too many" and "try later"
RETRY_STATUSES: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

CODE_OF_STATUS: Final[Mapping[int, ErrorCode]] = MappingProxyType(
    {
        HTTPStatus.UNAUTHORIZED: ErrorCode.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN: ErrorCode.FORBIDDEN,
        HTTPStatus.NOT_FOUND: ErrorCode.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED: ErrorCode.NOT_FOUND,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ErrorCode.TOO_BIG,
        HTTPStatus.UNPROCESSABLE_ENTITY: ErrorCode.BAD_JSON,
        HTTPStatus.BAD_REQUEST: ErrorCode.BAD_JSON,
        HTTPStatus.TOO_MANY_REQUESTS: ErrorCode.RATE_LIMITED,
    }
)


OPENAI_PREFIX: Final = "/v1/"
# The same routes for clients whose base URL has no path.
OPENAI_BARE: Final = ("/models", "/chat/", "/audio/", "/realtime/", "/live/")
FIELD: Final = re.compile(r"([a-z_]\w*(?:\.\w+|\[\d+\])*): ")  # at the beginning of a sentence


def is_openai(path: str) -> bool:
    return path.startswith((OPENAI_PREFIX, *OPENAI_BARE))


class Problem(WireModel):
    """Every answer that is not a success."""

    detail: str = Field(description="What went wrong, for a person to read.")
    code: ErrorCode = Field(description="What went wrong, for a program.")


def problem_answer(
    status: int, detail: str, code: ErrorCode, headers: Mapping[str, str] | None = None
) -> Response:
    sent = dict(headers or {})
    if status in RETRY_STATUSES:
        sent.setdefault("Retry-After", str(RETRY_AFTER_S))
    body = Problem(detail=detail, code=code).model_dump(mode="json")
    return JSONResponse(body, status_code=status, headers=sent)


def error_answer(error: BaseException, path: str = "") -> Response:
    """Build the response to an error; an unexpected one is not described."""
    fields = describe_error(error)
    if not is_openai(path):
        return problem_answer(fields.http_status, fields.message, fields.code)
    is_busy = fields.http_status in RETRY_STATUSES
    headers = {"Retry-After": str(RETRY_AFTER_S)} if is_busy else {}
    is_unfit = fields.http_status == HTTPStatus.UNPROCESSABLE_ENTITY  # which OpenAI never says
    status = HTTPStatus.BAD_REQUEST if is_unfit else fields.http_status
    return JSONResponse(openai_error(error), status_code=status, headers=headers)


# Any, here and below: JSON.
def openai_error(error: BaseException) -> dict[str, Any]:
    """Describe an error in OpenAI's format; an unexpected one is not described."""
    fields = describe_error(error)
    if isinstance(error, OpenAIError):
        return openai_body(fields.http_status, fields.message, error.openai_code, error.param)
    return openai_body(fields.http_status, fields.message, fields.code)


def openai_body(
    status: int, message: str, code: ErrorCode | str, param: str | None = None
) -> dict[str, Any]:
    """Build a response body; a field's name at the beginning of the message becomes `param`."""
    kind = "invalid_request_error"
    if code is ErrorCode.RATE_LIMITED:
        kind = "rate_limit_error"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "server_error"
    field = FIELD.match(message)
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": param or (field[1] if field else None),
            "code": OPENAI_CODES.get(code, str(code)) if isinstance(code, ErrorCode) else code,
        }
    }


async def on_omni_error(request: Request, error: Exception) -> Response:
    return error_answer(error, request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Return errors of the framework: no such route, no such method, a body too long."""
    assert isinstance(error, HTTPException)
    code = CODE_OF_STATUS.get(error.status_code, ErrorCode.INTERNAL)
    if is_openai(request.url.path):
        body = openai_body(error.status_code, str(error.detail), code)
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)
    return problem_answer(error.status_code, str(error.detail), code, error.headers)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Return the first validation error in one sentence, never the input."""
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    detail = f"{where}: {problem['msg']}" if where else str(problem["msg"])
    return problem_answer(HTTPStatus.UNPROCESSABLE_ENTITY, detail, ErrorCode.BAD_JSON)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """End a request whose client disconnected while sending the body."""
    return Response(status_code=CLIENT_LEFT)


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Return an internal error and log its traceback."""
    structlog.get_logger("http").error("request failed", exc_info=error)
    return error_answer(InternalError(), request.url.path)


# Any: FastAPI's own type of this argument.
def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe, for OpenAPI, the error responses of a route."""
    return {status: {"model": Problem} for status in statuses}
