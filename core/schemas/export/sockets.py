"""The gateway's sockets for clients: addresses, messages, texts and codes.

Fields and limits come from the message models, sentences from `texts.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

from core import errors
from core.errors import CloseCode, ErrorCode, OmniError
from core.schemas import chat, duplex, half_duplex, limits, streaming
from core.schemas.common import WireModel

PROTOCOL_VERSION: Final = "1.0.0"


class Side(StrEnum):
    CLIENT = "client"
    SERVER = "server"


TURNS: Final = ("streaming", "chat")
LIVE: Final = ("half_duplex", "duplex")  # one session a socket
NAMED: Final = ("streaming", *LIVE)  # with the session's id in the address
ALL: Final = (*TURNS, *LIVE)


@dataclass(frozen=True)
class Socket:
    name: str  # of its page and its channel
    title: str  # short
    client: Any  # union of the client's messages. Any: a union is no class.
    server: Any  # union of the server's messages
    implied_type: str | None = None  # type of a message without one

    @property
    def address(self) -> str:
        """Path, with a placeholder for the session id."""
        return f"/ws/{self.name}" + ("/{session_id}" if self.name in NAMED else "")

    @property
    def limits_bytes(self) -> tuple[int, int]:
        """Longest first message of a session or turn, and longest message otherwise."""
        if self.name in LIVE:
            return limits.PREPARE_LIMIT_BYTES, limits.LIVE_SOCKET_LIMIT_BYTES
        return limits.CHAT_SOCKET_LIMIT_BYTES, limits.CHAT_SOCKET_LIMIT_BYTES

    def messages(self, side: Side) -> tuple[type[WireModel], ...]:
        """Return the classes of one side's messages, in the order of the union."""
        union = self.client if side is Side.CLIENT else self.server
        return tuple(_members(union))


# Any: an annotation may be of any form.
def _members(annotation: Any) -> Iterator[Any]:
    """Yield the classes of a union; a member may be a union itself."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, type):
        yield annotation
        return
    for member in get_args(annotation):
        yield from _members(member)


def _texts() -> dict[str, str]:
    """Return the sections of `texts.md` by heading, with numbers and earlier sections filled in."""
    source = Path(__file__).with_name("texts.md").read_text(encoding="utf8")
    texts: dict[str, str] = {}
    for section in source.removeprefix("# ").split("\n# "):
        name, _, text = section.strip().partition("\n\n")
        texts[name] = text.format(
            **texts,
            input_rate_hz=limits.INPUT_SAMPLE_RATE_HZ,
            output_rate_hz=limits.OUTPUT_SAMPLE_RATE_HZ,
            cold_start_ms=half_duplex.COLD_START_MS,
            frame_mib=limits.FRAME_MAX_BYTES // limits.MIB,
            frame_side_px=limits.FRAME_MAX_SIDE_PX,
        )
    return texts


TEXTS: Final[Mapping[str, str]] = _texts()
"""Of each page of the protocol, paragraphs in Markdown.

A socket's are: what it is for, the usual order of messages, further rules, the phases.
"""

STREAMING: Final = Socket(
    "streaming", "Turn-based chat", streaming.ClientMessage, streaming.ServerMessage
)
HALF_DUPLEX: Final = Socket(
    "half_duplex", "Voice chat in turns", half_duplex.ClientMessage, half_duplex.ServerMessage
)
DUPLEX: Final = Socket("duplex", "Full duplex", duplex.ClientMessage, duplex.ServerMessage)
CHAT: Final = Socket(
    "chat", "One request, one reply", chat.ClientMessage, chat.ServerMessage, chat.REQUEST_TAG
)
SOCKETS: Final = (STREAMING, HALF_DUPLEX, DUPLEX, CHAT)


def message_type(message: type[WireModel]) -> str:
    return str(message.model_fields["type"].default)


def public_names() -> Mapping[type[WireModel], str]:
    """Return each message's name: that of its class, after that of its module if ambiguous."""
    classes = dict.fromkeys(
        message for socket in SOCKETS for side in Side for message in socket.messages(side)
    )
    uses = Counter(message.__name__ for message in classes)
    modules = {
        message: message.__module__.rpartition(".")[2].title().replace("_", "")
        for message in classes
        if uses[message.__name__] > 1
    }
    return {message: modules.get(message, "") + message.__name__ for message in classes}


# --- codes ---


@dataclass(frozen=True)
class CodeUse:
    """Sockets on which a code may appear."""

    code: ErrorCode
    errors: tuple[str, ...] = ()  # sockets on which it ends the connection
    warnings: tuple[str, ...] = ()  # sockets on which it does not


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
    CodeUse(ErrorCode.LATE_CHUNK, warnings=LIVE),
    CodeUse(ErrorCode.CONTEXT_NEARLY_FULL, warnings=NAMED),
    CodeUse(ErrorCode.CONTEXT_FULL, ALL),
    CodeUse(ErrorCode.GENERATION_FAILED, ALL, ("half_duplex",)),
    CodeUse(ErrorCode.ONE_VOICE, warnings=ALL),
    CodeUse(ErrorCode.VOICE_CUT, warnings=ALL),
    CodeUse(ErrorCode.RECORDING_STOPPED, warnings=ALL),
    CodeUse(ErrorCode.ENDED_BY_ADMIN, ALL),
    CodeUse(ErrorCode.RATE_LIMITED, ALL),
    CodeUse(ErrorCode.NOT_FOUND, LIVE),
    CodeUse(ErrorCode.INTERNAL, ALL, ("half_duplex",)),
)


CODE_TEXTS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.LATE_CHUNK: "Audio arrived faster than it was processed; the oldest was dropped.",
    ErrorCode.CONTEXT_NEARLY_FULL: "The conversation will soon exceed the model's context.",
    ErrorCode.ONE_VOICE: "The model has one voice; the voice that was sent is ignored.",
    ErrorCode.VOICE_CUT: (
        "The voice sample is longer than the model supports; only its beginning is used."
    ),
    ErrorCode.RATE_LIMITED: (
        "There are too many connections, or messages being received take too much memory; in a "
        "call also: audio arrived faster than 1.5 times real time and was more than 40 s ahead."
    ),
    ErrorCode.NOT_FOUND: "There is no voice with this id.",
}
"""Meanings that differ from the exception classes' own or have none."""

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
    return CODE_TEXTS.get(use.code) or next(text for text in documented if text)


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
