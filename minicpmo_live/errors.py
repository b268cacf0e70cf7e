"""Exceptions of the client."""

from __future__ import annotations


class LiveError(Exception):
    """Base of all errors of this package."""


class ServerError(LiveError):
    """The server ended the session; `code` is the reason, as in `ErrorCode`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


class ConnectionLostError(LiveError):
    """The server cannot be reached, and the session cannot continue."""


class ProtocolError(LiveError):
    """An invalid message: another server, or another version."""


class SoundError(LiveError, ValueError):
    """The audio cannot be sent."""
