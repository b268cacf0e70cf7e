"""OpenAI's sockets at the gateway: the wait, its end, and held events."""

from __future__ import annotations

from typing import Any

from core.errors import BinaryMessageError, EndedByAdminError, TooBigError, WorkerUnreachableError
from core.protocols.effects import Close, Enqueue, Forward, QueueEffect, Send, StartTimer, label
from core.protocols.events import (
    Assigned,
    Disconnected,
    Enqueued,
    Event,
    Opened,
    PositionChanged,
    RawMessage,
    Rejected,
    TimerFired,
    TimerName,
    WorkerConnected,
    WorkerUnreachable,
)
from core.protocols.queueing import (
    AUDIO,
    EVENT,
    EVENT_TABLE,
    EventQueueingMachine,
    WaitLimits,
)
from core.schemas.queue import (
    ErrorMessage,
    Queued,
    QueueDone,
    QueuePosition,
    QueueUpdate,
    RequestType,
)
from tests.fakes.scenes import has_row


class Stage:
    """Passes events to a machine, and checks its table."""

    def __init__(self, *events: Event, **limits: Any) -> None:
        self.machine = EventQueueingMachine(
            "realtime_1", RequestType.HALF_DUPLEX_AUDIO, wait=WaitLimits(**limits)
        )
        for event in events:
            self.tell(event)

    def tell(self, event: Event) -> list[QueueEffect]:
        """Handle an event; check its effects against the table."""
        phase = self.machine.phase
        effects = self.machine.handle(event)
        labels = [label(effect) for effect in effects]
        assert has_row(EVENT_TABLE, phase, event, labels, self.machine.phase) or not effects
        return effects


def said(text: str, kind: str = EVENT) -> RawMessage:
    return RawMessage(kind, text)


def told_codes(effects: list[QueueEffect]) -> list[str]:
    return [
        effect.message.code.value
        for effect in effects
        if isinstance(effect, Send) and isinstance(effect.message, ErrorMessage)
    ]


def test_the_position_is_reported_to_clients_that_request_it() -> None:
    stage = Stage()
    assert stage.tell(Opened()) == [
        StartTimer(TimerName.WAIT, 8.0),
        Enqueue(RequestType.HALF_DUPLEX_AUDIO),
    ]
    assert stage.tell(Enqueued(place(2))) == [Send(Queued(**dict(place(2))))]
    assert stage.tell(PositionChanged(place(1))) == [Send(QueueUpdate(**dict(place(1))))]
    assert Send(QueueDone(worker_id="w")) in stage.tell(Assigned("w"))


def place(position: int, wait_s: float = 5.0) -> QueuePosition:
    return QueuePosition(ticket_id="q", position=position, estimated_wait_s=wait_s, queue_length=2)


def test_events_sent_while_waiting_are_forwarded_in_order() -> None:
    stage = Stage(Opened(), said("a"), said("b", AUDIO), Assigned("w"), said("c"))
    effects = stage.tell(WorkerConnected())
    assert [label(effect) for effect in effects] == ["Forward"] * 3 + ["StartRelay"]
    assert effects[:3] == [Forward("a"), Forward("b"), Forward("c")]


def test_a_wait_that_is_too_long_is_refused() -> None:
    stage = Stage(Opened())
    effects = stage.tell(TimerFired(TimerName.WAIT))
    assert told_codes(effects) == ["queue_full"]
    assert isinstance(effects[-1], Close) and effects[-1].code == 1013
    assert stage.machine.is_closed


def test_a_wait_that_will_be_too_long_ends_soon_but_not_before_a_worker_can_come_back() -> None:
    stage = Stage(Opened())
    assert StartTimer(TimerName.WAIT, 1.0) in stage.tell(Enqueued(place(1, 8.1)))
    stage.tell(Assigned("w"))
    assert not stage.machine.is_closed, "the session before this one has just ended"


def test_beyond_the_bound_the_oldest_held_audio_is_dropped() -> None:
    sounds = [said(str(number) * 40, AUDIO) for number in range(3)]
    stage = Stage(Opened(), said("update"), *sounds, Assigned("w"), max_audio_chars=100)
    kept = [effect for effect in stage.tell(WorkerConnected()) if isinstance(effect, Forward)]
    assert [effect.text for effect in kept] == ["update", "1" * 40, "2" * 40]


def test_too_many_held_events_end_the_connection() -> None:
    stage = Stage(Opened(), said("a"), said("b", AUDIO), said("c"), max_events=2)
    assert told_codes(stage.tell(said("d"))) == ["queue_full"]
    assert stage.machine.is_closed


def test_events_that_are_too_long_together_end_the_connection() -> None:
    stage = Stage(
        Opened(), said("a" * 60), said("b" * 60, AUDIO), max_audio_chars=50, max_chars=100
    )
    assert told_codes(stage.tell(said("c" * 60))) == ["queue_full"]
    assert stage.machine.is_closed


def test_another_worker_is_waited_for_as_long_as_the_first() -> None:
    stage = Stage(Opened(), said("a"), Assigned("w"))
    effects = stage.tell(WorkerUnreachable(WorkerUnreachableError()))
    assert [label(effect) for effect in effects] == ["StartTimer(wait)", "ReleaseWorker", "Enqueue"]
    stage.tell(Assigned("other"))
    assert stage.tell(WorkerConnected())[0] == Forward("a")


def test_only_invalid_events_leave_the_session_open() -> None:
    stage = Stage(Opened(), Assigned("w"), WorkerConnected())
    assert [label(one) for one in stage.tell(Rejected(BinaryMessageError()))] == ["Send(warning)"]
    effects = stage.tell(Rejected(TooBigError()))
    assert [label(one) for one in effects] == ["Send(error)", "ReleaseWorker", "Close"]
    ended = Stage(Opened())
    assert [label(one) for one in ended.tell(Rejected(EndedByAdminError()))] == [
        "Send(error)",
        "CancelTicket",
        "Close",
    ]


def test_a_client_that_leaves_releases_its_worker() -> None:
    assert [label(one) for one in Stage(Opened()).tell(Disconnected())] == ["CancelTicket"]
    left = Stage(Opened(), Disconnected())
    assert [label(one) for one in left.tell(Assigned("w"))] == ["ReleaseWorker"]
