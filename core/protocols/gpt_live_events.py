"""GPT-Live's server events, and its effects in the words of transition tables.

Pure: ids are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from core.protocols.duplex_context import DuplexPhase
from core.protocols.effects import Effect, Send
from core.protocols.paced_session import Piece
from core.protocols.rebase import Append
from core.protocols.tables import SAME, Row
from core.schemas.gpt_live import SessionChanges, SessionSettings
from core.schemas.gpt_live_server import (
    Acknowledged,
    ContextWindow,
    ErrorEvent,
    InfoEvent,
    OutputAudioDelta,
    Problem,
    SessionClosed,
    SessionEvent,
    SessionResource,
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

    def closed(self, reason: Closing, received_ms: int) -> Send:
        usage = Usage(seconds=received_ms / 1_000)
        event = SessionClosed(reason=reason, session=self._resource(), usage=usage, **self._ids())
        return Send(event)

    def spoken(self, piece: Piece) -> list[Send]:
        sound = Send(OutputAudioDelta(piece.samples))
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

    def transcribed(self, said: UserTranscript) -> list[Send]:
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

    def usage(self, received_ms: int, usage_ratio: float) -> Send:
        window = ContextWindow(usage_ratio=usage_ratio)
        usage = Usage(seconds=received_ms / 1_000)
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


MAY_END: Final = f"{SAME} {DuplexPhase.STOPPING} {DuplexPhase.CLOSED}"
ERROR: Final = "Send(error)"
SOUND: Final = (
    "Send(session.output_transcript.delta) Send(session.output_audio.delta) "
    "Send(session.output_audio.fixture.played) Send(session.usage.updated) StartTimer(pace)"
)
UNITS: Final = (
    "Send(info) Detect Prefill StartTimer(idle) StartTimer(frame) StopTimer(frame) Step Finalize "
    "Prefetch"
)
LAST: Final = "Cancel Send(session.closed) Send(error) StartTimer(stopping) Release Close"
MUTED: Final = "Send(session.input_audio.muted) Send(session.input_audio.unmuted)"
APPENDED: Final = " ".join(f"Send(session.{purpose}.appended)" for purpose in Append)
PLAYING: Final = "Interrupt Send(session.output_audio.fixture.playing)"
REFUSED: Final = (
    "response.item.create response.create decision.create decision.item.create decision.item.delete"
).split()
PASSED_ON: Final = frozenset(
    "step_done finalize_done sound_ready prefetched frame_timer stopping_timer session_timer "
    "idle_timer turn_failed engine_failed disconnected shutting_down stop_requested "
    "transcribed".split()
)
"""Events of which the duplex machine alone decides."""
OUR_WORDS: Final = {
    "Send(stopped)": "Send(session.closed)",
    "Send(timeout)": "Send(session.closed)",
    "Send(error)": "Send(error) Send(session.closed)",
    "Send(warning)": "Send(info)",
    "Send(user_transcript)": "Send(session.input_transcript.delta)",
    "Send(result)": "",
    "Send(result_part)": "",
}
"""What becomes of what the duplex machine says."""


# Any: rows of two machines.
def passed_on(
    row: Row[Any, Effect], action: Callable[[Any, Any], list[Effect]]
) -> Row[Any, Effect]:
    """Return the row by which an event reaches a row of the duplex machine."""
    phases = tuple(phase for phase in row.phases if phase is not DuplexPhase.PAUSED)
    words = " ".join(OUR_WORDS.get(word, word) for word in row.effects.split())
    goes_on = f" {UNITS} Cancel" if DuplexPhase.ACTIVE in phases else ""
    effects = " ".join(dict.fromkeys(f"{words}{goes_on}".split()))
    return Row(phases, row.event, row.targets, effects, action)
