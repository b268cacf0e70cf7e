"""Output of a GPT-Live session: audio paced by the clock, and server events. Pure.

Time is passed as an argument. Text is sent with the audio that speaks it, and silence where there
is no audio. Bounded: audio more than `LONGEST_S` ahead is dropped, the newest first.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal, NamedTuple

from pybase64 import b64encode_as_string

from core.protocols.effects import Send
from core.protocols.events import MS_PER_S
from core.protocols.openai_events import SHOWN_SESSION_S, Json, ServerEvent
from core.schemas.gpt_live import SessionChanges, SessionSettings
from core.schemas.openai_errors import error_fields, socket_code
from core.schemas.queue import ErrorMessage, UserTranscript
from core.schemas.realtime_session import AudioFormat

PIECE_MS: Final = 40  # short, as an interruption cannot recall a piece that was sent
SILENCE_MS: Final = 100  # longer, as silence needs no interruption
LONGEST_S: Final = 60  # ours: of waiting audio; a unit makes no more than a few seconds
LATE_MAX_S: Final = 20.0  # ours: a client that reads so late is disconnected
# A word with the space before it; a character in scripts without spaces.
WORD: Final = re.compile(
    r"\s*(?:[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+)|\s+$"
)
EARLY_S: Final = 1e-3  # tolerance of timers


class Piece(NamedTuple):
    samples: bytes  # in the client's format: `PIECE_MS` of audio, or `SILENCE_MS` of silence
    text: str  # spoken in it
    start_ms: int  # from the beginning of the session
    end_ms: int  # end of its text; without text, of its audio


class PacedSender:
    """Output audio and text that were not sent yet, in the client's format."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._bytes_per_ms = audio_format.bytes_per_s // MS_PER_S
        self._silence = audio_format.silence(SILENCE_MS)
        self.due_s = inf  # when the next piece is sent; setting it restarts the clock
        self._sent_ms = 0
        self._held_ms = 0  # of it, silence sent while audio was held
        self.is_held = False  # silence is sent instead of waiting audio, which is kept
        self._waiting = bytearray()
        # Each with the byte offsets of its beginning and end.
        self._words: deque[tuple[int, int, str]] = deque()
        self._unit_from: int | None = None  # byte offset of the current unit's audio

    @property
    def is_audible(self) -> bool:
        return bool(self._waiting)

    def put(self, samples: bytes) -> None:
        """Add audio of the current unit."""
        if self._unit_from is None:
            self._unit_from = self._end_bytes
        room = LONGEST_S * MS_PER_S * self._bytes_per_ms - len(self._waiting)
        self._waiting += samples[:room]

    def end_unit(self, text: str) -> None:
        """Add the text of the current unit, spread over its audio, which is complete."""
        first = self._end_bytes if self._unit_from is None else self._unit_from
        length, self._unit_from = self._end_bytes - first, None
        for word in WORD.finditer(text):
            start, end = (first + length * at // len(text) for at in word.span())
            self._words.append((start, end, word[0]))

    def due(self, at_s: float) -> list[Piece]:
        """Remove and return the pieces due by now, in order; check `is_too_late` first."""
        pieces: list[Piece] = []
        while self.due_s <= at_s + EARLY_S:
            pieces.append(self._next_piece())
        return pieces

    def is_too_late(self, at_s: float) -> bool:
        """Whether the client is more than `LATE_MAX_S` behind in reading."""
        return at_s - self.due_s > LATE_MAX_S

    def drop(self) -> None:
        self.is_held = False
        self._waiting.clear()
        self._words.clear()
        self._unit_from = None

    @property
    def _played_bytes(self) -> int:
        return (self._sent_ms - self._held_ms) * self._bytes_per_ms

    @property
    def _end_bytes(self) -> int:
        return self._played_bytes + len(self._waiting)

    def _next_piece(self) -> Piece:
        samples, text, size = self._silence, "", PIECE_MS * self._bytes_per_ms
        if self.is_held:
            samples = samples[:size]
            self._held_ms += PIECE_MS
        elif self._waiting:  # the last piece is filled with silence
            samples = bytes(self._waiting[:size]) + samples[: max(0, size - len(self._waiting))]
            del self._waiting[:size]
        start_ms, length_ms = self._sent_ms, len(samples) // self._bytes_per_ms
        end_ms = self._sent_ms = start_ms + length_ms
        self.due_s += length_ms / MS_PER_S
        if self._words and not self.is_held:
            played = self._played_bytes
            while self._words and self._words[0][0] < played:
                _, end, word = self._words.popleft()
                text += word
                end_ms = max(end_ms, self._sent_ms + (end - played) // self._bytes_per_ms)
        return Piece(samples, text, start_ms, end_ms)


# --- server events ---

ID_DIGITS: Final = 9
Closing = Literal["close_requested", "expired", "connection_lost"]
NO_DELEGATION: Final = ("delegation_unsupported", "This server never delegates a task.")


@dataclass(frozen=True)
class LiveNames:
    session_id: str
    model: str  # the served model's id
    event_prefix: str = ""  # of event ids
    opened_unix_s: int = 0  # when the socket was accepted
    transcribes: bool = False  # the user's speech is transcribed


class LiveEvents:
    """Builds the events of one session. Optional fields without a value are absent, never null."""

    def __init__(self, names: LiveNames, max_session_s: float) -> None:
        self.names = names
        self._expires_at = names.opened_unix_s + int(max_session_s or SHOWN_SESSION_S)
        self.settings = SessionSettings(model=names.model)  # requested by the client
        self._count = 0

    def change(self, changes: SessionChanges) -> bool:
        """Apply a change unless it is not allowed; return whether it is."""
        old, new = self.settings.delegation, changes.delegation
        if new is not None and old is not None and new.type != old.type:
            return False
        given = changes.model_dump(include=changes.model_fields_set)
        if new is not None and old is not None:
            given["delegation"] = old.model_dump() | new.model_dump(exclude_unset=True)
        self.settings = SessionSettings.model_validate(self.settings.model_dump() | given)
        return True

    def session(self, change: Literal["started", "updated"], reply_to: str | None) -> Send:
        return self._event(f"session.{change}", reply_to, session=self._resource())

    def notes(self) -> list[Send]:
        notes = []
        if not self.names.transcribes:
            text = "This server does not transcribe the input."
            notes.append(self.info("input_transcript_unavailable", text))
        if self.settings.delegation is not None:
            notes.append(self.info(*NO_DELEGATION))
        if unknown := self.settings.unknown("parameters"):
            notes.append(self.info("unknown_parameter", unknown))
        return notes

    def closed(self, reason: Closing, received_ms: int) -> Send:
        usage = {"seconds": received_ms / MS_PER_S}
        return self._event("session.closed", reason=reason, session=self._resource(), usage=usage)

    def spoken(self, piece: Piece) -> list[Send]:
        delta = {"delta": b64encode_as_string(piece.samples)}
        audio = Send(ServerEvent("session.output_audio.delta", delta))
        if not piece.text:
            return [audio]
        return [self._transcript("output", piece.text, piece.start_ms, piece.end_ms), audio]

    def transcribed(self, said: UserTranscript) -> list[Send]:
        """Return the user's transcript; nothing if transcription failed."""
        if not said.text:
            return []
        end_ms = said.start_ms + said.duration_ms
        return [self._transcript("input", f"{said.text} ", said.start_ms, end_ms)]

    def acknowledged(self, kind: str, reply_to: str | None, at_ms: int | None = None) -> Send:
        times = {} if at_ms is None else {"start_ms": at_ms, "end_ms": at_ms}
        return self._event(f"session.{kind}", reply_to, **times)

    def usage(self, received_ms: int, usage_ratio: float) -> Send:
        usage, window = {"seconds": received_ms / MS_PER_S}, {"usage_ratio": usage_ratio}
        return self._event("session.usage.updated", usage=usage, context_window=window)

    def info(self, code: str, message: str) -> Send:
        return self._event("info", code=code, message=message)

    def error(
        self, code: str, message: str, param: str | None = None, reply_to: str | None = None
    ) -> Send:
        problem = error_fields(code, message, param=param) | {"client_event_id": reply_to}
        given = {name: value for name, value in problem.items() if value is not None}
        return self._event("error", reply_to, error=given)

    def failed(self, error: ErrorMessage) -> Send:
        return self.error(socket_code(error.code), error.message)

    def _transcript(self, side: str, text: str, start_ms: int, end_ms: int) -> Send:
        kind = f"session.{side}_transcript.delta"
        return self._event(kind, delta=text, start_ms=start_ms, end_ms=end_ms)

    def _resource(self) -> Json:
        known = {*SessionSettings.model_fields} - {"model"}
        settings = self.settings.model_dump(include=known, exclude_none=True)
        settings["audio"]["output"].pop("voice_sample", None)
        names = {"id": self.names.session_id, "status": "active", "model": self.names.model}
        return names | {"expires_at": self._expires_at} | settings

    # Any: JSON.
    def _event(self, kind: str, reply_to: str | None = None, **fields: Any) -> Send:
        self._count += 1
        event_id = f"event_{self.names.event_prefix}{self._count:0{ID_DIGITS}d}"
        reply = {} if reply_to is None else {"client_event_id": reply_to}
        return Send(ServerEvent(kind, {"event_id": event_id, **reply, **fields}))
