"""The gateway's side of a socket of OpenAI's protocols, which have no queue.

The wait is limited, and only clients that request it are sent their position. Events that arrive
meanwhile are held for the worker, in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from core.errors import BadPayloadError, QueueFullError, TooBigError
from core.protocols import events
from core.protocols.effects import QueueEffect, StartTimer
from core.protocols.events import TimerName
from core.protocols.machine import fails, warn
from core.protocols.queueing import (
    FAILED,
    NOT_CLOSED,
    QUEUED,
    TABLE,
    QueueingLimits,
    QueueingMachine,
)
from core.protocols.tables import CLOSED, SAME, Row, index_rows
from core.schemas.limits import EVENT_LIMIT_BYTES, MIB
from core.schemas.queue import RequestType

AUDIO: Final = "audio"
"""Kind of an event with audio."""
EVENT: Final = "event"
"""Kind of any other event."""

RECONNECT_S: Final = 1.0
"""Ours: by then the worker of a client that ends a session and begins another is free again."""


@dataclass(frozen=True)
class WaitLimits:
    """How long a client may wait, and how many of its events are held meanwhile.

    Attributes:
        max_wait_s: longest wait; one that is estimated to be longer ends after a second. Ours: the
            clients' own limits are 10 s.
        max_events: events held; one more ends the connection. The oldest audio is dropped first.
        max_audio_chars: Base64 of audio held; beyond it the oldest is dropped.
        max_chars: length of all events held; more ends the connection. Ours: the longest event.
    """

    max_wait_s: float = 8.0
    max_events: int = 64
    max_audio_chars: int = MIB
    max_chars: int = EVENT_LIMIT_BYTES


class EventQueueingMachine(QueueingMachine):
    """State machine of one client's socket."""

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

    def enqueued(self, event: events.Enqueued) -> list[QueueEffect]:
        effects = super().enqueued(event)
        if event.position.estimated_wait_s <= self._wait.max_wait_s:
            return effects
        return [*effects, StartTimer(TimerName.WAIT, min(RECONNECT_S, self._wait.max_wait_s))]

    def keep(self, event: events.RawMessage) -> list[QueueEffect]:
        self._held.append(event)
        audio = [kept for kept in self._held if kept.kind == AUDIO]
        audio_chars = sum(len(kept.text) for kept in audio)
        while audio and (
            audio_chars > self._wait.max_audio_chars or len(self._held) > self._wait.max_events
        ):
            oldest = audio.pop(0)
            self._held.remove(oldest)
            audio_chars -= len(oldest.text)
        chars = sum(len(kept.text) for kept in self._held)
        if len(self._held) > self._wait.max_events or chars > self._wait.max_chars:
            return self.fail(QueueFullError("Too many events came before the session began."))
        return []

    def refuse_event(self, event: events.Rejected) -> list[QueueEffect]:
        """Report an invalid event; the session continues unless it is too big."""
        if isinstance(event.error, BadPayloadError) and not isinstance(event.error, TooBigError):
            return [warn(event.error)]
        return self.fail(event.error)

    def _begin_waiting(self) -> list[QueueEffect]:
        timer = StartTimer(TimerName.WAIT, self._wait.max_wait_s)
        return [*super()._begin_waiting(), timer]

    def _next_update(self) -> list[QueueEffect]:
        return []


MACHINE: Final = EventQueueingMachine
WARNED: Final = f"Send(warning) {FAILED}"
AS_BEFORE: Final = frozenset(
    "queue_refused worker_closed worker_failed disconnected shutting_down".split()
)
FOUND: Final = "StopTimer(wait) Send(queue_done) ConnectWorker"
MOVED: Final = "StartTimer(wait) Send(error) ReleaseWorker Enqueue Close"

EVENT_TABLE: Final = (
    Row("open", "opened", "waiting", "StartTimer(wait) Enqueue", MACHINE.open),
    *(row for row in TABLE if row.events in AS_BEFORE),
    Row(CLOSED, "assigned", SAME, "ReleaseWorker", MACHINE.assigned_too_late),
    Row("waiting", "enqueued", SAME, "Send(queued) StartTimer(wait)", MACHINE.enqueued),
    Row("waiting", "position_changed", SAME, "Send(queue_update)", MACHINE.position_changed),
    Row("waiting", "wait_timer", CLOSED, FAILED, fails(QueueFullError)),
    Row("waiting", "assigned", "connecting", FOUND, MACHINE.assigned),
    Row(QUEUED, f"{AUDIO} {EVENT}", f"{SAME} {CLOSED}", FAILED, MACHINE.keep),
    Row("connecting", "worker_connected", "relaying", "Forward StartRelay", MACHINE.connected),
    Row("connecting", "worker_unreachable", f"waiting {CLOSED}", MOVED, MACHINE.worker_unreachable),
    Row(NOT_CLOSED, "rejected", f"{SAME} {CLOSED}", WARNED, MACHINE.refuse_event),
)
EventQueueingMachine.rows = index_rows(EVENT_TABLE)
