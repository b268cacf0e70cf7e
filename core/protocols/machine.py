"""Base of the worker's state machines: table look-up, warnings, and the end of a session.

A machine requests engine work only while none is running, and `Release` exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from core import errors
from core.errors import ErrorCode, OmniError
from core.protocols import events
from core.protocols.effects import (
    Cancel,
    Close,
    Effect,
    Finalize,
    Generate,
    Prefill,
    Release,
    Send,
    StartTimer,
    Step,
    WorkEffect,
)
from core.protocols.events import MS_PER_S, Event, Received, TimerName
from core.protocols.tables import CLOSED, SAME, Phase, Row
from core.schemas import duplex, half_duplex
from core.schemas.limits import INPUT_SAMPLE_RATE_HZ, SAMPLE_BYTES
from core.schemas.queue import ErrorMessage, UserTranscript, WarningMessage
from core.schemas.streaming import Chunk, StreamingChunk
from core.schemas.worker import WorkerStatus

# Client errors that only drop the message; the session continues.
RECOVERABLE: Final = (errors.UnknownTypeError, errors.PictureError)

FAILURE: Final = "Send(error) Release Close"
"""Effects of `fail` when no work is running."""

ENDING: Final = f"Cancel {FAILURE}"
"""Effects of `fail` otherwise."""


WORK_OF: Final[Mapping[type[Event], tuple[type[WorkEffect], ...]]] = {
    events.PrefillDone: (Prefill,),
    events.CacheMissed: (Prefill,),
    events.StepDone: (Step,),
    events.FinalizeDone: (Finalize,),
    events.ChunkReady: (Generate,),
    events.GenerateDone: (Generate,),
    events.TurnFailed: (Prefill, Generate),
}
"""The work that an engine event may result from, and that it ends, unless it is a chunk."""


@dataclass(frozen=True)
class SessionIds:
    """Ids of a session, and the secret of its owner, by their names in messages."""

    session_id: str
    recording_session_id: str | None = None
    session_secret: str | None = None


def warn(problem: OmniError) -> Send:
    return Send(WarningMessage.of(problem))


def timer(name: TimerName, limit_s: float) -> list[Effect]:
    """Return the start of a timer, unless its limit is 0, which is unlimited."""
    return [StartTimer(name, limit_s)] if limit_s > 0 else []


Action = Callable[["SessionMachine", Event], list[Effect]]


def warns(problem: type[OmniError], *text: str) -> Action:
    """Return the action of a row that only warns."""
    return lambda machine, event: [warn(problem(*text))]


def warns_once(topic: str, problem: type[OmniError], *text: str) -> Action:
    """Return the action of a row that warns of a topic the first time."""
    return lambda machine, event: machine.warn_once(topic, problem(*text))


def fails(error: type[OmniError], *text: str) -> Action:
    """Return the action of a row that ends the session by an error."""
    return lambda machine, event: machine.fail(error(*text))


def fail(machine: SessionMachine, event: events.Failure) -> list[Effect]:
    return machine.fail(event.error)


def reject(machine: SessionMachine, event: events.Rejected) -> list[Effect]:
    return [warn(event.error)] if isinstance(event.error, RECOVERABLE) else fail(machine, event)


class SessionMachine:
    """State machine of one session; no effect follows its `Release`, which closes it."""

    rows: ClassVar[Mapping[tuple[str, str], Row]]
    busy_status: ClassVar[WorkerStatus]  # of the worker while the session occupies it
    idle_phases: ClassVar[tuple[Phase, ...]] = (Phase.CLOSED,)

    def __init__(self, ids: SessionIds, first: Phase) -> None:
        self.phase = first
        self._ids = ids
        self.work: WorkEffect | None = None  # in the engine
        self._is_cancelled = False
        self._warned: set[str] = set()

    @property
    def is_closed(self) -> bool:
        return self.phase == CLOSED

    @property
    def is_working(self) -> bool:
        return self.work is not None

    @property
    def status(self) -> WorkerStatus:
        return WorkerStatus.IDLE if self.phase in self.idle_phases else self.busy_status

    def handle(self, event: Event) -> list[Effect]:
        """Return the effects to carry out, in order."""
        if self.is_closed or not self._is_expected(event):
            return []
        is_of_work = isinstance(self.work, WORK_OF.get(type(event), ()))
        if is_of_work and not isinstance(event, events.ChunkReady):
            self.work = None
        row = self.rows.get((self.phase, event.kind))
        return self._not_allowed(event) if row is None else row.action(self, event)

    def _is_expected(self, event: Event) -> bool:
        """Return whether an engine event results from running work; other events always pass."""
        work_of_event = WORK_OF.get(type(event))
        return work_of_event is None or isinstance(self.work, work_of_event)

    def _not_allowed(self, event: Event) -> list[Effect]:
        """Warn about a message without a row; late timers and engine results are ignored."""
        if not isinstance(event, Received):
            return []
        text = f"{event.kind!r} is not expected while {self.phase.value}."
        return [warn(errors.OutOfOrderError(text))]

    def _begin(self, work: WorkEffect) -> WorkEffect:
        assert self.work is None, f"{work} while {self.work} is under way"
        self.work = work
        return work

    def _cancel(self) -> list[Effect]:
        if not self.is_working or self._is_cancelled:
            return []
        self._is_cancelled = True
        return [Cancel()]

    def _end(self, *last: Effect, close: Close | None) -> list[Effect]:
        self.phase = Phase.CLOSED
        closing: list[Effect] = [] if close is None else [close]
        return [*self._cancel(), *last, Release(), *closing]

    def warn_once(self, topic: str, problem: OmniError) -> list[Effect]:
        if topic in self._warned:
            return []
        self._warned.add(topic)
        return [warn(problem)]

    def _check_context(self, kv_tokens: int, max_tokens: int, reserve_tokens: int) -> list[Effect]:
        """Return the end of a session whose context is full; if it nearly is, warn once."""
        left_tokens = max_tokens - kv_tokens
        if left_tokens <= 0:
            return self.fail(errors.ContextFullError())
        if left_tokens > reserve_tokens or "context" in self._warned:
            return []
        self._warned.add("context")
        text = f"The conversation is nearly too long: {left_tokens} tokens are left."
        return [Send(WarningMessage(code=ErrorCode.CONTEXT_NEARLY_FULL, message=text))]

    # --- common actions of all open phases ---

    def fail(self, error: OmniError) -> list[Effect]:
        return self._end(Send(ErrorMessage.of(error)), close=Close(error.close_code, error.code))

    def ignore(self, event: Event) -> list[Effect]:
        """Do nothing; the event is for observers."""
        return []

    def engine_warning(self, event: events.EngineWarning) -> list[Effect]:
        return [warn(event.problem)]

    def transcribed(self, event: events.Transcribed) -> list[Effect]:
        segment, problem = event.segment, event.problem
        message = UserTranscript(
            text=event.text,
            language=event.language,
            start_ms=segment.start_samples * MS_PER_S // INPUT_SAMPLE_RATE_HZ,
            duration_ms=segment.duration_ms,
            turn_index=event.turn_index,
            error=None if problem is None else problem.message,
        )
        return [Send(message)]

    def close(self, event: Event) -> list[Effect]:
        return self._end(close=Close())

    def leave(self, event: events.Disconnected) -> list[Effect]:
        return self._end(close=None)


def common_rows(phases: str) -> tuple[Row, ...]:
    """Return the rows common to all protocols; `phases` are all but the last."""
    machine = SessionMachine
    return (
        Row(phases, "heartbeat", SAME, machine.ignore, ""),
        Row(phases, "rejected", f"{SAME} {CLOSED}", reject, f"Send(warning) {ENDING}"),
        Row(phases, "engine_warning", SAME, machine.engine_warning, "Send(warning)"),
        Row(phases, "disconnected", CLOSED, machine.leave, "Cancel Release"),
        Row(phases, "shutting_down", CLOSED, fails(errors.ShuttingDownError), ENDING),
    )


FASTEST: Final = 1.5  # times real time, on average. Ours.
# Ours: how far audio may be ahead. A silent peer is disconnected after 40 s, so no client has more
# to send at once after a network outage.
AHEAD_MAX_S: Final = 40.0


class AudioRateLimit:
    """Limits how far a client's audio may run ahead of real time."""

    def __init__(self) -> None:
        self._ahead_s = 0.0
        self._at_s = 0.0

    def take(
        self, audio: bytes, now_s: float, shortest_ms: int = 0
    ) -> errors.RateLimitedError | None:
        """Count a chunk as at least `shortest_ms`; return an error if the client is too fast."""
        audio_s = len(audio) / SAMPLE_BYTES / INPUT_SAMPLE_RATE_HZ
        left_s = max(0.0, self._ahead_s - FASTEST * (now_s - self._at_s))
        self._ahead_s = left_s + max(audio_s, shortest_ms / MS_PER_S)
        self._at_s = now_s
        if self._ahead_s <= AHEAD_MAX_S:
            return None
        text = (
            f"audio_chunk: audio comes faster than {FASTEST:g} times real time "
            f"and is more than {AHEAD_MAX_S:g} s ahead."
        )
        is_short = audio_s < shortest_ms / MS_PER_S
        hint = f" A chunk counts as at least {shortest_ms} ms." if is_short else ""
        return errors.RateLimitedError(text + hint)


@dataclass
class Reply:
    """Text, chunk count and playback end of one reply."""

    # When a client that plays each chunk on arrival has played all; 0 without audio.
    playback_end_s: float = 0.0
    text: str = ""
    next_index: int = 0
    is_final_sent: bool = False

    def add(self, chunk: StreamingChunk, at_s: float) -> Send:
        self.text += chunk.text_delta or ""
        self.next_index = chunk.chunk_index + 1
        self.is_final_sent = chunk.is_final
        duration_s = len(chunk.audio_data or b"") / SAMPLE_BYTES / chunk.audio_sample_rate
        if duration_s > 0:
            self.playback_end_s = max(self.playback_end_s, at_s) + duration_s
        return Send(Chunk.model_validate(dict(chunk)))

    def last_chunk(self) -> list[Effect]:
        """Return the empty final chunk unless one was sent already."""
        last = Send(Chunk(chunk_index=self.next_index, is_final=True))
        return [] if self.is_final_sent else [last]


@dataclass(frozen=True)
class LiveLimits:
    """Limits of a half- or full-duplex session."""

    max_session_s: float = 0.0  # longest session; 0 is unlimited
    prepare_timeout_s: float = 60.0  # longest time without `prepare`; ours
    stop_grace_s: float = 5.0  # how long `stop` waits for running work to end; ours
    max_kv_tokens: int = 8_192  # tokens at which the session ends
    kv_reserve_tokens: int = 512  # remaining tokens at which the client is warned; ours


DROP_EARLY: Final = warns_once("not_prepared", errors.NotPreparedError)
TIMEOUT: Final = "Cancel Send(timeout) Release Close"
TIMEOUTS: Final = {
    TimerName.SESSION: "max_session",
    TimerName.PAUSE: "pause",
    TimerName.IDLE: "inactivity",
}
"""Reasons of a `timeout`."""


class LiveMachine(SessionMachine):
    """Base of half and full duplex: one `prepare`, and a `stop` that waits for the engine."""

    # The last messages: the reply to `stop`, and of a session that reached a limit.
    stopped: ClassVar[type[duplex.Stopped]]
    timed_out: ClassVar[type[duplex.Timeout] | type[half_duplex.Timeout]]
    _limits: LiveLimits

    def __init__(self, ids: SessionIds) -> None:
        super().__init__(ids, Phase.WAITING)
        self._ready_s = 0.0  # when `prepared` was sent
        self._since_s = 0.0  # when the pause began, or audio last arrived or was played

    def open(self, event: Event) -> list[Effect]:
        return [StartTimer(TimerName.PREPARE, self._limits.prepare_timeout_s)]

    def _not_allowed(self, event: Event) -> list[Effect]:
        # Audio may still be in flight when a session ends.
        return [] if self.phase is Phase.STOPPING else super()._not_allowed(event)

    def stop(self, event: Event) -> list[Effect]:
        if self.work is None:
            return self.finish_stop(event)
        self.phase = Phase.STOPPING
        return [*self._cancel(), StartTimer(TimerName.STOPPING, self._limits.stop_grace_s)]

    def finish_stop(self, event: Event) -> list[Effect]:
        """Answer `stop` and close; only `Release` waits for work that still runs."""
        return self._end(Send(self.stopped(**vars(self._ids))), close=Close())

    def time_out_session(self, event: events.TimerFired) -> list[Effect]:
        since_s = self._ready_s if event.name == TimerName.SESSION else self._since_s
        elapsed_s = round(max(0.0, event.at_s - since_s), 1)
        fields = vars(self._ids) | {"reason": TIMEOUTS[event.name], "elapsed_s": elapsed_s}
        return self._end(Send(self.timed_out.model_validate(fields)), close=Close())


def live_rows(begun: str, ends_of_work: str, commands: str) -> tuple[Row, ...]:
    """Return the rows common to half and full duplex.

    `begun` are the phases between `prepared` and `stop`, `ends_of_work` the events that may end
    running work, `commands` the messages that require `prepared`.
    """
    machine = LiveMachine
    stopped = "Send(stopped) Release Close"
    stop = f"Cancel StartTimer(stopping) {stopped}"
    running, early, warned = f"waiting preparing {begun}", "waiting preparing", "Send(warning)"
    late = fails(errors.SessionTimeoutError, "The session was not prepared in time.")
    return (
        Row("waiting", "opened", SAME, machine.open, "StartTimer(prepare)"),
        Row("waiting", "prepare_timer", CLOSED, late, FAILURE),
        Row(f"preparing {begun}", "prepare", SAME, warns(errors.AlreadyPreparedError), warned),
        Row(early, commands, SAME, warns(errors.NotPreparedError), warned),
        Row(early, "audio_chunk", SAME, DROP_EARLY, warned),
        Row(begun, "session_timer", CLOSED, machine.time_out_session, TIMEOUT),
        Row(running, "stop", f"stopping {CLOSED}", machine.stop, stop),
        Row(running, "engine_failed", CLOSED, fail, ENDING),
        Row("stopping", f"{ends_of_work} stopping_timer", CLOSED, machine.finish_stop, stopped),
        Row("stopping", "stop stop_requested", SAME, machine.ignore, ""),
        *common_rows(f"{running} stopping"),
    )
