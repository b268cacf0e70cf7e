"""The sockets of the gateway as a client sees them: addresses, messages, their order, and rules.

Only what no model can say is written down here; fields and limits come from the models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, get_args, get_origin

from core.schemas import chat, duplex, half_duplex, limits, streaming
from core.schemas.common import WireModel

PROTOCOL_VERSION: Final = "1.0.0"


class Side(StrEnum):
    CLIENT = "client"
    SERVER = "server"


@dataclass(frozen=True)
class Socket:
    """One address and its messages."""

    name: str  # of its page and its channel
    address: str  # the path, with a place for the session's id
    title: str  # in a few words
    summary: str
    client: Any  # union of the client's messages. Any: a union is no class.
    server: Any  # union of the server's messages
    first_bytes: int  # longest first message of a session or turn
    other_bytes: int  # longest message otherwise
    course: tuple[str, ...]  # the usual order of messages, step by step
    rules: tuple[str, ...]  # what else a client has to know
    implied_type: str | None = None  # the type of a message without one

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
    "the place changes. Always exactly one `queue_done` when a worker is yours."
)
PREPARE_RULE: Final = (
    "`prepare` may come before `queue_done` and is kept; sound that comes before `prepared` is "
    "dropped."
)
PREPARED_RULE: Final = (
    "The answer to `prepare` is `prepared` or `error`. A `warning` about what was left out of "
    "`prepare` (an unknown setting, a voice that is not used) follows `prepared`."
)
CHUNK_RULE: Final = (
    "With speech, a `chunk` holds up to ten tokens of text and their sound, which the model makes "
    "together. Without speech, each token is a `chunk` of its own."
)
RESUME_RULES: Final = (
    "With `?resumable=1` in the address, `/ws/duplex` and `/ws/half_duplex` begin with "
    "`session_resumable`, and each message of the session carries `seq`, which counts from 1. When "
    "the socket breaks, come back to the same address with `?resume_token=…&last_seq=…`, the "
    "newest `seq` that arrived or 0: `session_resumed` answers, and what was missed follows. "
    "What was said meanwhile is lost.",
    "A session waits for its client when the socket vanished or closed with 1001, 1011 or 1012. "
    "`stop`, `close` and any other code end it at once. A later socket of the session takes over; "
    "the former closes with 4001.",
    "Who comes back before `prepared` gets its place in the queue, `queue_done`, or "
    "`session_resumed` with `last_seq` 0; the last two are answered with `prepare`.",
    "Who waits gets a new `return_ticket` with each `queued` and `queue_update`. When the socket "
    "breaks, the newest one, as `?ticket=…` of the same address beside what else it has, gives "
    "back the place in the queue within a minute, also after the server was started again. On "
    "`/ws/streaming` and `/ws/chat` the request has to be sent once more.",
)
COMMON_RULES: Final = (
    *RESUME_RULES,
    "A message is one JSON object in one text frame, and its `type` says which. A binary frame "
    "closes the connection with 1003.",
    "Fields that are not known are ignored. A `type` that is not known is answered by the "
    "`warning` `unknown_type`.",
    f"Sound to the server is Base64 (standard alphabet, padding, no prefix) of little-endian "
    f"float32 samples, mono, {limits.INPUT_SAMPLE_RATE_HZ} Hz. Sound from the server is the same "
    f"at {limits.OUTPUT_SAMPLE_RATE_HZ} Hz.",
    "The client chooses the session's id: 1 to 64 characters out of A-Z, a-z, 0-9, `_` and `-`. "
    "While a socket of this id is open, another one is refused.",
    "`error` is the last message before the server closes; after `warning` the session continues. "
    "Both carry a `code` for programs and a `message` for people.",
    "Where the app is switched off, the server is not ready, there are too many connections, or a "
    "page of another site asks, the socket does not open (HTTP 403) and there is no message.",
    "The server pings every 20 s; who does not answer for 20 s counts as gone. `heartbeat` is "
    "tolerated and never answered.",
    "Names end in their unit: `_ms`, `_s`, `_bytes`, `_tokens`; `server_send_ts` is Unix seconds.",
)

STREAMING: Final = Socket(
    name="streaming",
    address="/ws/streaming/{session_id}",
    title="Turn-based chat",
    summary=(
        "A conversation turn by turn: the client sends the whole history, the server feeds only "
        "what its cache does not hold yet and streams the reply."
    ),
    client=streaming.ClientMessage,
    server=streaming.ServerMessage,
    first_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    other_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    course=(
        "Send `prefill` with the whole history, the new user message last.",
        QUEUE_STEP,
        "`prefill_done` comes when the history is in the cache.",
        "Send `generate`; `chunk` follows `chunk`, the last one with `is_final` true and empty.",
        "`done` ends the turn. The next `prefill`, on this socket or another one, begins a new "
        "turn and queues again; `close` ends the connection.",
    ),
    rules=(
        "`stop` is heard at any time of a turn: in the queue, while feeding and while the reply is "
        "made. The turn ends with `done`, `stopped` true and the text so far.",
        "`cached_tokens` above 0 means that earlier turns were not fed again. For that, send the "
        "reply's text back unchanged as the assistant's message.",
        CHUNK_RULE,
        "Until `prefill_done`, `generate` is out of order: it is left out with a `warning`.",
    ),
)

HALF_DUPLEX: Final = Socket(
    name="half_duplex",
    address="/ws/half_duplex/{session_id}",
    title="Voice chat in turns",
    summary=(
        "The client streams the microphone; the server hears when the user has finished, answers, "
        "and listens again. One worker serves the whole session."
    ),
    client=half_duplex.ClientMessage,
    server=half_duplex.ServerMessage,
    first_bytes=limits.PREPARE_LIMIT_BYTES,
    other_bytes=limits.LIVE_SOCKET_LIMIT_BYTES,
    course=(
        QUEUE_STEP,
        "Send `prepare`; `prepared` answers when the server listens.",
        "Send `audio_chunk` after `audio_chunk`, about half a second each. `vad_state` tells when "
        "the user begins and ceases to speak.",
        "`generating` says that the user's turn is over: send no sound until the reply is played.",
        "`chunk` follows `chunk`, the last one with `is_final` true and empty; `turn_done` ends "
        "the turn, and the server listens again.",
        "`stop` ends the session: `stopped`, then the socket closes.",
    ),
    rules=(
        PREPARE_RULE,
        PREPARED_RULE,
        f"Sound of the first {half_duplex.COLD_START_MS} ms after `prepared` is not listened to. A "
        "microphone that starts later loses nothing.",
        "Sound that comes while the reply is made is dropped, not kept for later.",
        CHUNK_RULE,
        "`interrupt` ends the reply and not the session: `turn_done` follows, `interrupted` true. "
        "`POST /api/half_duplex/stop` does the same from outside.",
        "When nothing is heard for `timeout_s`, counted from the end of the reply's playback, "
        "`timeout` ends the session.",
        "The voice is the first of: `tts_ref_audio_base64`, the first sound of `system_content`, "
        "`ref_audio_base64`, the voice of the server.",
        "A reply that fails and can be undone is told by a `warning` and an interrupted "
        "`turn_done`; the session continues as if the turn had not been.",
    ),
)

DUPLEX: Final = Socket(
    name="duplex",
    address="/ws/duplex/{session_id}",
    title="Full duplex",
    summary=(
        "Both sides at once: for each second of sound, with pictures or without, the model "
        "decides to listen or to speak. One worker serves the whole session."
    ),
    client=duplex.ClientMessage,
    server=duplex.ServerMessage,
    first_bytes=limits.PREPARE_LIMIT_BYTES,
    other_bytes=limits.LIVE_SOCKET_LIMIT_BYTES,
    course=(
        QUEUE_STEP,
        "Send `prepare`; `prepared` answers with the length of a unit, `chunk_ms`.",
        "Send one `audio_chunk` every `chunk_ms`, and with video a `video_frame` beside it. Each "
        "chunk that is used gives one `result`, in order.",
        "`pause` and `resume` are answered by `paused` and `resumed`, `interrupt` by "
        "`interrupted`.",
        "`stop` ends the session: `stopped` when the running unit has ended, then the socket "
        "closes.",
    ),
    rules=(
        "An id that begins with `audio_duplex_` or `adx_` queues as sound alone, any other as "
        "sound and pictures. Pictures are accepted either way.",
        PREPARE_RULE,
        PREPARED_RULE,
        "A `video_frame` belongs to the earliest chunk received whose unit has not begun, else to "
        "the next one. Pictures may come inside `audio_chunk` instead. A `video_frame` that comes "
        "ahead of its chunk is looked at at once: send it some 300 ms earlier, and it costs the "
        "unit nothing.",
        f"A picture has at most {limits.FRAME_MAX_BYTES // limits.MIB} MiB and "
        f"{limits.FRAME_MAX_SIDE_PX} pixels a side; what cannot be decoded is left out with a "
        "`warning`.",
        "When units take longer than they last, the oldest chunks are dropped with the `warning` "
        "`late_chunk`.",
        "A `result` with `barge_in` true broke off a turn: throw away sound not played yet.",
        "What is sent during a pause is dropped. A pause that lasts too long ends the session "
        "with `timeout`.",
        "The voice is `tts_ref_audio_base64`, else `ref_audio_base64`, else the voice of the "
        "server; a `ref_audio_path` outside the reference folders is left out with a `warning`.",
    ),
)

CHAT: Final = Socket(
    name="chat",
    address="/ws/chat",
    title="One request, one reply",
    summary="A single request with the whole history; the reply comes in pieces or at once.",
    client=chat.ClientMessage,
    server=chat.ServerMessage,
    first_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    other_bytes=limits.CHAT_SOCKET_LIMIT_BYTES,
    course=(
        "Send the request.",
        QUEUE_STEP,
        "`prefill_done` comes when the request is in the cache.",
        "If `streaming` is true, `chunk` follows `chunk`.",
        "`done` carries the whole text, and all sound if `streaming` is false; then the socket "
        "closes.",
    ),
    rules=("`stop` ends the wait or the reply: `done` follows with `stopped` true.",),
    implied_type=chat.REQUEST_TAG,
)

SOCKETS: Final = (STREAMING, HALF_DUPLEX, DUPLEX, CHAT)


def message_type(message: type[WireModel]) -> str:
    return str(message.model_fields["type"].default)


def public_names() -> Mapping[type[WireModel], str]:
    """Return a name for every message: the class's own, with its module where two share one."""
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
