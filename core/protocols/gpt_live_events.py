"""Every event of the server on a GPT-Live socket is made here. Pure: ids are counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from core.protocols.effects import Send
from core.protocols.paced_sender import Piece
from core.schemas.gpt_live import SessionChanges, SessionSettings
from core.schemas.gpt_live_server import (
    Acknowledged,
    ContextWindow,
    ErrorEvent,
    InfoEvent,
    Problem,
    SessionClosed,
    SessionEvent,
    SessionResource,
    Spoken,
    TranscriptDelta,
    Usage,
    UsageUpdated,
)
from core.schemas.openai_errors import error_event
from core.schemas.queue import ErrorMessage, UserTranscript

SHOWN_LIFE_S: Final = 3_600  # shown where sessions have no end
ID_DIGITS: Final = 9
Closing = Literal["close_requested", "expired", "connection_lost"]


@dataclass(frozen=True)
class LiveNames:
    """What a session is called, and when it began.

    Attributes:
        session_id: its name.
        model: the model that is served.
        event_prefix: begins the ids of its events.
        opened_unix_s: when its socket was accepted.
        transcribes: what the user says is written down.
    """

    session_id: str
    model: str
    event_prefix: str = ""
    opened_unix_s: int = 0
    transcribes: bool = False


class LiveEvents:
    """Makes the events of one session.

    Attributes:
        settings: what the client wants.
    """

    def __init__(self, names: LiveNames, max_session_s: float) -> None:
        self._names = names
        self._expires_at = names.opened_unix_s + int(max_session_s or SHOWN_LIFE_S)
        self.settings = SessionSettings(model=names.model)
        self._count = 0

    def open(self, settings: SessionSettings) -> None:
        self.settings = settings

    def change(self, changes: SessionChanges) -> bool:
        """Take over a change; say whether it is allowed."""
        old, new = self.settings.delegation, changes.delegation
        if new is not None and old is not None and new.type != old.type:
            return False
        given = changes.model_dump(include=changes.model_fields_set)
        if new is not None and old is not None:
            given["delegation"] = old.model_dump() | new.model_dump(exclude_unset=True)
        self.settings = SessionSettings.model_validate(self.settings.model_dump() | given)
        return True

    def session(
        self, kind: Literal["session.started", "session.updated"], reply_to: str | None
    ) -> Send:
        return Send(SessionEvent(type=kind, session=self._resource(), **self._ids(reply_to)))

    def notes(self) -> list[Send]:
        """Say what the client may miss."""
        notes = []
        if not self._names.transcribes:
            text = "This server does not transcribe the input."
            notes.append(("input_transcript_unavailable", text))
        if self.settings.delegation is not None:
            notes.append(("delegation_unsupported", "This server never delegates a task."))
        if unknown := self.settings.unknown_keys:
            text = f"These parameters are not known and were left out: {', '.join(unknown)}."
            notes.append(("unknown_parameter", text))
        return [self.info(code, text) for code, text in notes]

    def closed(self, reason: Closing, heard_ms: int) -> Send:
        usage = Usage(seconds=heard_ms / 1_000)
        event = SessionClosed(reason=reason, session=self._resource(), usage=usage, **self._ids())
        return Send(event)

    def spoken(self, piece: Piece) -> list[Send]:
        sound = Send(Spoken(samples=piece.samples))
        if not piece.text:
            return [sound]
        words = TranscriptDelta(
            type="session.output_transcript.delta",
            delta=piece.text,
            start_ms=piece.start_ms,
            end_ms=piece.end_ms,
            **self._ids(),
        )
        return [Send(words), sound]

    def heard(self, said: UserTranscript) -> list[Send]:
        """What the user said; nothing if it could not be written down."""
        if not said.text:
            return []
        words = TranscriptDelta(
            type="session.input_transcript.delta",
            delta=f"{said.text} ",
            start_ms=said.start_ms,
            end_ms=said.start_ms + said.duration_ms,
            **self._ids(),
        )
        return [Send(words)]

    def acknowledged(self, kind: str, reply_to: str | None, at_ms: int | None = None) -> Send:
        fields = {"type": f"session.{kind}", "start_ms": at_ms, "end_ms": at_ms}
        return Send(Acknowledged.model_validate(fields | self._ids(reply_to)))

    def usage(self, heard_ms: int, usage_ratio: float) -> Send:
        window = ContextWindow(usage_ratio=usage_ratio)
        usage = Usage(seconds=heard_ms / 1_000)
        return Send(UsageUpdated(usage=usage, context_window=window, **self._ids()))

    def info(self, code: str, message: str) -> Send:
        return Send(InfoEvent(code=code, message=message, **self._ids()))

    def error(
        self, code: str, message: str, param: str | None = None, reply_to: str | None = None
    ) -> Send:
        problem = Problem(
            type="invalid_request_error",
            code=code,
            message=message,
            param=param,
            client_event_id=reply_to,
        )
        return Send(ErrorEvent(error=problem, **self._ids(reply_to)))

    def failed(self, error: ErrorMessage) -> Send:
        cause = error_event(error, "").error
        problem = Problem(type=cause.type, code=cause.code, message=cause.message)
        return Send(ErrorEvent(error=problem, **self._ids()))

    def _resource(self) -> SessionResource:
        settings = self.settings.model_dump(exclude={"model"}, exclude_none=True)
        settings["audio"]["output"].pop("voice_sample", None)
        return SessionResource.model_validate(
            settings
            | {
                "id": self._names.session_id,
                "model": self._names.model,
                "expires_at": self._expires_at,
            }
        )

    # Any: values of two fields that every event has.
    def _ids(self, reply_to: str | None = None) -> dict[str, Any]:
        self._count += 1
        event_id = f"event_{self._names.event_prefix}{self._count:0{ID_DIGITS}d}"
        return {"event_id": event_id, "client_event_id": reply_to}
