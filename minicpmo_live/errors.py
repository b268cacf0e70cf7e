"""What a client raises."""

from __future__ import annotations


class LiveError(Exception):
    """Base of all errors of this package."""


class ServerError(LiveError):
    """The server ended the session; `code` says why, as in `ErrorCode`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message


class ConnectionLostError(LiveError):
    """The server cannot be reached, or is no longer, and the session cannot continue."""


class ProtocolError(LiveError):
    """What came is no message of this protocol: another server, or one of another version."""


class SoundError(LiveError, ValueError):
    """The sound cannot be sent."""
