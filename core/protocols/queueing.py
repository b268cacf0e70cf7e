"""The gateway's side of every socket: queue, connect to a worker, relay, release it.

Every `Assigned` is followed by exactly one `ReleaseWorker`, in whatever phase.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from core import errors
from core.errors import CloseCode, OmniError
from core.protocols import events
from core.protocols.effects import (
    CancelTicket,
    Close,
    ConnectWorker,
    Enqueue,
    Forward,
    QueueEffect,
    ReleaseWorker,
    ReportPosition,
    Send,
    StartRelay,
    StartTimer,
    StopTimer,
)
from core.protocols.events import TimerName
from core.protocols.machine import TableMachine, fail, fails, reject, warn, warns
from core.protocols.tables import CLOSED, SAME, Row, index_rows
from core.schemas import chat, duplex, streaming
from core.schemas.limits import EVENT_LIMIT_BYTES, MIB
from core.schemas.queue import ErrorMessage, Queued, QueueDone, QueueUpdate, RequestType


class QueueingPhase(StrEnum):
    """Phase of a client's socket at the gateway."""

    OPEN = "open"  # not accepted yet, or between turns
    WAITING = "waiting"
    CONNECTING = "connecting"
    RELAYING = "relaying"
    CLOSED = "closed"


@dataclass(frozen=True)
class QueueingLimits:
    """Periods and counts of the queueing machine.

    Source of the first: docs/specification/service.md#2.2; the others are ours.
    """

    update_period_s: float = 3.0  # between two reports of the position
    open_timeout_s: float = 300.0  # longest time between turns; no worker is held meanwhile
    # How often a request moves to another worker because one cannot be reached.
    max_moves: int = 3


class QueueingMachine(TableMachine[QueueingPhase, QueueEffect]):
    """State machine of one client's socket at the gateway.

    A streaming or chat socket queues for each turn, which begins with `prefill`, as the relay also
    names the only message of a chat; any other queues once, when it is opened. Once closed, only a
    late worker is released.
    """

    waiting_timer: ClassVar = TimerName.QUEUE_UPDATE  # stops when a worker is assigned

    def __init__(
        self,
        session_id: str,
        request_type: RequestType,
        limits: QueueingLimits | None = None,
        *,
        order: int | None = None,
    ) -> None:
        """`order` is the queue position of a returning client."""
        self._phase = QueueingPhase.OPEN
        self._session_id = session_id
        self._request_type = request_type
        self._limits = limits or QueueingLimits()
        self._held: list[events.RawMessage] = []  # for the worker, such as `prepare` or `prefill`
        self._moves = 0
        self._order = order
        self._on_wait: list[QueueEffect] = []  # when the wait begins
        update = StartTimer(TimerName.QUEUE_UPDATE, self._limits.update_period_s)
        self._on_report: list[QueueEffect] = [update]  # when the position was reported

    @property
    def _queues_per_turn(self) -> bool:
        return self._request_type in (RequestType.STREAMING, RequestType.CHAT)

    # --- waiting ---

    def open(self, event: events.Opened) -> list[QueueEffect]:
        if self._queues_per_turn:
            return [StartTimer(TimerName.IDLE, self._limits.open_timeout_s)]
        self._phase = QueueingPhase.WAITING
        return [*self._on_wait, Enqueue(self._request_type, order=self._order)]

    def begin_turn(self, event: events.RawMessage) -> list[QueueEffect]:
        self._phase = QueueingPhase.WAITING
        self._held = [event]
        self._moves = 0
        order, self._order = self._order, None
        return [StopTimer(TimerName.IDLE), Enqueue(self._request_type, event.text, order)]

    def enqueued(self, event: events.Enqueued) -> list[QueueEffect]:
        return [Send(Queued(**dict(event.position))), *self._on_report]

    def position_changed(self, event: events.PositionChanged) -> list[QueueEffect]:
        return [Send(QueueUpdate(**dict(event.position))), *self._on_report]

    def report(self, event: events.TimerFired) -> list[QueueEffect]:
        return [ReportPosition(), *self._on_report]

    def hold(self, event: events.RawMessage) -> list[QueueEffect]:
        if self._held:
            return [warn(errors.AlreadyPreparedError())]
        self._held.append(event)
        return []

    def out_of_order(self, event: events.RawMessage) -> list[QueueEffect]:
        return [warn(errors.OutOfOrderError(f"{event.kind!r} is not expected now."))]

    def refuse(self, event: events.QueueRefused) -> list[QueueEffect]:
        """Fail; the request has left the queue already."""
        self._phase = QueueingPhase.OPEN
        return self.fail(event.error)

    # --- with a worker ---

    def assigned(self, event: events.Assigned) -> list[QueueEffect]:
        self._phase = QueueingPhase.CONNECTING
        done = () if event.is_resumed else (Send(QueueDone(worker_id=event.worker_id)),)
        return [StopTimer(self.waiting_timer), *done, ConnectWorker()]

    def assigned_too_late(self, event: events.Assigned) -> list[QueueEffect]:
        return [ReleaseWorker(is_clean=True)]

    def connected(self, event: events.WorkerConnected) -> list[QueueEffect]:
        self._phase = QueueingPhase.RELAYING
        held, self._held = self._held, []
        return [*(Forward(message.text) for message in held), StartRelay()]

    def turn_ended(self, event: events.TurnEnded) -> list[QueueEffect]:
        if not self._queues_per_turn:
            return []
        return [*self._release(is_clean=True), *self._reopen()]

    def worker_unreachable(self, event: events.WorkerUnreachable) -> list[QueueEffect]:
        """Queue again for another worker; this one has received nothing."""
        if self._moves == self._limits.max_moves:
            return self.fail(event.error)
        self._moves += 1
        effects = self._release(is_clean=True)
        self._phase = QueueingPhase.WAITING
        history = self._held[0].text if self._queues_per_turn else None
        return [*self._on_wait, *effects, Enqueue(self._request_type, history, event.order)]

    def worker_closed(self, event: events.WorkerClosed) -> list[QueueEffect]:
        """Pass the close code on; a turn that ended in order would have sent `done` first."""
        code = next((known for known in CloseCode if known == event.code), CloseCode.NORMAL)
        is_clean = not self._queues_per_turn
        return self._end(Close(code, event.reason), is_clean=is_clean)

    # --- the end ---

    def stop(self, event: events.RawMessage) -> list[QueueEffect]:
        session_id = self._session_id
        self._held.clear()
        if self._request_type == RequestType.CHAT:
            return [Send(chat.ChatDone(stopped=True)), *self._end(Close(), is_clean=True)]
        if self._queues_per_turn:
            done = streaming.Done(session_id=session_id, stopped=True)
            return [*self._release(is_clean=True), Send(done), *self._reopen()]
        stopped = duplex.Stopped(session_id=session_id)  # in half duplex too
        return [Send(stopped), *self._end(Close(), is_clean=True)]

    def close(self, event: events.RawMessage) -> list[QueueEffect]:
        return self._end(Close(), is_clean=True)

    def leave(self, event: events.Disconnected) -> list[QueueEffect]:
        return self._end(None, is_clean=False)

    def _release(self, *, is_clean: bool) -> list[QueueEffect]:
        """Give back what this phase holds; the caller changes the phase."""
        match self._phase:
            case QueueingPhase.WAITING:
                return [CancelTicket()]
            case QueueingPhase.CONNECTING:  # a worker that received nothing keeps its cache
                return [ReleaseWorker(is_clean=True)]
            case QueueingPhase.RELAYING:
                return [ReleaseWorker(is_clean=is_clean)]
        return []

    def _reopen(self) -> list[QueueEffect]:
        self._phase = QueueingPhase.OPEN
        return [
            StopTimer(TimerName.QUEUE_UPDATE),
            StartTimer(TimerName.IDLE, self._limits.open_timeout_s),
        ]

    def _end(self, close: Close | None, *, is_clean: bool) -> list[QueueEffect]:
        effects = self._release(is_clean=is_clean)
        self._phase = QueueingPhase.CLOSED
        self._held.clear()
        return effects if close is None else [*effects, close]

    def fail(self, error: OmniError) -> list[QueueEffect]:
        close = Close(error.close_code, error.code)
        return [Send(ErrorMessage.of(error)), *self._end(close, is_clean=False)]


QUEUED: Final = "waiting connecting"
NOT_CLOSED: Final = f"open {QUEUED} relaying"
RELEASE: Final = "CancelTicket ReleaseWorker"
FAILED: Final = f"Send(error) {RELEASE} Close"
REOPEN: Final = "StopTimer(queue_update) StartTimer(idle)"
AGAIN: Final = "StartTimer(queue_update)"
MOVED_UP: Final = f"Send(queue_update) {AGAIN}"
MACHINE: Final = QueueingMachine
FOUND: Final = "StopTimer(queue_update) Send(queue_done) ConnectWorker"
LEFT: Final = f"Send(stopped) Send(done) {RELEASE} {REOPEN} Close"
MOVED: Final = "Send(error) ReleaseWorker Enqueue Close"
REJECTED: Final = f"Send(warning) Send(error) {RELEASE} Close"

TABLE: Final = (
    Row("open", "opened", f"{SAME} waiting", "StartTimer(idle) Enqueue", MACHINE.open),
    Row("open", "prefill", "waiting", "StopTimer(idle) Enqueue", MACHINE.begin_turn),
    Row("open", "idle_timer", CLOSED, "Send(error) Close", fails(errors.SessionTimeoutError)),
    Row("open", "other", SAME, "Send(warning)", warns(errors.UnknownTypeError)),
    Row("open", "stop generate", SAME, "Send(warning)", MACHINE.out_of_order),
    Row("waiting", "enqueued", SAME, f"Send(queued) {AGAIN}", MACHINE.enqueued),
    Row("waiting", "position_changed", SAME, MOVED_UP, MACHINE.position_changed),
    Row("waiting", "queue_update_timer", SAME, f"ReportPosition {AGAIN}", MACHINE.report),
    Row("waiting", "queue_refused", CLOSED, "Send(error) Close", MACHINE.refuse),
    Row("waiting", "assigned", "connecting", FOUND, MACHINE.assigned),
    Row(f"open {CLOSED}", "assigned", SAME, "ReleaseWorker", MACHINE.assigned_too_late),
    Row(QUEUED, "prepare", SAME, "Send(warning)", MACHINE.hold),
    Row(QUEUED, "prefill generate", SAME, "Send(warning)", MACHINE.out_of_order),
    Row(QUEUED, "other", SAME, "Send(warning)", warns(errors.UnknownTypeError)),
    Row(QUEUED, "stop", f"open {CLOSED}", LEFT, MACHINE.stop),
    Row(f"open {QUEUED}", "close", CLOSED, f"{RELEASE} Close", MACHINE.close),
    Row("connecting", "worker_connected", "relaying", "Forward StartRelay", MACHINE.connected),
    Row("connecting", "worker_unreachable", f"waiting {CLOSED}", MOVED, MACHINE.worker_unreachable),
    Row("relaying", "turn_ended", f"{SAME} open", f"{RELEASE} {REOPEN}", MACHINE.turn_ended),
    Row("relaying", "worker_closed", CLOSED, f"{RELEASE} Close", MACHINE.worker_closed),
    Row("connecting relaying", "worker_failed", CLOSED, FAILED, fail),
    Row(NOT_CLOSED, "rejected", f"{SAME} {CLOSED}", REJECTED, reject),
    Row(NOT_CLOSED, "disconnected", CLOSED, RELEASE, MACHINE.leave),
    Row(NOT_CLOSED, "shutting_down", CLOSED, FAILED, fails(errors.ShuttingDownError)),
)
"""All transitions of the gateway's side; messages are relayed unread."""

QueueingMachine.rows = index_rows(TABLE)


# --- sockets of OpenAI's protocols, which have no queue ---

AUDIO: Final = "audio"
"""Kind of an event with audio."""
EVENT: Final = "event"
"""Kind of any other event."""

RECONNECT_S: Final = 1.0
"""Ours: by then the worker of a client that ends a session and begins another is free again."""


@dataclass(frozen=True)
class WaitLimits:
    """How long a client may wait, and how many of its events are held meanwhile. Ours."""

    # Longest wait; one that is estimated to be longer ends after a second. The clients' own limits
    # are 10 s.
    max_wait_s: float = 8.0
    max_events: int = 64  # held; one more ends the connection. The oldest audio is dropped first
    max_audio_chars: int = MIB  # Base64 of audio held; beyond it the oldest is dropped
    # Length of all events held: that of the longest event; more ends the connection.
    max_chars: int = EVENT_LIMIT_BYTES


class EventQueueingMachine(QueueingMachine):
    """State machine of a socket whose wait is limited.

    Only clients that request it are sent their position. Events that arrive meanwhile are held for
    the worker, in order.
    """

    waiting_timer = TimerName.WAIT

    def __init__(
        self,
        session_id: str,
        request_type: RequestType,
        limits: QueueingLimits | None = None,
        wait: WaitLimits | None = None,
        first: str | None = None,
        *,
        order: int | None = None,
    ) -> None:
        """`first` is sent to the worker before all other events."""
        super().__init__(session_id, request_type, limits, order=order)
        self._wait = wait or WaitLimits()
        self._held = [] if first is None else [events.RawMessage(EVENT, first)]
        self._on_wait, self._on_report = [StartTimer(TimerName.WAIT, self._wait.max_wait_s)], []

    def enqueued(self, event: events.Enqueued) -> list[QueueEffect]:
        effects = super().enqueued(event)
        if event.position.estimated_wait_s <= self._wait.max_wait_s:
            return effects
        return [*effects, StartTimer(TimerName.WAIT, min(RECONNECT_S, self._wait.max_wait_s))]

    def keep(self, event: events.RawMessage) -> list[QueueEffect]:
        self._held.append(event)
        audio = [kept for kept in self._held if kept.kind == AUDIO]
        wait = self._wait
        while audio and (_chars(audio) > wait.max_audio_chars or len(self._held) > wait.max_events):
            self._held.remove(audio.pop(0))
        if len(self._held) > wait.max_events or _chars(self._held) > wait.max_chars:
            text = "Too many events came before the session began."
            return self.fail(errors.QueueFullError(text))
        return []

    def refuse_event(self, event: events.Rejected) -> list[QueueEffect]:
        """Report an invalid event; the session continues unless it is too big."""
        problem, is_too_big = event.error, isinstance(event.error, errors.TooBigError)
        if isinstance(problem, errors.BadPayloadError) and not is_too_big:
            return [warn(problem)]
        return self.fail(problem)


def _chars(held: list[events.RawMessage]) -> int:
    return sum(len(message.text) for message in held)


EVENTS: Final = EventQueueingMachine
WARNED: Final = f"Send(warning) {FAILED}"
AS_BEFORE: Final = frozenset(
    "queue_refused worker_connected worker_closed worker_failed disconnected shutting_down".split()
)
EVENT_FOUND: Final = "StopTimer(wait) Send(queue_done) ConnectWorker"
AWAY: Final = "StartTimer(wait) Send(error) ReleaseWorker Enqueue Close"

EVENT_TABLE: Final = (
    Row("open", "opened", "waiting", "StartTimer(wait) Enqueue", EVENTS.open),
    *(row for row in TABLE if row.events in AS_BEFORE),
    Row(CLOSED, "assigned", SAME, "ReleaseWorker", EVENTS.assigned_too_late),
    Row("waiting", "enqueued", SAME, "Send(queued) StartTimer(wait)", EVENTS.enqueued),
    Row("waiting", "position_changed", SAME, "Send(queue_update)", EVENTS.position_changed),
    Row("waiting", "wait_timer", CLOSED, FAILED, fails(errors.QueueFullError)),
    Row("waiting", "assigned", "connecting", EVENT_FOUND, EVENTS.assigned),
    Row(QUEUED, f"{AUDIO} {EVENT}", f"{SAME} {CLOSED}", FAILED, EVENTS.keep),
    Row("connecting", "worker_unreachable", f"waiting {CLOSED}", AWAY, EVENTS.worker_unreachable),
    Row(NOT_CLOSED, "rejected", f"{SAME} {CLOSED}", WARNED, EVENTS.refuse_event),
)
EventQueueingMachine.rows = index_rows(EVENT_TABLE)
