"""HTTP responses: errors, static files, JSON, and the Content-Security-Policy.

Errors are `{"detail", "code"}`; below /v1 they are in OpenAI's format.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import structlog
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from core import errors
from core.errors import ErrorCode, NotFoundError, OmniError, describe_error
from core.schemas.common import WireModel
from core.schemas.openai_errors import OPENAI_CODES, OpenAIError
from recording.names import media_type

CLIENT_LEFT: Final = 499  # nginx's number for it, seen in logs only
RETRY_AFTER_S: Final = 5  # sent with "too many" and "try later"
RETRY_STATUSES: Final = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

CODE_OF_STATUS: Final[Mapping[int, ErrorCode]] = {
    HTTPStatus.UNAUTHORIZED: ErrorCode.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN: ErrorCode.FORBIDDEN,
    HTTPStatus.NOT_FOUND: ErrorCode.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED: ErrorCode.NOT_FOUND,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ErrorCode.TOO_BIG,
    HTTPStatus.UNPROCESSABLE_ENTITY: ErrorCode.BAD_JSON,
    HTTPStatus.BAD_REQUEST: ErrorCode.BAD_JSON,
    HTTPStatus.TOO_MANY_REQUESTS: ErrorCode.RATE_LIMITED,
}


OPENAI_PREFIX: Final = "/v1/"
PARAMS: Final = {ErrorCode.CONTEXT_FULL: "messages"}  # as OpenAI's server names them
FIELD: Final = re.compile(r"([a-z_]\w*(?:\.\w+|\[\d+\])*): ")  # at the beginning of a sentence


class Problem(WireModel):
    """Every response that is not a success."""

    detail: str = Field(description="What went wrong, as text for people.")
    code: ErrorCode = Field(description="What went wrong, for a program.")


KINDS: Final = tuple(
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OmniError)
)
# The first of several error classes with the same code and status represents all.
REFUSALS: Final = {(kind.code, kind.http_status): kind for kind in reversed(KINDS)}
ERROR_OF_CODE: Final = {kind.code: kind for kind in reversed(KINDS)}
DETAIL_MAX_CHARS: Final = 300  # of a worker's explanation, passed to a client


def refusal_of(status: int, body: bytes) -> OmniError:
    """Parse another process's `error_answer` into the error it stands for."""
    try:
        problem = Problem.model_validate_json(body)
        kind = REFUSALS[problem.code, status]
    except (ValidationError, KeyError):
        detail = body[:DETAIL_MAX_CHARS].decode("utf-8", "replace")
        return errors.BadPayloadError(f"The worker refuses the request: {detail}")
    return kind(problem.detail[:DETAIL_MAX_CHARS])


# Any, here and below: JSON.
def error_answer(error: BaseException, path: str = "") -> Response:
    """Build the response to an error; unexpected errors are not described."""
    if isinstance(error, HTTPException):
        status, headers = error.status_code, dict(error.headers or {})
        message, code = str(error.detail), CODE_OF_STATUS.get(status, ErrorCode.INTERNAL)
    else:
        known, headers = describe_error(error), {}
        status, message, code = known.http_status, known.message, known.code
    if status in RETRY_STATUSES:
        headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    body: dict[str, Any] = {"detail": message, "code": code}
    if path.startswith(OPENAI_PREFIX):
        body = _openai_body(status, message, code, error)
        # OpenAI answers both with 400, for which its clients have an error of their own.
        if status == HTTPStatus.UNPROCESSABLE_ENTITY or code is ErrorCode.CONTEXT_FULL:
            status = HTTPStatus.BAD_REQUEST
    return JSONResponse(body, status, headers)


def openai_error(error: OmniError) -> dict[str, Any]:
    return _openai_body(error.http_status, error.message, error.code, error)


def _openai_body(
    status: int, message: str, code: ErrorCode, error: BaseException
) -> dict[str, Any]:
    kind = "invalid_request_error"
    if code is ErrorCode.RATE_LIMITED:
        kind = "rate_limit_error"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = "server_error"
    named = error.param if isinstance(error, OpenAIError) else PARAMS.get(code)
    field = FIELD.match(message)
    own_code = error.openai_code if isinstance(error, OpenAIError) else None
    return {
        "error": {
            "message": message,
            "type": kind,
            "param": named or (field[1] if field else None),
            "code": own_code or OPENAI_CODES.get(code, code.value),
        }
    }


async def on_error(request: Request, error: Exception) -> Response:
    return error_answer(error, request.url.path)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"] if part != "body")
    detail = f"{where}: {problem['msg']}" if where else str(problem["msg"])
    return error_answer(errors.BadPayloadError(detail), request.url.path)


async def on_client_gone(request: Request, error: Exception) -> Response:
    """End a request whose client disconnected before the response."""
    return Response(status_code=CLIENT_LEFT)


# Any: FastAPI's own type of this argument.
def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Problem} for status in statuses}


NO_CACHE: Final = "no-cache"  # cached, but revalidated
NO_STORE: Final = "no-store"

TEXT_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/markdown; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".onnx": "application/octet-stream",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}
"""Types worth compressing."""

OTHER_TYPES: Final = {".ico": "image/vnd.microsoft.icon", ".woff2": "font/woff2"}

LEVEL: Final = 6  # of gzip: its own default
GZIP_MARK: Final = "-gz"  # in the ETag of a compressed file
WORTH_BYTES: Final = 512  # less is not worth compressing
PACKED_MAX: Final = 256  # more than the pages and their libraries have

IMMUTABLE: Final = "public, max-age=31536000, immutable"  # a year. Source: RFC 8246
IMMUTABLE_MARK: Final = "a file under an immutable address"  # key in a request's scope


class WebFiles(StaticFiles):
    """Serves a folder's files, and named ones; an LRU cache holds `PACKED_MAX` compressed ones."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder, check_dir=False)
        self._packed = functools.lru_cache(PACKED_MAX)(_packed_file)

    async def get_response(self, path: str, scope: Scope) -> Response:
        found = await super().get_response(path, scope)
        if isinstance(found, FileResponse):
            return await self.answer(Path(found.path), scope)
        return found

    async def answer(self, path: Path, scope: Scope) -> Response:
        request_headers = Headers(scope=scope)
        cache_control = IMMUTABLE if IMMUTABLE_MARK in scope else NO_CACHE
        try:
            stat = await asyncio.to_thread(path.stat)
            suffix = path.suffix.lower()
            is_text = suffix in TEXT_TYPES and stat.st_size >= WORTH_BYTES
            is_packed = is_text and accepts_gzip(request_headers)
            tag = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}{GZIP_MARK * is_packed}"'
            headers = {"Cache-Control": cache_control, "ETag": tag}
            if is_text:
                headers["Vary"] = "Accept-Encoding"
            known_tags = request_headers.get("if-none-match", "").split(",")
            if tag in [one.strip().removeprefix("W/") for one in known_tags]:
                return Response(status_code=304, headers=headers)
            kind = TEXT_TYPES.get(suffix) or OTHER_TYPES.get(suffix) or media_type(path.name)
            if not is_packed:
                return FileResponse(path, media_type=kind, headers=headers)
            body = await asyncio.to_thread(self._packed, path, stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            raise NotFoundError("There is no such file.") from error
        headers["Content-Encoding"] = "gzip"
        return Response(body, media_type=kind, headers=headers)


class ClosingResponse(StreamingResponse):
    """A streamed response that closes what its body reads.

    However it ends: a body that never started, since the client had left, cannot do that itself.
    If the body fails, the response is incomplete and the server closes the connection.
    """

    # Any: of the library's class.
    def __init__(
        self,
        body: AsyncIterator[str | bytes],
        *closes: Callable[[], Awaitable[None]],
        **options: Any,
    ) -> None:
        super().__init__(body, **options)
        self._closes = closes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            for close in reversed(self._closes):
                stack.push_async_callback(close)
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except OmniError as error:
            log = structlog.get_logger("openai")
            log.warning("response cut off", error_code=error.code.value, reason=error.message)


def json_answer(answer: BaseModel, request_headers: Headers) -> Response:
    """Return a long answer, compressed if the client accepts that; call it from a thread."""
    body = answer.model_dump_json().encode()
    headers = {"Cache-Control": NO_STORE, "Vary": "Accept-Encoding"}
    if len(body) >= WORTH_BYTES and accepts_gzip(request_headers):
        body = gzip.compress(body, LEVEL, mtime=0)
        headers["Content-Encoding"] = "gzip"
    return Response(body, media_type="application/json", headers=headers)


def accepts_gzip(request_headers: Headers) -> bool:
    """Source: RFC 9110, section 12.5.3."""
    for part in request_headers.get("accept-encoding", "").split(","):
        name, _, weight = part.partition(";")
        if name.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _packed_file(path: Path, _changed_ns: int, _size_bytes: int) -> bytes:
    return gzip.compress(path.read_bytes(), LEVEL, mtime=0)


def content_policy(media_origin: str = "") -> str:
    media = f" {media_origin}" if media_origin else ""
    rules = (
        "default-src 'self'",
        # WebAssembly for voice detection in the browser; no text is ever run as a program.
        "script-src 'self' 'wasm-unsafe-eval'",
        f"connect-src 'self' blob:{media}",
        f"img-src 'self' blob: data:{media}",
        f"media-src 'self' blob:{media}",
        "worker-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "style-src 'self'",
    )
    return "; ".join(rules)
