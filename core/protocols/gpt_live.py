"""GPT-Live over full duplex: translates client events to the duplex machine, and back.

Its phases are those of the duplex machine inside. Pure: audio is passed as bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, get_args

from core.errors import CloseCode, ErrorCode, RateLimitedError
from core.protocols import duplex as duplex_rules
from core.protocols import events
from core.protocols.duplex_context import Append, Appended
from core.protocols.duplex_units import CountTokens, DuplexLimits
from core.protocols.effects import (
    Close,
    Effect,
    Prefill,
    Send,
    ServerMessage,
    StartTimer,
    Step,
    StopTimer,
)
from core.protocols.events import Event, Received, TimerName
from core.protocols.machine import SessionIds, TableMachine
from core.protocols.paced_session import LATE_MAX_S, Closing, LiveEvents, LiveNames, PacedSession
from core.protocols.tables import CLOSED, SAME, Phase, Row, index_rows
from core.schemas import duplex
from core.schemas import gpt_live as messages
from core.schemas.openai_errors import FieldError, socket_code
from core.schemas.queue import ErrorMessage, Stop, UserTranscript, WarningMessage
from core.schemas.worker import WorkerStatus

CONTENT_TOKENS: Final = 500  # of one append; source: the original protocol
USAGE_PERIOD_S: Final = 15.0
SLOW_READER: Final = f"More than {LATE_MAX_S:g} s of audio were not read in time."
IDLE_S: Final = 600.0  # ours: longest time without any event of the client


class GptLiveMachine(TableMachine):
    def __init__(
        self, ids: SessionIds, limits: DuplexLimits, live: LiveNames, count: CountTokens
    ) -> None:
        self.may_record = True
        self.units = PacedSession(ids, limits, count)
        self._events = LiveEvents(live, limits.max_session_s)
        self._start_id: str | None = None  # of the client's `session.start`, until it is answered
        self._usage_due_s = 0.0  # when the usage is next reported
        self._last_event_s = 0.0  # when the client last sent an event
        self._closing: Closing = "close_requested"  # why the session ends

    @property
    def phase(self) -> Phase:
        return self.units.machine.phase

    @property
    def status(self) -> WorkerStatus:
        return self.units.machine.status

    def handle(self, event: Event) -> list[Effect]:
        self.units.seen.clear()
        if isinstance(event, Received):
            self._last_event_s = event.at_s
        return super().handle(event)

    def start(self, event: Received[messages.SessionStart]) -> list[Effect]:
        settings = event.message.session
        self._events.settings = settings
        self._start_id = event.message.event_id
        self.may_record = settings.store is not False
        transcribes = self._events.names.transcribes
        return self._translated(self.units.prepare(settings, event.at_s, transcribes=transcribes))

    def started(self, event: events.PrefillDone) -> list[Effect]:
        effects = self._translated(self.units.handle(event))
        self.units.begin(event.at_s)
        self._usage_due_s = event.at_s + USAGE_PERIOD_S
        return [*effects, *self._restart_clock(event.at_s)]

    def too_early(self, event: Received[Any]) -> list[Effect]:
        return [self._error(event, "session_not_started", "Send 'session.start' first.")]

    def started_already(self, event: Received[Any]) -> list[Effect]:
        text = "The session has been started already."
        return [self._error(event, "session_already_started", text)]

    def not_started(self, event: events.TimerFired) -> list[Effect]:
        return [
            Close(CloseCode.POLICY, "session_expired") if isinstance(effect, Close) else effect
            for effect in self._translated(self.units.handle(event))
        ]

    # --- client events ---

    def append_audio(self, event: Received[messages.AudioReceived]) -> list[Effect]:
        return self._translated(self.units.append_audio(event.message.samples, event.at_s))

    def append_image(self, event: Received[messages.InputImageAppend]) -> list[Effect]:
        frame = duplex.VideoFrame(frame=event.message.image)
        return self._translated(self.units.handle(Received(frame, at_s=event.at_s)))

    def mute(self, event: Received[Any]) -> list[Effect]:
        is_muted = self.units.input.is_muted = event.kind.endswith(".mute")
        done = "input_audio.muted" if is_muted else "input_audio.unmuted"
        return [self._events.acknowledged(done, event.message.event_id)]

    def append(self, event: Received[messages.ContextAppend]) -> list[Effect]:
        """Append text; the model gets it at its next pause."""
        message = event.message
        words = Appended(Append(event.kind.split(".")[1]), message.content, message.event_id)
        if message.delegation_id is not None:
            return [self._error(event, "invalid_value", "No such delegation.", "delegation_id")]
        tokens = self.units.rebase.history.count_tokens(message.content)
        if tokens > CONTENT_TOKENS:
            text = f"'content' has {tokens} tokens; {CONTENT_TOKENS} are allowed."
            return [self._error(event, "content_too_long", text, "content")]
        if not self.units.rebase.has_room(words):
            text = "'content' finds no room: too much was appended to this session."
            return [self._error(event, "content_too_long", text, "content")]
        if self.units.fixture is not None and words.purpose is Append.COMMENTARY:
            return [self._error(event, "fixture_active", "An audio fixture is playing.")]
        self.units.rebase.append(words)
        return self._translated(self.units.advance(event.at_s))

    def play(self, event: Received[messages.Fixture]) -> list[Effect]:
        if self.units.fixture is not None:
            return [self._error(event, "fixture_active", "An audio fixture is playing already.")]
        effects = self._translated(self.units.play(event.message, event.at_s))
        name = "output_audio.fixture.playing"
        return [*effects, self._events.acknowledged(name, event.message.event_id)]

    def change(self, event: Received[messages.SessionUpdate]) -> list[Effect]:
        if not self._events.change(event.message.session):
            param, text = "session.delegation.type", "The type of delegation is fixed at the start."
            return [self._error(event, "invalid_value", text, param)]
        return [self._events.session("updated", event.message.event_id)]

    def not_offered(self, event: Received[Any]) -> list[Effect]:
        text = f"'{event.kind}' requires Responses delegation."
        return [self._error(event, "invalid_event", text)]

    def reject(self, event: events.Rejected) -> list[Effect]:
        problem = event.error
        if isinstance(problem, FieldError):
            where = (problem.param, problem.event_id)
            return [self._events.error(problem.openai_code, problem.message, *where)]
        return [self._events.error("invalid_event", problem.message)]

    def close(self, event: Event) -> list[Effect]:
        return self._translated(self.units.handle(Received(Stop(), at_s=event.at_s)))

    def tick(self, event: events.TimerFired) -> list[Effect]:
        units, at_s = self.units, event.at_s
        if units.sender.is_too_late(at_s):
            return self._translated(units.machine.fail(RateLimitedError(SLOW_READER)))
        effects: list[Effect] = [
            send for piece in units.due(at_s) for send in self._events.spoken(piece)
        ]
        if (fixture := units.take_played()) is not None:
            name = "output_audio.fixture.played"
            effects.append(self._events.acknowledged(name, fixture.event_id))
        if at_s >= self._usage_due_s:
            self._usage_due_s += USAGE_PERIOD_S
            effects.append(self._events.usage(units.input.received_ms, units.kv_share))
        effects.append(StartTimer(TimerName.PACE, max(0.0, units.sender.due_s - at_s)))
        if at_s - self._last_event_s > IDLE_S and units.is_active:
            self._closing = "expired"
            return [*effects, *self._translated(units.handle(Received(Stop(), at_s=at_s)))]
        if units.input.is_starved(at_s):  # otherwise each append advances the units
            effects += self._translated(units.advance(at_s))
        return effects

    def wait_for_client(self, event: events.ClientAway) -> list[Effect]:
        """Pause while the client is away; then continue from there."""
        self.units.is_paused = event.is_away
        if event.is_away:
            return [StopTimer(TimerName.PACE)]
        self.units.begin(event.at_s)
        return self._restart_clock(event.at_s)

    # --- engine events ---

    def detected(self, event: events.Detected) -> list[Effect]:
        return self._translated(self.units.detected(event))

    def rebased(self, event: events.PrefillDone) -> list[Effect]:
        units = self.units
        appended, effects = units.rebase.going_in, units.handle(event)
        sent = [
            self._events.acknowledged(
                f"{words.purpose}.appended", words.event_id, units.input.received_ms
            )
            for words in appended
        ]
        return [*sent, *self._translated([*effects, *units.advance(event.at_s)])]

    def pass_on(self, event: Event) -> list[Effect]:
        effects = self._translated(self.units.handle(event))
        return [*effects, *self._translated(self.units.advance(event.at_s))]

    def engine_warning(self, event: events.EngineWarning) -> list[Effect]:
        return [self._events.info(event.problem.code.value, event.problem.message)]

    def _restart_clock(self, at_s: float) -> list[Effect]:
        effects = self.tick(events.TimerFired(TimerName.PACE, at_s=at_s))
        return [*effects, *self._translated(self.units.advance(at_s))]

    def _translated(self, effects: Sequence[Effect]) -> list[Effect]:
        translated: list[Effect] = []
        for effect in effects:
            match effect:
                case Step():
                    translated.append(replace(effect, client_format=self.units.sender.format))
                case Send(message):
                    translated += self._translated_message(message)
                case _:
                    translated.append(effect)
        return translated

    def _translated_message(self, message: ServerMessage) -> list[Effect]:
        live, received_ms = self._events, self.units.input.received_ms
        match message:
            case duplex.Prepared():
                start_id, self._start_id = self._start_id, None
                return [live.session("started", start_id), *live.notes()]
            case duplex.ResultPart() | duplex.Result() as unit:
                self.units.put(unit)
                return []
            case UserTranscript() as said:
                return [*live.transcribed(said)]
            case duplex.Stopped():
                return [live.closed(self._closing, received_ms)]
            case duplex.Timeout():
                return [live.closed("expired", received_ms)]
            case ErrorMessage(code=ErrorCode.CONTEXT_FULL) as error:
                return [self._too_long(error), live.closed("expired", received_ms)]
            case duplex.Interrupted() | WarningMessage(code=ErrorCode.CONTEXT_NEARLY_FULL):
                return []  # the duplex session restarts before the context is full
            case WarningMessage(code=code, message=text):
                return [live.info(code.value, text)]
            case ErrorMessage() as error:
                return [live.failed(error)]
            case _:
                return [Send(message)]

    def _too_long(self, error: ErrorMessage) -> Effect:
        """Return why the context is full: the prompt, whose instructions are unbounded, or talk."""
        if not isinstance(self.units.machine.work, Prefill):
            return self._events.failed(error)
        text = (
            "'session.instructions', with all that was appended to them, exceed the context of "
            f"{self.units.limits.max_kv_tokens} tokens."
        )
        where = ("session.instructions", self._start_id)
        return self._events.error(socket_code(error.code), text, *where)

    # Any: every client event may have an id.
    def _error(
        self, event: Received[Any], code: str, text: str, param: str | None = None
    ) -> Effect:
        return self._events.error(code, text, param, event.message.event_id)


def _passed_on(row: Row) -> Row:
    """Return the row that passes events on to a row of the duplex machine."""
    phases = " ".join(phase for phase in row.phases.split() if phase != Phase.PAUSED)
    words = " ".join(TRANSLATIONS.get(word, word) for word in row.effects.split())
    continued = f" {UNITS} Cancel" if Phase.ACTIVE in phases.split() else ""
    effects = " ".join(dict.fromkeys(f"{words}{continued}".split()))
    passed = " ".join(event for event in row.events.split() if event in PASSED_ON)
    return Row(phases, passed, row.targets, effects, GptLiveMachine.pass_on)


MAY_END: Final = f"{SAME} stopping {CLOSED}"
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
REFUSED: Final = get_args(messages.NotOffered.model_fields["type"].annotation)
PASSED_ON: Final = frozenset(
    "step_done finalize_done audio_ready prefetched frame_timer stopping_timer session_timer "
    "idle_timer engine_failed disconnected shutting_down stop_requested "
    "transcribed".split()
)
"""Events handled by the duplex machine alone."""
TRANSLATIONS: Final = {
    "Send(stopped)": "Send(session.closed)",
    "Send(timeout)": "Send(session.closed)",
    "Send(error)": "Send(error) Send(session.closed)",
    "Send(warning)": "Send(info)",
    "Send(user_transcript)": "Send(session.input_transcript.delta)",
    "Send(result)": "",
    "Send(result_part)": "",
}
"""Effects by which those of the duplex machine are replaced."""
BEGUN: Final = "preparing active"
MACHINE: Final = GptLiveMachine
AWAKE: Final = f"{SOUND} {UNITS} {LAST}"
STARTED: Final = f"Send(session.started) StartTimer(session) {SOUND} {UNITS}"
MUTES: Final = "session.input_audio.mute session.input_audio.unmute"
APPENDS: Final = " ".join(f"session.{purpose}.append" for purpose in Append)
CLIENT_ROWS: Final = (
    Row(BEGUN, "audio_received", MAY_END, f"{UNITS} {LAST}", MACHINE.append_audio),
    Row(BEGUN, "session.input_image.append", MAY_END, UNITS, MACHINE.append_image),
    Row(BEGUN, MUTES, MAY_END, MUTED, MACHINE.mute),
    Row(BEGUN, APPENDS, MAY_END, f"{ERROR} {UNITS} {LAST}", MACHINE.append),
    Row(BEGUN, "session.update", MAY_END, f"{ERROR} Send(session.updated)", MACHINE.change),
    Row(BEGUN, "session.close", MAY_END, LAST, MACHINE.close),
)
"""Client events after `session.start`."""
TOO_EARLY: Final = " ".join([*(row.events for row in CLIENT_ROWS), *REFUSED, "fixture"])
TABLE: Final = (
    Row("waiting", "opened", SAME, "StartTimer(prepare)", MACHINE.pass_on),
    Row("waiting", "session.start", "preparing", "StopTimer(prepare) Prefill", MACHINE.start),
    Row("waiting", "prepare_timer", CLOSED, f"{ERROR} Release Close", MACHINE.not_started),
    Row("waiting", TOO_EARLY, SAME, ERROR, MACHINE.too_early),
    Row("preparing", "prefill_done", "active", STARTED, MACHINE.started),
    *CLIENT_ROWS,
    Row(BEGUN, " ".join(REFUSED), SAME, ERROR, MACHINE.not_offered),
    Row(BEGUN, "session.start", SAME, ERROR, MACHINE.started_already),
    Row("preparing", "fixture", SAME, ERROR, MACHINE.too_early),
    Row("active", "fixture", SAME, f"{ERROR} {PLAYING}", MACHINE.play),
    Row("active stopping", "pace_timer", MAY_END, AWAKE, MACHINE.tick),
    Row("active", "client_away", MAY_END, f"StopTimer(pace) {AWAKE}", MACHINE.wait_for_client),
    Row("active", "detected", SAME, "Interrupt Detect", MACHINE.detected),
    Row("active", "prefill_done", MAY_END, f"{APPENDED} {UNITS} {LAST}", MACHINE.rebased),
    *(_passed_on(row) for row in duplex_rules.TABLE if PASSED_ON & {*row.events.split()}),
    Row("stopping", "prefill_done", CLOSED, LAST, MACHINE.pass_on),
    Row(f"waiting {BEGUN} stopping", "rejected", SAME, ERROR, MACHINE.reject),
    Row(f"waiting {BEGUN} stopping", "engine_warning", SAME, "Send(info)", MACHINE.engine_warning),
)
"""All transitions of GPT-Live; the phases are those of the duplex machine inside."""

GptLiveMachine.rows = index_rows(TABLE)
