"""Errors of writing down what is said; see `core.errors`."""

from __future__ import annotations

from core.errors import (
    CloseCode,
    ErrorCode,
    GenerationFailedError,
    OmniError,
    QueueFullError,
)


class TranscriptionFailedError(GenerationFailedError):
    """What was said could not be written down."""


class TranscriberBusyError(QueueFullError):
    """Too much sound waits to be written down. Please try again later."""


class NotAvailableError(OmniError):
    """This server does not offer that."""

    code = ErrorCode.NOT_AVAILABLE
    close_code = CloseCode.POLICY
    http_status = 501
