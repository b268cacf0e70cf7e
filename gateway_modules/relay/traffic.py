"""Inspection of the relayed messages: a few short ones; the rest passes unread.

Independent of queue and sockets: texts in, verdicts out.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pydantic import ValidationError

from core import errors
from core.protocols.effects import ServerMessage
from core.protocols.events import RawMessage
from core.schemas import duplex
from core.schemas.queue import Queued, QueueDone, QueueUpdate
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_connection import Ticket
from gateway_modules.relay import turns
from gateway_modules.relay.telemetry import DiagnosticsFile
from gateway_modules.voices import DEFAULT_VOICE, Voice, VoiceLibrary
from gateway_modules.web.client_socket import CLIENT_TYPES, SocketKind
from gateway_modules.web.messages import Text, parse_type, peek_type, size_chars, with_strings_of

OTHER: Final = "other"  # the machine's name for unknown types
SHORT_CHARS: Final = 4_096  # messages that matter to the relay are shorter
UTF8_BYTES_MAX: Final = 4  # of a character
DIAGNOSTIC_MARK: Final = '"client_diagnostic"'
DIAGNOSTIC_CHARS: Final = 64 * 1024  # longer messages are not searched for diagnostics
LAST_TYPES: Final = frozenset({"stopped", "timeout", "error"})
NAMES: Final = frozenset({"ref_audio_id", "tts_ref_audio_id", "ref_audio_path"})
NOTHING_READ: Final = ("", None)
TURN_COMMANDS: Final = frozenset({"generate", "stop", "close", "heartbeat"})

QueueMessage = ServerMessage | Queued | QueueUpdate | QueueDone

# Any: a client's message as parsed JSON.
Raw = dict[str, Any]


class Verdict(StrEnum):
    """What to do with a message of the worker."""

    PASS = "pass"
    LAST = "last"  # pass it on; the worker closes after it
    DONE = "done"  # the turn is over
    DROP = "drop"


@dataclass(frozen=True)
class Upward:
    """The result of inspecting a client's message.

    Attributes:
        text: Text for the worker; None if nothing is forwarded.
        warning: Sent to the client after the `prepared` that answers this message.
    """

    text: str | None
    warning: errors.OmniError | None = None


SendUp = Callable[[str], Awaitable[None]]
"""Sends a message to the worker; a closed socket is not an error."""


class Traffic(ABC):
    """Inspects the messages of one client's socket."""

    history_hash: str = ""
    """History hash of the current turn, for cache-aware routing."""

    session_secret: str | None = None
    """Session secret sent with the current turn: that of an earlier socket of the session."""

    is_closing = False
    """The client has sent `close`."""

    @abstractmethod
    async def read(self, text: str) -> RawMessage:
        """Parse a message while there is no worker."""

    def encoded(self, message: QueueMessage) -> str | None:
        """Encode one of the gateway's own messages; None if this client's protocol has none."""
        return message.to_json()

    def begin(self, text: str | None) -> None:
        """Begin a turn, or repeat it on another worker.

        `text` is the turn's first message; None where that comes later.
        """
        return

    async def opening(self, held: str, ticket: Ticket) -> Upward:
        """Inspect the message that was held until a worker was connected."""
        return await self.upward(held)

    async def upward(self, text: str) -> Upward:
        """Inspect a message to the worker."""
        return Upward(text)

    @abstractmethod
    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        """Inspect a message to the client."""

    def passes_up(self, text: Text) -> bool:
        """Whether `upward` would return the message unchanged and without side effects."""
        return False

    def passes_down(self, text: Text) -> bool:
        """Whether `downward` would pass the message on without side effects."""
        return False


class LiveTraffic(Traffic):
    """Half and full duplex: one `prepare`, then audio both ways."""

    def __init__(
        self, kind: SocketKind, voices: VoiceLibrary, diagnostics: DiagnosticsFile
    ) -> None:
        self._types = CLIENT_TYPES[kind]
        self._voices = voices
        self._diagnostics = diagnostics
        self._is_prepared = False  # from then on no message can name a voice

    async def read(self, text: str) -> RawMessage:
        message = await turns.off_loop(turns.is_heavy(text), _parsed, text)
        kind = message.get("type")
        return RawMessage(kind if isinstance(kind, str) and kind in self._types else OTHER, text)

    def passes_up(self, text: Text) -> bool:
        is_diagnostic = len(text) <= DIAGNOSTIC_CHARS and DIAGNOSTIC_MARK.encode() in bytes(text)
        return self._is_prepared and not is_diagnostic

    def passes_down(self, text: Text) -> bool:
        """Only audio is longer than `SHORT_CHARS` in any script."""
        return len(text) > UTF8_BYTES_MAX * SHORT_CHARS

    async def upward(self, text: str) -> Upward:
        if size_chars(text) <= DIAGNOSTIC_CHARS and DIAGNOSTIC_MARK in text:
            if parse_type(text) == "client_diagnostic":
                await self._diagnostics.keep(text)
                return Upward(None)
        if self._is_prepared or not turns.names_files(text):
            return Upward(text)
        return await self._voices.run(name_voices, text, self._voices)

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        if len(text) > SHORT_CHARS:
            return Verdict.PASS
        match peek_type(text):
            case "prepared":
                self._is_prepared = True
                ticket.has_started = True
                self._begin_diagnostics(text)
            case "paused":
                ticket.update_status(WorkerStatus.DUPLEX_PAUSED)
            case "resumed":
                ticket.update_status(WorkerStatus.DUPLEX_ACTIVE)
            case kind if kind in LAST_TYPES:
                return Verdict.LAST
        return Verdict.PASS

    def _begin_diagnostics(self, text: str) -> None:
        try:
            recording_id = duplex.Prepared.model_validate_json(text).recording_session_id
        except ValidationError:
            return
        if recording_id is not None:
            self._diagnostics.begin(recording_id)


class TurnTraffic(Traffic):
    """Streaming: turns of a `prefill` and a reply; each turn is assigned a worker."""

    def __init__(self, voices: VoiceLibrary) -> None:
        self._voices = voices
        self._read: tuple[str | None, turns.StreamingTurn | None] = NOTHING_READ
        self._turn: turns.StreamingTurn | None = None
        self._is_stopping = False
        self._is_plain = True  # this turn has no messages besides `TURN_COMMANDS`

    async def read(self, text: str) -> RawMessage:
        try:
            kind, turn = await turns.read_with_voices(text, turns.read_streaming, self._voices)
        except errors.UnknownTypeError:
            return RawMessage(OTHER, text)
        self._read = text, turn
        return RawMessage(kind, text)

    def begin(self, text: str | None) -> None:
        if self._read[0] == text:  # else the turn is repeated on another worker
            self._turn, self._read = self._read[1], NOTHING_READ
        self._is_stopping, self._is_plain = False, True
        self.history_hash = self._turn.history_hash if self._turn else ""
        self.session_secret = self._turn.prefill.session_secret if self._turn else None

    async def opening(self, held: str, ticket: Ticket) -> Upward:
        return Upward(await self._prefill(is_cache_hit=ticket.is_cache_hit))

    async def upward(self, text: str) -> Upward:
        is_short = size_chars(text) <= SHORT_CHARS
        kind = peek_type(text) if is_short else OTHER
        if is_short and kind == "":
            kind = parse_type(text)
        self._is_stopping |= kind == "stop"
        self.is_closing |= kind == "close"
        self._is_plain &= kind in TURN_COMMANDS
        return Upward(text)

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        match peek_type(text):
            case "cache_miss":
                if not self._is_stopping:
                    await send_up(await self._prefill(is_cache_hit=False))
                return Verdict.DROP
            case "prefill_done":
                ticket.has_started = True
            case "done":
                turn, self._turn = self._turn, None
                if turn is not None and self._is_plain:
                    ticket.retain(await turns.off_loop(turn.is_heavy, turn.hash_after, text))
                return Verdict.DONE
            case "error":
                return Verdict.LAST
        return Verdict.PASS

    async def _prefill(self, *, is_cache_hit: bool) -> str:
        turn = self._turn
        assert turn is not None, "a worker without a turn"
        return await turns.off_loop(turn.is_heavy, turn.for_worker, is_cache_hit=is_cache_hit)


class ChatTraffic(Traffic):
    """One request, one reply."""

    def __init__(self, voices: VoiceLibrary) -> None:
        self._voices = voices
        self._read: tuple[str | None, str | None] = NOTHING_READ
        self._request: str | None = None

    async def read(self, text: str) -> RawMessage:
        try:
            kind, request = await turns.read_with_voices(text, turns.read_chat, self._voices)
        except errors.UnknownTypeError:
            return RawMessage(OTHER, text)
        if request is not None:
            self._read = text, request
        return RawMessage(kind, text)

    def begin(self, text: str | None) -> None:
        if self._read[0] == text:
            self._request, self._read = self._read[1], NOTHING_READ

    async def opening(self, held: str, ticket: Ticket) -> Upward:
        return Upward(self._request)

    async def downward(self, text: str, ticket: Ticket, send_up: SendUp) -> Verdict:
        match peek_type(text):
            case "prefill_done" | "chunk":
                ticket.has_started = True
            case "done":
                ticket.has_started = True
                return Verdict.DONE
            case "error":
                return Verdict.LAST
        return Verdict.PASS


def name_voices(text: str, voices: VoiceLibrary) -> Upward:
    """Replace the names of voices in a `prepare` by their audio; other messages are unchanged.

    An unknown path is removed with a warning: clients may name files of other installations.
    """
    message = _parsed(text)
    if message.get("type") != "prepare" or not message.keys() & NAMES:
        return Upward(text)
    warning: errors.OmniError | None = None
    for key in ("ref_audio", "tts_ref_audio"):
        ref_id = message.pop(f"{key}_id", None)
        if isinstance(ref_id, str) and ref_id:
            _put(message, key, voices.by_id(ref_id))
    path = message.pop("ref_audio_path", None)
    if isinstance(path, str) and path and path != DEFAULT_VOICE:
        try:
            _put(message, "ref_audio", voices.by_path(path))
        except errors.NotFoundError:
            warning = errors.AudioError(
                "There is no voice of that name here; the default one speaks."
            )
    return Upward(with_strings_of(text, json.dumps(message, ensure_ascii=False)), warning)


def _put(message: Raw, key: str, voice: Voice) -> None:
    """Set the audio unless the client sent its own."""
    if not message.get(f"{key}_base64"):
        message[f"{key}_base64"] = voice.audio.to_base64()


def _parsed(text: str) -> Raw:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.BadPayloadError("The message is not valid JSON.") from error
    if not isinstance(message, dict):
        raise errors.BadPayloadError("The message is not a JSON object.")
    return message
