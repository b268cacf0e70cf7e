"""Every error knows its wire code, and nothing internal reaches a client."""

from __future__ import annotations

import inspect

import pytest

from core import errors
from core.errors import CloseCode, ErrorCode, OmniError, QueueFullError, describe_error

ALL_ERRORS = [
    item
    for item in vars(errors).values()
    if inspect.isclass(item) and issubclass(item, OmniError) and item is not OmniError
]


@pytest.mark.parametrize("kind", ALL_ERRORS)
def test_every_error_has_code_sentence_and_status(kind: type[OmniError]) -> None:
    fields = describe_error(kind())
    assert fields.code in ErrorCode
    assert fields.close_code in CloseCode
    assert 400 <= fields.http_status < 600
    assert fields.message.endswith(".")
    assert "\n" not in fields.message


def test_the_documented_codes_exist() -> None:
    documented = (
        "queue_full queue_cancelled no_worker shutting_down worker_unreachable worker_lost "
        "not_prepared already_prepared bad_json bad_audio bad_frame bad_config unknown_type "
        "session_in_use invalid_session_id timeout context_full internal"
    )
    assert set(documented.split()) <= {code.value for code in ErrorCode}


@pytest.mark.parametrize(
    ("kind", "code", "close_code", "status"),
    [
        (errors.QueueFullError, "queue_full", 1013, 503),
        (errors.QueueCancelledError, "queue_cancelled", 1000, 503),
        (errors.InvalidSessionIdError, "invalid_session_id", 1008, 400),
        (errors.SessionInUseError, "session_in_use", 1008, 409),
        (errors.BadPayloadError, "bad_json", 1007, 422),
        (errors.AudioTooLongError, "bad_audio", 1007, 413),
        (errors.InternalError, "internal", 1011, 500),
    ],
)
def test_codes_are_the_documented_ones(
    kind: type[OmniError], code: str, close_code: int, status: int
) -> None:
    assert (kind.code.value, int(kind.close_code), kind.http_status) == (code, close_code, status)


def test_own_sentence_is_told() -> None:
    told = "Queue full (7 requests)"
    assert describe_error(QueueFullError(told)).message == told


def test_foreign_errors_tell_nothing() -> None:
    fields = describe_error(ValueError("/secret/path"))
    assert fields.code is ErrorCode.INTERNAL
    assert fields.message == "Something went wrong on the server. Please start again."
