"""GPT-Live: the duplex machine with other events, and output paced by the clock.

Its phases are those of the duplex machine. Pure: audio is passed as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, get_args

from core.endpointing import SpeechDiscarded, SpeechStarted, SpeechSuspected
from core.errors import CloseCode, ErrorCode, RateLimitedError
from core.protocols import duplex as duplex_rules
from core.protocols import events
from core.protocols.duplex_context import Append, Appended
from core.protocols.duplex_units import SPEAKER_OF, CountTokens, DuplexLimits, Speaker
from core.protocols.effects import (
    Close,
    Detect,
    Effect,
    Prefill,
    Send,
    ServerMessage,
    StartTimer,
    StopTimer,
)
from core.protocols.events import Event, Received, TimerName
from core.protocols.machine import SessionIds
from core.protocols.paced_output import (
    LATE_MAX_S,
    NO_DELEGATION,
    Closing,
    LiveEvents,
    LiveNames,
    PacedSender,
)
from core.protocols.tables import CLOSED, SAME, Row, index_rows
from core.protocols.unit_machine import InputAudioBuffer, UnitMachine
from core.schemas import duplex
from core.schemas import gpt_live as messages
from core.schemas.openai_errors import FieldError, socket_code
from core.schemas.queue import ErrorMessage, Stop, UserTranscript, WarningMessage
from core.schemas.realtime_session import AudioFormat

CONTENT_TOKENS: Final = 500  # of one append; source: the original protocol
USAGE_PERIOD_S: Final = 15.0
SLOW_READER: Final = f"More than {LATE_MAX_S:g} s of audio were not read in time."
START_S: Final = 30.0  # ours: for the client's first event
STOP_S: Final = 1.0  # ours: for the current unit to end
IDLE_S: Final = 600.0  # ours: longest time without any event of the client
# Ours: after a burst that was not speech, so that a recurring echo does not chop the model up.
HOLD_AGAIN_S: Final = 2.0


class GptLiveMachine(UnitMachine):
    live_rows: ClassVar[Mapping[tuple[str, str], Row]]

    def __init__(
        self, ids: SessionIds, limits: DuplexLimits, live: LiveNames, count: CountTokens
    ) -> None:
        limits = replace(limits, prepare_timeout_s=START_S, stop_grace_s=STOP_S)
        super().__init__(ids, limits, count, self._replacement)
        self.may_record = True
        self._buffer = InputAudioBuffer(is_detected=True)
        self._may_hold_from_s = 0.0
        self._sender = PacedSender(AudioFormat())
        self._fixture: messages.Fixture | None = None  # a recording replaces the model's audio
        self._is_away = False  # the client
        self._events = LiveEvents(live, limits.max_session_s)
        self._start_id: str | None = None  # of the client's `session.start`, until it is answered
        self._usage_due_s = 0.0  # when the usage is next reported
        self._last_event_s = 0.0  # when the client last sent an event
        self._closing: Closing = "close_requested"  # why the session ends

    def handle(self, event: Event) -> list[Effect]:
        self.seen.clear()
        if isinstance(event, Received):
            self._last_event_s = event.at_s
        row = self.live_rows.get((self.phase, event.kind))
        return [] if row is None else row.action(self, event)

    def start(self, event: Received[messages.SessionStart]) -> list[Effect]:
        settings = self._events.settings = event.message.session
        self._start_id = event.message.event_id
        self.may_record = settings.store is not False
        self.client_format = settings.audio.format
        self._sender = PacedSender(self.client_format)
        for item in settings.input or ():
            self.rebase.history.add(SPEAKER_OF[item.role], f" {item.content[0].text}")
        self._buffer.begin(event.at_s)
        first = duplex.Prepare(
            prefix_system_prompt=settings.instructions or "",
            ref_audio_base64=settings.audio.output.voice_sample,
            early_audio=True,
            transcribe=self._events.names.transcribes,
            barge_in=duplex.BargeInConfig(),
        )
        return self.tell(Received(first, at_s=event.at_s))

    def started(self, event: events.PrefillDone) -> list[Effect]:
        effects = self.tell(event)
        self._usage_due_s = event.at_s + USAGE_PERIOD_S
        return effects if self._is_away else [*effects, *self._restart_clock(event.at_s)]

    def too_early(self, event: Received[Any]) -> list[Effect]:
        return [self._error(event, "session_not_started", "Send 'session.start' first.")]

    def too_soon(self, event: Received[Any]) -> list[Effect]:
        return [self._error(event, "session_not_started", "Wait for 'session.started' first.")]

    def started_already(self, event: Received[Any]) -> list[Effect]:
        text = "The session has been started already."
        return [self._error(event, "session_already_started", text)]

    def not_started(self, event: events.TimerFired) -> list[Effect]:
        return [
            Close(CloseCode.POLICY, "session_expired") if isinstance(effect, Close) else effect
            for effect in self.tell(event)
        ]

    # --- client events ---

    def append_audio(self, event: Received[messages.AudioReceived]) -> list[Effect]:
        samples = event.message.samples
        if self._fixture is not None:
            samples = bytes(len(samples))
        self._buffer.append(samples, event.at_s)
        return self._advance(event.at_s)

    def append_image(self, event: Received[messages.InputImageAppend]) -> list[Effect]:
        return self.tell(Received(duplex.VideoFrame(frame=event.message.image), at_s=event.at_s))

    def mute(self, event: Received[Any]) -> list[Effect]:
        is_muted = self._buffer.is_muted = event.kind.endswith(".mute")
        done = "input_audio.muted" if is_muted else "input_audio.unmuted"
        return [self._events.acknowledged(done, event.message.event_id)]

    def append(self, event: Received[messages.ContextAppend]) -> list[Effect]:
        """Append text; the model gets it at its next pause."""
        message = event.message
        words = Appended(Append(event.kind.split(".")[1]), message.content, message.event_id)
        if message.delegation_id is not None:
            return [self._error(event, "invalid_value", "No such delegation.", "delegation_id")]
        tokens = self.rebase.history.count_tokens(message.content)
        if tokens > CONTENT_TOKENS:
            text = f"'content' has {tokens} tokens; {CONTENT_TOKENS} are allowed."
            return [self._error(event, "content_too_long", text, "content")]
        if not self.rebase.has_room(words):
            text = "'content' finds no room: too much was appended to this session."
            return [self._error(event, "content_too_long", text, "content")]
        if self._fixture is not None and words.purpose is Append.COMMENTARY:
            return [self._error(event, "fixture_active", "An audio fixture is playing.")]
        self.rebase.append(words)
        return self._advance(event.at_s)

    def play(self, event: Received[messages.Fixture]) -> list[Effect]:
        """Play a recording instead of the model's audio; the input is muted meanwhile."""
        if self._fixture is not None:
            return [self._error(event, "fixture_active", "An audio fixture is playing already.")]
        effects = self._fall_silent(event.at_s)
        self._fixture = event.message
        self._sender.put(self._fixture.samples)
        self._sender.end_unit("")
        name = "output_audio.fixture.playing"
        return [*effects, self._events.acknowledged(name, event.message.event_id)]

    def change(self, event: Received[messages.SessionUpdate]) -> list[Effect]:
        live = self._events
        had_delegation = live.settings.delegation is not None
        if not live.change(event.message.session):
            param, text = "session.delegation.type", "The type of delegation is fixed at the start."
            return [self._error(event, "invalid_value", text, param)]
        updated = live.session("updated", event.message.event_id)
        is_asked = live.settings.delegation is not None and not had_delegation
        # Until the session has started, this is left to the notes after `session.started`.
        return [updated, live.info(*NO_DELEGATION)] if is_asked and self.is_active else [updated]

    def not_offered(self, event: Received[Any]) -> list[Effect]:
        text = f"'{event.kind}' requires Responses delegation."
        return [self._error(event, "invalid_event", text)]

    def reject(self, event: events.Rejected) -> list[Effect]:
        problem = event.error
        if isinstance(problem, FieldError):
            where = (problem.param, problem.event_id)
            return [self._events.error(problem.openai_code, problem.message, *where)]
        return [self._events.error("invalid_event", problem.message)]

    def end(self, event: Event) -> list[Effect]:
        return self.tell(Received(Stop(), at_s=event.at_s))

    # --- the clock ---

    def tick(self, event: events.TimerFired) -> list[Effect]:
        at_s, sender = event.at_s, self._sender
        if sender.is_too_late(at_s):
            return self.translated(self.fail(RateLimitedError(SLOW_READER)))
        effects: list[Effect] = []
        for piece in sender.due(at_s):
            if piece.text:
                self.rebase.history.add(Speaker.ASSISTANT, piece.text)
            effects += self._events.spoken(piece)
        if self._fixture is not None and not sender.is_audible:
            name, fixture, self._fixture = "output_audio.fixture.played", self._fixture, None
            effects.append(self._events.acknowledged(name, fixture.event_id))
        if at_s >= self._usage_due_s:
            self._usage_due_s += USAGE_PERIOD_S
            effects.append(self._events.usage(self._buffer.received_ms, self.kv_share))
        effects.append(StartTimer(TimerName.PACE, max(0.0, sender.due_s - at_s)))
        if at_s - self._last_event_s > IDLE_S and self.is_active:
            self._closing = "expired"
            return [*effects, *self.end(event)]
        if self._buffer.is_starved(at_s):  # otherwise each append advances the units
            effects += self._advance(at_s)
        return effects

    def wait_for_client(self, event: events.ClientAway) -> list[Effect]:
        """Pause while the client is away; then continue from there."""
        self._is_away = event.is_away
        if not self.is_active:
            return []
        return [StopTimer(TimerName.PACE)] if event.is_away else self._restart_clock(event.at_s)

    def _restart_clock(self, at_s: float) -> list[Effect]:
        self._buffer.begin(at_s)
        self._sender.due_s = at_s
        effects = self.tick(events.TimerFired(TimerName.PACE, at_s=at_s))
        return [*effects, *self._advance(at_s)]

    def _advance(self, at_s: float) -> list[Effect]:
        """Fill gaps of the input with silence; begin a restart, or else the complete units."""
        if not self.is_active or self._is_away:
            return []
        self._buffer.fill(at_s)
        effects = self._detect_next()
        if isinstance(self.work, Prefill):
            return effects
        if anew := self.begin_anew():
            return [*effects, *anew]
        if self.must_speak:
            self._buffer.fill_unit()
        while (unit := self._buffer.take_unit()) is not None:
            effects += self.tell(Received(duplex.AudioChunk(audio=unit), at_s=at_s))
        return effects

    # --- engine events ---

    def speech_found(self, event: events.Detected) -> list[Effect]:
        """Hold the model's audio on suspected speech, and interrupt it on confirmed speech.

        A false alarm delays the audio without losing any.
        """
        self._buffer.is_detecting = False
        effects: list[Effect] = []
        for speech_event in event.speech_events:
            may_yield = self._sender.is_audible or self.is_speaking
            may_yield = may_yield and self._fixture is None
            match speech_event:
                case SpeechSuspected() if may_yield and event.at_s >= self._may_hold_from_s:
                    self._sender.is_held = True
                case SpeechDiscarded() if self._sender.is_held:
                    self._may_hold_from_s = event.at_s + HOLD_AGAIN_S
                    self._sender.is_held = False
                case SpeechStarted(start_samples):
                    self._sender.is_held = False
                    self.rebase.history.add_speech(start_samples)
                    effects += self._fall_silent(event.at_s) if may_yield else []
        return [*effects, *self._detect_next()]

    def restarted(self, event: events.PrefillDone) -> list[Effect]:
        received_ms = self._buffer.received_ms
        sent = [
            self._events.acknowledged(f"{words.purpose}.appended", words.event_id, received_ms)
            for words in self.rebase.going_in
        ]
        return [*sent, *self.pass_on(event)]

    def pass_on(self, event: Event) -> list[Effect]:
        return [*self.tell(event), *self._advance(event.at_s)]

    def report(self, event: events.EngineWarning) -> list[Effect]:
        return [self._events.info(event.problem.code.value, event.problem.message)]

    def _fall_silent(self, at_s: float) -> list[Effect]:
        """Drop unsent audio, and make the next unit listen."""
        self._sender.drop()
        return self.break_off(at_s)

    def _detect_next(self) -> list[Effect]:
        """Pass new input to voice activity detection, one piece at a time."""
        piece = self._buffer.take_undetected() if self.is_active else None
        return [] if piece is None else [Detect(piece)]

    # --- what the duplex machine sends ---

    def _replacement(self, message: ServerMessage) -> list[Effect]:
        live, received_ms = self._events, self._buffer.received_ms
        match message:
            case duplex.Prepared():
                start_id, self._start_id = self._start_id, None
                return [live.session("started", start_id), *live.notes()]
            case duplex.ResultPart() | duplex.Result() as unit:
                if self.takes(unit) and self._fixture is None:
                    self._sender.put(self.client_audio)
                    if isinstance(unit, duplex.Result):
                        self._sender.end_unit(unit.text)
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
        if not isinstance(self.work, Prefill):
            return self._events.failed(error)
        text = (
            "'session.instructions', with all that was appended to them, exceed the context of "
            f"{self._limits.max_kv_tokens} tokens."
        )
        where = ("session.instructions", self._start_id)
        return self._events.error(socket_code(error.code), text, *where)

    # Any: every client event may have an id.
    def _error(
        self, event: Received[Any], code: str, text: str, param: str | None = None
    ) -> Effect:
        return self._events.error(code, text, param, event.message.event_id)


MAY_END: Final = f"{SAME} stopping {CLOSED}"
BEGUN: Final = "preparing active"
OPEN: Final = f"waiting {BEGUN} stopping"
MACHINE: Final = GptLiveMachine
MUTES: Final = "session.input_audio.mute session.input_audio.unmute"
APPENDS: Final = " ".join(f"session.{purpose}.append" for purpose in Append)
REFUSED: Final = " ".join(get_args(messages.NotOffered.model_fields["type"].annotation))
CLIENT_ROWS: Final = (
    Row(BEGUN, "audio_received", MAY_END, MACHINE.append_audio),
    Row(BEGUN, "session.input_image.append", MAY_END, MACHINE.append_image),
    Row(BEGUN, MUTES, MAY_END, MACHINE.mute),
    Row(BEGUN, APPENDS, MAY_END, MACHINE.append),
    Row(BEGUN, "session.update", MAY_END, MACHINE.change),
    Row(BEGUN, "session.close", MAY_END, MACHINE.end),
)
"""Client events after `session.start`."""
TOO_EARLY: Final = " ".join([*(row.events for row in CLIENT_ROWS), REFUSED, "fixture"])
PASSED_ON: Final = frozenset(
    "step_done finalize_done audio_ready prefetched frame_timer stopping_timer session_timer "
    "idle_timer engine_failed disconnected shutting_down stop_requested "
    "transcribed".split()
)
"""Events handled by the duplex machine alone."""
TABLE: Final = (
    Row("waiting", "opened", SAME, MACHINE.pass_on),
    Row("waiting", "session.start", "preparing", MACHINE.start),
    Row("waiting", "prepare_timer", CLOSED, MACHINE.not_started),
    Row("waiting", TOO_EARLY, SAME, MACHINE.too_early),
    Row("preparing", "prefill_done", "active", MACHINE.started),
    *CLIENT_ROWS,
    Row(BEGUN, REFUSED, SAME, MACHINE.not_offered),
    Row(BEGUN, "session.start", SAME, MACHINE.started_already),
    Row("preparing", "fixture", SAME, MACHINE.too_soon),
    Row("active", "fixture", SAME, MACHINE.play),
    Row("active stopping", "pace_timer", MAY_END, MACHINE.tick),
    Row("preparing", "client_away", SAME, MACHINE.wait_for_client),
    Row("active", "client_away", MAY_END, MACHINE.wait_for_client),
    Row("active", "detected", SAME, MACHINE.speech_found),
    Row("active", "prefill_done", MAY_END, MACHINE.restarted),
    *(
        Row(row.phases.replace("paused", ""), event, row.targets, MACHINE.pass_on)
        for row in duplex_rules.TABLE
        for event in row.events.split()
        if event in PASSED_ON
    ),
    Row("stopping", "prefill_done", CLOSED, MACHINE.pass_on),
    Row(OPEN, "rejected", SAME, MACHINE.reject),
    Row(OPEN, "engine_warning", SAME, MACHINE.report),
)
"""All transitions of GPT-Live; the phases are those of the duplex machine."""

GptLiveMachine.live_rows = index_rows(TABLE)
