"""Inspection of the relayed messages: a few short ones; the rest passes unread.

Independent of queue and sockets: texts in, verdicts out. Whole histories are parsed and hashed,
long ones in a thread.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError

from core import errors, history
from core.schemas import chat, duplex, streaming
from core.schemas.common import WireModel, parse_message
from core.schemas.queue import SocketKind
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.relay.telemetry import DiagnosticsLimit
from gateway_modules.voices import VoiceLibrary, name_voices, with_confined_tts, without_paths
from gateway_modules.web import messages as texts
from gateway_modules.web.client_socket import INLINE_CHARS

SHORT_CHARS: Final = 4_096  # messages that matter to the relay are shorter
UTF8_BYTES_MAX: Final = 4  # of a character
ESCAPED_ASCII: Final = re.compile(r"\\u00[2-7]")  # no JSON encoder writes letters so
DIAGNOSTIC_MARK: Final = '"client_diagnostic"'
# Errors of a message of the client that only drop it.
WARNINGS: Final = (
    errors.UnknownTypeError,
    errors.PictureError,
    errors.AlreadyPreparedError,
    errors.OutOfOrderError,
)
LAST_TYPES: Final = frozenset({"stopped", "timeout", "error"})
# Types of messages that clients may send.
LIVE_TYPES: Final = frozenset("prepare audio_chunk interrupt stop heartbeat close".split())
LIVE_COMMANDS: Final = frozenset({"interrupt", "pause", "resume", "text_input"})
DUPLEX_TYPES: Final = LIVE_TYPES | LIVE_COMMANDS | {"video_frame", "client_diagnostic"}
TURN_COMMANDS: Final = frozenset({"generate", "stop", "close", "heartbeat"})

STREAMING_MESSAGE: Final[TypeAdapter[streaming.ClientMessage]] = TypeAdapter(
    streaming.ClientMessage
)
CHAT_MESSAGE: Final[TypeAdapter[chat.ClientMessage]] = TypeAdapter(chat.ClientMessage)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Message(NamedTuple):
    """A message that a client sends before a worker is connected."""

    kind: str  # its type
    text: str
    turn: StreamingTurn | None = None  # streaming: that of a `prefill`

    @property
    def size_chars(self) -> int:
        return texts.size_chars(self.text)


class Verdict(StrEnum):
    """What to do with a message of the worker."""

    PASS = "pass"
    LAST = "last"  # pass it on; the worker closes after it
    DONE = "done"  # the turn is over
    DROP = "drop"


SendUp = Callable[[str], Awaitable[None]]
"""Sends a message to the worker; a closed socket is not an error."""


class Traffic(ABC):
    """Inspects the messages of one client's socket."""

    warning: errors.OmniError | None = None
    """Sent to the client after the next `prepared`."""

    is_closing = False
    """The client has sent `close`."""

    is_over = False
    """The worker's last message was passed on; no error may follow it."""

    def __init__(self, voices: VoiceLibrary) -> None:
        self.voices = voices

    async def read(self, text: str) -> Message:
        """Parse a message while there is no worker."""
        try:
            return await parse_apart(self.parse, text, self.voices)
        except errors.UnknownTypeError:
            raise errors.UnknownTypeError() from None  # of the parser's two cases one, for clients

    @abstractmethod
    def parse(self, text: str) -> Message:
        """Return a message by its type; `prefill` begins a turn.

        Raises UnknownTypeError or BadPayloadError.
        """

    def hold(self, message: Message, held: list[Message]) -> None:
        """Add a message to those that are sent to the worker first, or drop it.

        By default one `prepare` is held, and all else is dropped, such as audio that comes early.
        Raises AlreadyPreparedError or QueueFullError.
        """
        if message.kind == "prepare":
            if held:
                raise errors.AlreadyPreparedError()
            held.append(message)

    def is_warning(self, error: errors.OmniError) -> bool:
        """Whether an error of a client's message only drops it, and the session continues."""
        return isinstance(error, WARNINGS)

    def stopped(self, session_id: str) -> WireModel:
        """Return the reply to a `stop` that ends the wait."""
        return duplex.Stopped(session_id=session_id)  # in half duplex too

    def encoded(self, message: WireModel) -> str | None:
        """Encode one of the gateway's own messages; None if this client's protocol has none."""
        return message.to_json()

    def begin(self, first: Message) -> tuple[str, str | None]:
        """Begin a turn with its first message.

        Return the hash of the turn's history, for cache-aware routing, and the session secret sent
        with the turn: that of an earlier socket of the session.
        """
        return "", None

    async def opening(self, held: str, ticket: Ticket) -> str | None:
        """Return what is sent to the worker for the message that was held for it."""
        return await self.upward(held)

    async def upward(self, text: str) -> str | None:
        """Return what is sent to the worker for a message; None if nothing is."""
        return text

    @abstractmethod
    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        """Inspect a message to the client."""

    def passes_up(self, text: texts.Text) -> bool:
        """Whether `upward` would return the message unchanged and without side effects."""
        return False

    def passes_down(self, text: texts.Text) -> bool:
        """Whether `downward` would pass the message on without side effects."""
        return False


class LiveTraffic(Traffic):
    """Half and full duplex: one `prepare`, then audio both ways."""

    def __init__(
        self, kind: SocketKind, voices: VoiceLibrary, diagnostics: DiagnosticsLimit
    ) -> None:
        super().__init__(voices)
        self._types = DUPLEX_TYPES if kind is SocketKind.DUPLEX else LIVE_TYPES
        self._diagnostics = diagnostics
        self._is_prepared = False  # from then on no message can name a voice

    def parse(self, text: str) -> Message:
        kind = texts.parse_object(text).get("type")
        if not isinstance(kind, str) or kind not in self._types:
            raise errors.UnknownTypeError()
        return Message(kind, text)

    def hold(self, message: Message, held: list[Message]) -> None:
        if message.kind in LIVE_COMMANDS:
            raise errors.OutOfOrderError(f"{message.kind!r} is not expected now.")
        super().hold(message, held)

    def passes_up(self, text: texts.Text) -> bool:
        return self._is_prepared and not may_be_diagnostic(str(text, "latin-1"))

    def passes_down(self, text: texts.Text) -> bool:
        """Only audio is longer than `SHORT_CHARS` in any script."""
        return len(text) > UTF8_BYTES_MAX * SHORT_CHARS

    async def upward(self, text: str) -> str | None:
        if may_be_diagnostic(text):
            if await off_loop(is_long(text), texts.parse_type, text) == "client_diagnostic":
                return text if self._diagnostics.admits(text) else None
        if not self._is_prepared and names_files(text):
            text, warning = await self.voices.run(name_voices, text, self.voices)
            self.warning = warning or self.warning
        return text

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        if len(text) > SHORT_CHARS:
            return Verdict.PASS
        match texts.peek_type(text):
            case "prepared":
                self._is_prepared = True
                ticket.has_started = True
            case "paused":
                ticket.update_status(WorkerStatus.DUPLEX_PAUSED)
            case "resumed":
                ticket.update_status(WorkerStatus.DUPLEX_ACTIVE)
            case kind if kind in LAST_TYPES:
                return Verdict.LAST
        return Verdict.PASS


class TurnTraffic(Traffic):
    """Streaming: turns of a `prefill` and a reply; each turn is assigned a worker."""

    _turn: StreamingTurn | None = None
    _is_stopping = False
    _is_plain = True  # this turn has no messages besides `TURN_COMMANDS`

    def parse(self, text: str) -> Message:
        message = parse_message(STREAMING_MESSAGE, text)
        if not isinstance(message, streaming.Prefill):
            return Message(message.type, text)
        prefill = without_paths(message, self.voices)
        return Message(message.type, text, StreamingTurn.of(prefill, text))

    def begin(self, first: Message) -> tuple[str, str | None]:
        self._turn, self._is_stopping, self._is_plain = first.turn, False, True
        assert first.turn is not None, "a turn begins with `prefill`"
        return first.turn.history_hash, first.turn.prefill.session_secret

    def stopped(self, session_id: str) -> WireModel:
        return streaming.Done(session_id=session_id, stopped=True)

    async def opening(self, held: str, ticket: Ticket) -> str | None:
        return await self._prefill(is_cache_hit=ticket.is_cache_hit)

    async def upward(self, text: str) -> str | None:
        is_short = texts.size_chars(text) <= SHORT_CHARS
        kind = texts.peek_type(text) or texts.parse_type(text) if is_short else ""
        self._is_stopping |= kind == "stop"
        self.is_closing |= kind == "close"
        self._is_plain &= kind in TURN_COMMANDS
        return text

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        match texts.peek_type(text):
            case "cache_miss":
                if not self._is_stopping:
                    await send_up(await self._prefill(is_cache_hit=False))
                return Verdict.DROP
            case "prefill_done":
                ticket.has_started = True
            case "done":
                turn, self._turn = self._turn, None
                if turn is not None and self._is_plain:
                    ticket.kept_hash = await off_loop(is_long(turn.text), turn.hash_after, text)
                return Verdict.DONE
            case "error":
                return Verdict.LAST
        return Verdict.PASS

    async def _prefill(self, *, is_cache_hit: bool) -> str:
        turn = self._turn
        assert turn is not None, "a worker without a turn"
        return await off_loop(is_long(turn.text), turn.for_worker, is_cache_hit=is_cache_hit)


class ChatTraffic(Traffic):
    """One request, one reply; the request is named `prefill`, as the first message of a turn."""

    def parse(self, text: str) -> Message:
        message = parse_message(CHAT_MESSAGE, text)
        if not isinstance(message, chat.ChatSocketRequest):
            return Message(message.type, text)
        return Message("prefill", with_confined_tts(message, text, self.voices))

    def stopped(self, session_id: str) -> WireModel:
        return chat.ChatDone(stopped=True)

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        match texts.peek_type(text):
            case "prefill_done" | "chunk":
                ticket.has_started = True
            case "done":
                ticket.has_started = True
                return Verdict.DONE
            case "error":
                return Verdict.LAST
        return Verdict.PASS


async def parse_apart(work: Callable[[str], Result], text: str, voices: VoiceLibrary) -> Result:
    """Parse in a thread if the text is long, on the voices' threads if it names one."""
    if await off_loop(is_long(text), names_files, text):
        return await voices.run(work, text)
    return await off_loop(is_long(text), work, text)


async def off_loop(
    is_heavy: bool,
    work: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    if not is_heavy:
        return work(*args, **kwargs)
    return await asyncio.to_thread(work, *args, **kwargs)


def is_long(text: str) -> bool:
    return texts.size_chars(text) > INLINE_CHARS


def may_be_diagnostic(text: str) -> bool:
    """Whether a message may be a `client_diagnostic`, escape sequences included."""
    # Audio has no backslash, and one character is found a hundred times faster than a pattern.
    return DIAGNOSTIC_MARK in text or ("\\" in text and ESCAPED_ASCII.search(text) is not None)


def names_files(text: str) -> bool:
    """Whether a message may name a voice or a file of the server, escape sequences included."""
    return '_path"' in text or 'ref_audio_id"' in text or ESCAPED_ASCII.search(text) is not None


@dataclass(frozen=True)
class StreamingTurn:
    """A `prefill`, its text, and the hash of the history it continues; "" for a first message."""

    prefill: streaming.Prefill
    text: str
    history_hash: str

    @classmethod
    def of(cls, prefill: streaming.Prefill, text: str) -> StreamingTurn:
        options, value = history.CacheOptions.of(prefill), _value_in(text)
        return cls(prefill, text, history.request_history_hash(prefill.messages, options, value))

    def for_worker(self, *, is_cache_hit: bool) -> str:
        prefill = self.prefill
        messages = prefill.messages[-1:] if is_cache_hit else prefill.messages
        ours: dict[str, object] = {
            "messages": messages,
            "clear_kv_cache": not is_cache_hit,
            "expect_hash": self.history_hash if is_cache_hit else None,
        }
        # The secret is sent separately: a turn's message may be recorded.
        given = (prefill.model_fields_set | ours.keys() | {"type"}) - {"session_secret"}
        # Validated on arrival; `model_construct` saves the cost of doing it again.
        message = streaming.WorkerPrefill.model_construct(given, **{**dict(prefill), **ours})
        return texts.with_strings_of(self.text, message.model_dump_json(exclude_unset=True))

    def hash_after(self, done: str) -> str:
        """Return the history hash of the next turn; "" if the cache's content is uncertain."""
        try:
            message = streaming.Done.model_validate_json(done)
        except ValidationError:
            return ""
        if message.stopped and not message.text:
            return ""  # no reply, or the turn was rolled back
        options, value = history.CacheOptions.of(self.prefill), _value_in(self.text)
        return history.next_history_hash(self.prefill.messages, message.text, options, value)


def _value_in(text: str) -> history.Value:
    return text.value if isinstance(text, texts.LongText) else history.itself
