"""The gateway's sockets for clients: addresses, messages, their order, rules and codes.

Fields and limits come from the message models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, get_args, get_origin

from core import errors
from core.errors import CloseCode, ErrorCode, OmniError
from core.schemas import chat, duplex, half_duplex, limits, streaming
from core.schemas.common import WireModel

PROTOCOL_VERSION: Final = "1.0.0"


class Side(StrEnum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True)
class Socket:
    """A socket and its messages."""

    name: str  # of its page and its channel
    address: str  # path, with a placeholder for the session id
    title: str  # short
    summary: str
    client: Any  # union of the client's messages. Any: a union is no class.
    server: Any  # union of the server's messages
    first_bytes: int  # longest first message of a session or turn
    other_bytes: int  # longest message otherwise
    course: tuple[str, ...]  # usual order of messages
    rules: tuple[str, ...]  # further rules for clients
    implied_type: str | None = None  # type of a message without one

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


QUEUE_STEP: Final = (
    "While all workers are busy: `queued` once, then `queue_update` every few seconds and whenever "
    "the place changes. Exactly one `queue_done` when a worker is assigned."
)
PREPARE_RULE: Final = (
    "`prepare` may be sent before `queue_done` and is held; audio before `prepared` is dropped."
)
PREPARED_RULE: Final = (
    "The reply to `prepare` is `prepared` or `error`. A `warning` about ignored parts of `prepare` "
    "(an unknown setting, an unused voice) follows `prepared`."
)
CHUNK_RULE: Final = (
    "With speech, a `chunk` has up to ten tokens of text and their audio, which are generated "
    "together. Without speech, each token is a `chunk` of its own."
)
RESUME_RULES: Final = (
    "With `?resumable=1` in the address, `/ws/duplex` and `/ws/half_duplex` begin with "
    "`session_resumable`, and each message of the session carries `seq`, which counts from 1. When "
    "the socket breaks, reconnect to the same address with `?resume_token=…&last_seq=…`, the "
    "newest `seq` received or 0: `session_resumed` is the reply, and the missed messages follow. "
    "Input sent meanwhile is lost.",
    "A session waits for its client if the socket vanished or closed with 1001, 1011 or 1012. "
    "`stop`, `close` and any other code end it at once. A later socket of the session takes over, "
    "and the former closes with 4001.",
    "A client that reconnects before `prepared` receives its place in the queue, `queue_done`, or "
    "`session_resumed` with `last_seq` 0; it replies to the last two with `prepare`.",
    "Each `queued` and `queue_update` has a new `return_ticket`. If the socket breaks, the newest "
    "one, sent as `?ticket=…` to the same address, restores the place in the queue within a "
    "minute, also after a restart of the server. On `/ws/streaming` and `/ws/chat` the request has "
    "to be sent again.",
)
COMMON_RULES: Final = (
    *RESUME_RULES,
    "A message is one JSON object in one text frame, with a `type`. A binary frame closes the "
    "connection with 1003.",
    "Unknown fields are ignored. The reply to an unknown `type` is the `warning` `unknown_type`.",
    f"Audio to the server is Base64 (standard alphabet, padding, no prefix) of little-endian "
    f"float32 samples, mono, {limits.INPUT_SAMPLE_RATE_HZ} Hz. Audio from the server is the same "
    f"at {limits.OUTPUT_SAMPLE_RATE_HZ} Hz.",
    "Audio sent while the request waits in the queue is dropped without a `warning`.",
    "The client chooses the session's id: 1 to 64 characters out of A-Z, a-z, 0-9, `_` and `-`. "
    "While a socket of this id is open, another one is refused.",
    "`error` is the last message before the server closes; after `warning` the session continues. "
    "Both carry a `code` for programs and a `message` for people.",
    "If the app is switched off, the server is not ready, there are too many connections, or the "
    "page is of another site, the handshake is refused (HTTP 403) without a message.",
    "The server pings every 20 s; a client that does not answer for 20 s is disconnected. "
    "`heartbeat` is accepted and never answered.",
    "Names end in their unit: `_ms`, `_s`, `_bytes`, `_tokens`; `server_send_ts` is Unix seconds.",
)

STREAMING: Final = Socket(
    name="streaming",
    address="/ws/streaming/{session_id}",
    title="Turn-based chat",
    summary=(
        "A conversation turn by turn: the client sends the whole history, the server prefills only "
        "what its cache lacks and streams the reply."
    ),
    client=streaming.ClientMessage,
    server=streaming.ServerMessage,
    first_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    other_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    course=(
        "Send `prefill` with the whole history, the new user message last.",
        QUEUE_STEP,
        "`prefill_done` follows when the history is in the cache.",
        "Send `generate`; the reply comes in `chunk` messages, the last empty, `is_final` true.",
        "`done` ends the turn. The next `prefill`, on this socket or another one, begins a new "
        "turn and queues again; `close` ends the connection.",
    ),
    rules=(
        "`stop` is accepted at any time of a turn: in the queue, during prefill and during the "
        "reply. The turn ends with `done`, `stopped` true and the text so far.",
        "`cached_tokens` above 0 means that earlier turns were reused. For that, send the reply's "
        "text back unchanged as the assistant's message.",
        CHUNK_RULE,
        "Until `prefill_done`, `generate` is out of order and ignored with a `warning`.",
    ),
)

HALF_DUPLEX: Final = Socket(
    name="half_duplex",
    address="/ws/half_duplex/{session_id}",
    title="Voice chat in turns",
    summary=(
        "The client streams the microphone; the server detects the end of the user's turn, "
        "replies, and listens again. One worker serves the whole session."
    ),
    client=half_duplex.ClientMessage,
    server=half_duplex.ServerMessage,
    first_bytes=limits.PREPARE_LIMIT_BYTES,
    other_bytes=limits.LIVE_SOCKET_LIMIT_BYTES,
    course=(
        QUEUE_STEP,
        "Send `prepare`; the reply `prepared` says that the server listens.",
        "Send `audio_chunk` messages of about half a second each. `vad_state` reports when the "
        "user begins and stops speaking.",
        "`generating` says that the user's turn is over: send no audio until the reply is played.",
        "The reply comes in `chunk` messages, the last one empty, `is_final` true; `turn_done` "
        "ends the turn, and the server listens again.",
        "`stop` ends the session: `stopped`, then the socket closes.",
    ),
    rules=(
        PREPARE_RULE,
        PREPARED_RULE,
        f"Audio of the first {half_duplex.COLD_START_MS} ms after `prepared` is ignored. A "
        "microphone that starts later loses nothing.",
        "Audio that arrives during a reply is dropped.",
        CHUNK_RULE,
        "`interrupt` ends the reply and not the session: `turn_done` follows, `interrupted` true. "
        "`POST /api/half_duplex/stop` does the same from outside.",
        "Without audio for `timeout_s`, counted from the end of the reply's playback, `timeout` "
        "ends the session.",
        "The voice is the first of: `tts_ref_audio_base64`, the first audio of `system_content`, "
        "`ref_audio_base64`, the voice of the server.",
        "A reply that fails and can be rolled back is reported by a `warning` and an interrupted "
        "`turn_done`; the session continues without that turn.",
    ),
)

DUPLEX: Final = Socket(
    name="duplex",
    address="/ws/duplex/{session_id}",
    title="Full duplex",
    summary=(
        "Both sides at once: for each second of audio, with or without pictures, the model "
        "decides to listen or to speak. One worker serves the whole session."
    ),
    client=duplex.ClientMessage,
    server=duplex.ServerMessage,
    first_bytes=limits.PREPARE_LIMIT_BYTES,
    other_bytes=limits.LIVE_SOCKET_LIMIT_BYTES,
    course=(
        QUEUE_STEP,
        "Send `prepare`; the reply `prepared` has the length of a unit, `chunk_ms`.",
        "Send one `audio_chunk` every `chunk_ms`, with video also a `video_frame`. Each chunk "
        "that is used gives one `result`, in order.",
        "The replies to `pause`, `resume` and `interrupt` are `paused`, `resumed` and "
        "`interrupted`.",
        "`stop` ends the session: `stopped` when the running unit has ended, then the socket "
        "closes.",
    ),
    rules=(
        "An id that begins with `audio_duplex_` or `adx_` queues as audio only, any other as audio "
        "and pictures. Pictures are accepted either way.",
        PREPARE_RULE,
        PREPARED_RULE,
        "A `video_frame` belongs to the earliest chunk received whose unit has not begun, else to "
        "the next one. Pictures may be part of `audio_chunk` instead. A `video_frame` that arrives "
        "before its chunk is encoded at once: sent some 300 ms earlier, it costs the unit no time.",
        f"A picture has at most {limits.FRAME_MAX_BYTES // limits.MIB} MiB and "
        f"{limits.FRAME_MAX_SIDE_PX} pixels a side; pictures that cannot be decoded are "
        "skipped with a `warning`.",
        "If units take longer than real time, the oldest chunks are dropped with the `warning` "
        "`late_chunk`.",
        "A `result` with `barge_in` true ends a turn early: drop audio that was not played yet.",
        "Input during a pause is dropped. A pause that is too long ends the session with "
        "`timeout`.",
        "The voice is `tts_ref_audio_base64`, else `ref_audio_base64`, else the voice of the "
        "server; a `ref_audio_path` outside the reference folders is ignored with a `warning`.",
    ),
)

CHAT: Final = Socket(
    name="chat",
    address="/ws/chat",
    title="One request, one reply",
    summary="A single request with the whole history; the reply is streamed or whole.",
    client=chat.ClientMessage,
    server=chat.ServerMessage,
    first_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    other_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    course=(
        "Send the request.",
        QUEUE_STEP,
        "`prefill_done` follows when the request is in the cache.",
        "If `streaming` is true, the reply comes in `chunk` messages.",
        "`done` carries the whole text, and all audio if `streaming` is false; then the socket "
        "closes.",
    ),
    rules=("`stop` ends the wait or the reply: `done` follows with `stopped` true.",),
    implied_type=chat.REQUEST_TAG,
)

SOCKETS: Final = (STREAMING, HALF_DUPLEX, DUPLEX, CHAT)


def message_type(message: type[WireModel]) -> str:
    return str(message.model_fields["type"].default)


def public_names() -> Mapping[type[WireModel], str]:
    """Return each message's name: that of its class, qualified by its module if ambiguous."""
    classes = [message for socket in SOCKETS for side in Side for message in socket.messages(side)]
    distinct = dict.fromkeys(classes)
    uses = Counter(message.__name__ for message in distinct)
    return {
        message: message.__name__ if uses[message.__name__] == 1 else _qualified(message)
        for message in distinct
    }


def _qualified(message: type[WireModel]) -> str:
    module = message.__module__.rpartition(".")[2]
    return module.title().replace("_", "") + message.__name__


# --- codes ---

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
