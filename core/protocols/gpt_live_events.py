"""Server events of GPT-Live. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from pybase64 import b64encode_as_string

from core.protocols.effects import Send
from core.protocols.events import MS_PER_S
from core.protocols.openai_events import SHOWN_SESSION_S, Json, ServerEvent
from core.protocols.paced_session import Piece
from core.schemas.gpt_live import SessionChanges, SessionSettings
from core.schemas.openai_errors import error_fields, socket_code
from core.schemas.queue import ErrorMessage, UserTranscript

ID_DIGITS: Final = 9
Closing = Literal["close_requested", "expired", "connection_lost"]


@dataclass(frozen=True)
class LiveNames:
    """Facts of a session that its events report."""

    session_id: str
    model: str  # the served model's id
    event_prefix: str = ""  # of event ids
    opened_unix_s: int = 0  # when the socket was accepted
    transcribes: bool = False  # the user's speech is transcribed


class LiveEvents:
    """Builds the events of one session. Optional fields without a value are absent, never null."""

    def __init__(self, names: LiveNames, max_session_s: float) -> None:
        self._names = names
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
        if not self._names.transcribes:
            text = "This server does not transcribe the input."
            notes.append(("input_transcript_unavailable", text))
        if self.settings.delegation is not None:
            notes.append(("delegation_unsupported", "This server never delegates a task."))
        if unknown := self.settings.unknown("parameters"):
            notes.append(("unknown_parameter", unknown))
        return [self.info(code, text) for code, text in notes]

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
        names = {"id": self._names.session_id, "status": "active", "model": self._names.model}
        return names | {"expires_at": self._expires_at} | settings

    # Any: JSON.
    def _event(self, kind: str, reply_to: str | None = None, **fields: Any) -> Send:
        self._count += 1
        event_id = f"event_{self._names.event_prefix}{self._count:0{ID_DIGITS}d}"
        reply = {} if reply_to is None else {"client_event_id": reply_to}
        return Send(ServerEvent(kind, {"event_id": event_id, **reply, **fields}))
