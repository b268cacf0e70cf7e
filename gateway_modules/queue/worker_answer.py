"""What a worker answers over HTTP: read within a limit, and turned into our errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import httpx
from pydantic import ValidationError

from core import errors
from core.schemas import limits
from gateway_modules.web.responses import Problem

REPLY_MAX_BYTES = limits.CHAT_SOCKET_LIMIT_BYTES
DETAIL_MAX_CHARS = 300  # of a worker's explanation, to a client
REFUSED_STATUSES: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
    }
)
KINDS: Final = tuple(
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.OmniError)
)
# Of several errors with the same code, and status, the first represents all.
REFUSALS: Final = {(kind.code, kind.http_status): kind for kind in reversed(KINDS)}
ERROR_OF_CODE: Final = {kind.code: kind for kind in reversed(KINDS)}


@dataclass(frozen=True)
class WorkerAnswer:
    status: int
    body: bytes


async def read_reply(response: httpx.Response) -> bytes:
    """Raises WorkerLostError for a reply beyond the limit."""
    parts, size_bytes = [], 0
    async for part in response.aiter_bytes():
        size_bytes += len(part)
        if size_bytes > REPLY_MAX_BYTES:
            raise errors.WorkerLostError("The worker's reply is too large.")
        parts.append(part)
    return b"".join(parts)


@contextmanager
def our_errors() -> Iterator[None]:
    try:
        yield
    except httpx.ConnectError as error:
        raise errors.WorkerUnreachableError() from error
    except (TimeoutError, httpx.TimeoutException) as error:
        raise errors.SessionTimeoutError("The worker did not answer in time.") from error
    except (httpx.HTTPError, ValidationError) as error:
        raise errors.WorkerLostError() from error


def raise_for_status(answer: WorkerAnswer) -> None:
    if answer.status == HTTPStatus.OK:
        return
    if answer.status == HTTPStatus.CONFLICT:
        raise errors.NotSupervisedError()
    if answer.status in REFUSED_STATUSES:
        raise _refusal(answer)
    if answer.status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        raise errors.NoWorkerError("The worker is busy. Please try again later.")
    raise errors.WorkerLostError(f"The worker failed (HTTP {answer.status}).")


def _refusal(answer: WorkerAnswer) -> errors.OmniError:
    try:
        problem = Problem.model_validate_json(answer.body)
        kind = REFUSALS[problem.code, answer.status]
    except (ValidationError, KeyError):
        detail = answer.body[:DETAIL_MAX_CHARS].decode("utf-8", "replace")
        return errors.BadPayloadError(f"The worker refuses the request: {detail}")
    return kind(problem.detail[:DETAIL_MAX_CHARS])
