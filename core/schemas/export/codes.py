"""Error and close codes of the sockets, with their meanings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from core import errors
from core.errors import CloseCode, ErrorCode, OmniError

TURNS: Final = ("streaming", "chat")
LIVE: Final = ("half_duplex", "duplex")
NAMED: Final = ("streaming", *LIVE)
ALL: Final = (*TURNS, *LIVE)


@dataclass(frozen=True)
class CodeUse:
    """Sockets on which a code may appear."""

    code: ErrorCode
    errors: tuple[str, ...] = ()  # sockets on which it ends the connection
    warnings: tuple[str, ...] = ()  # sockets on which it does not
    text: str = ""  # its meaning, unless an exception class documents it


USES: Final = (
    CodeUse(ErrorCode.QUEUE_FULL, ALL),
    CodeUse(ErrorCode.QUEUE_CANCELLED, ALL),
    CodeUse(ErrorCode.NO_WORKER, ALL),
    CodeUse(ErrorCode.SHUTTING_DOWN, ALL),
    CodeUse(ErrorCode.WORKER_UNREACHABLE, ALL),
    CodeUse(ErrorCode.WORKER_LOST, ALL),
    CodeUse(ErrorCode.NOT_PREPARED, warnings=LIVE),
    CodeUse(ErrorCode.ALREADY_PREPARED, warnings=LIVE),
    CodeUse(ErrorCode.OUT_OF_ORDER, ("streaming",), ALL),
    CodeUse(ErrorCode.BAD_JSON, ALL),
    CodeUse(ErrorCode.BAD_AUDIO, ALL, LIVE),
    CodeUse(ErrorCode.BAD_FRAME, TURNS, ALL),
    CodeUse(ErrorCode.BAD_CONFIG, ALL, ("duplex",)),
    CodeUse(ErrorCode.TOO_BIG, ALL),
    CodeUse(ErrorCode.UNKNOWN_TYPE, warnings=ALL),
    CodeUse(ErrorCode.SESSION_IN_USE, NAMED),
    CodeUse(ErrorCode.SESSION_EXPIRED, LIVE),
    CodeUse(ErrorCode.INVALID_SESSION_ID, NAMED),
    CodeUse(ErrorCode.TIMEOUT, ALL),
    CodeUse(
        ErrorCode.LATE_CHUNK,
        warnings=LIVE,
        text="Audio arrived faster than it was processed; the oldest was dropped.",
    ),
    CodeUse(
        ErrorCode.CONTEXT_NEARLY_FULL,
        warnings=NAMED,
        text="The conversation will soon exceed the model's context.",
    ),
    CodeUse(ErrorCode.CONTEXT_FULL, ALL),
    CodeUse(ErrorCode.GENERATION_FAILED, ALL, ("half_duplex",)),
    CodeUse(
        ErrorCode.ONE_VOICE,
        warnings=ALL,
        text="The model has one voice; the voice that was sent is ignored.",
    ),
    CodeUse(
        ErrorCode.VOICE_CUT,
        warnings=ALL,
        text="The voice sample is longer than the model supports; only its beginning is used.",
    ),
    CodeUse(ErrorCode.RECORDING_STOPPED, warnings=ALL),
    CodeUse(ErrorCode.ENDED_BY_ADMIN, ALL),
    CodeUse(
        ErrorCode.RATE_LIMITED,
        LIVE,
        text="Audio arrived faster than 1.5 times real time and was more than 40 s ahead.",
    ),
    CodeUse(ErrorCode.NOT_FOUND, LIVE, text="There is no voice with this id."),
    CodeUse(ErrorCode.INTERNAL, ALL, ("half_duplex",)),
)


CLOSE_TEXTS: Final[Mapping[CloseCode, str]] = {
    CloseCode.NORMAL: "The conversation is over.",
    CloseCode.SHUTDOWN: "The server shuts down.",
    CloseCode.BINARY: "A binary frame was received; messages are text.",
    CloseCode.BAD_PAYLOAD: "A message was invalid.",
    CloseCode.POLICY: "The request is not allowed.",
    CloseCode.TOO_BIG: "A message was too big.",
    CloseCode.INTERNAL: "Internal error of the server.",
    CloseCode.TRY_LATER: "The server is at capacity.",
    CloseCode.REPLACED: "Another socket of the same session took over.",
}


def _exceptions() -> tuple[type[OmniError], ...]:
    """Return the exception classes of `core.errors`, without those derived elsewhere."""
    known = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    return tuple(kind for kind in known if issubclass(kind, OmniError) and kind is not OmniError)


def text_of(use: CodeUse) -> str:
    """Return the meaning of a code: by default the docstring of its first exception class."""
    documented = [kind.__doc__ for kind in _exceptions() if kind.code is use.code]
    return use.text or next(text for text in documented if text)


def close_codes_of(code: ErrorCode) -> tuple[CloseCode, ...]:
    """Return how a connection may be closed after an `error` of this code."""
    return tuple(sorted({kind.close_code for kind in _exceptions() if kind.code is code}))


def uses_on(socket_name: str) -> tuple[CodeUse, ...]:
    return tuple(use for use in USES if socket_name in (*use.errors, *use.warnings))


def closes_on(socket_name: str) -> Mapping[CloseCode, tuple[ErrorCode, ...]]:
    """Return how the server may close a socket, and after which codes."""
    ending = [use.code for use in USES if socket_name in use.errors]
    return {
        close: tuple(code for code in ending if close in close_codes_of(code))
        for close in CLOSE_TEXTS
    }
