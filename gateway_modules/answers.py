"""Errors as HTTP answers: `{"detail", "code"}`, never more than a client may read."""

from __future__ import annotations

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

CLIENT_LEFT: Final = 499  # nobody reads it; the usual number in logs
RETRY_AFTER_S: Final = 5  # ours: told with "too many" and "try later"
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


class Problem(WireModel):
    """Every answer that is not a success."""

    detail: str = Field(description="What went wrong, for a person to read.")
    code: ErrorCode = Field(description="What went wrong, for a program.")


def problem_answer(
    status: int, detail: str, code: ErrorCode, headers: Mapping[str, str] | None = None
) -> Response:
    """Build an answer."""
    told = dict(headers or {})
    if status in RETRY_STATUSES:
        told.setdefault("Retry-After", str(RETRY_AFTER_S))
    body = Problem(detail=detail, code=code).model_dump(mode="json")
    return JSONResponse(body, status_code=status, headers=told)


def error_answer(error: BaseException) -> Response:
    """Build the answer to an error; of one that is not ours nothing is told."""
    fields = describe_error(error)
    return problem_answer(fields.http_status, fields.message, fields.code)


async def on_omni_error(request: Request, error: Exception) -> Response:
    """Answer an error of ours."""
    return error_answer(error)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: no such route, no such method, a body too long."""
    assert isinstance(error, HTTPException)
    code = CODE_OF_STATUS.get(error.status_code, ErrorCode.INTERNAL)
    return problem_answer(error.status_code, str(error.detail), code, error.headers)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Answer a request that does not fit: the first problem in one sentence, never the input."""
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    detail = f"{where}: {problem['msg']}" if where else str(problem["msg"])
    return problem_answer(HTTPStatus.UNPROCESSABLE_ENTITY, detail, ErrorCode.BAD_JSON)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """End a request whose client hung up while it sent the body; nobody reads the answer."""
    return Response(status_code=CLIENT_LEFT)


async def on_unexpected(request: Request, error: Exception) -> Response:
    """Answer a mistake of our own; the server logs it with its traceback."""
    structlog.get_logger("http").error("request failed", exc_info=error)
    return error_answer(InternalError())


# Any: FastAPI's own type of this argument.
def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe, for the API's description, which problems a route answers with."""
    return {status: {"model": Problem} for status in statuses}
