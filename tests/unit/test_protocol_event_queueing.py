"""OpenAI's sockets at the gateway: the wait, its end, and held events."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from core.errors import BinaryMessageError, EndedByAdminError, TooBigError, WorkerUnreachableError
from core.protocols.effects import Close, Enqueue, Forward, Send, StartTimer
from core.protocols.events import (
    Assigned,
    Disconnected,
    Enqueued,
    Event,
    Opened,
    PositionChanged,
    RawMessage,
    Rejected,
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
from tests.fakes.scenes import Scene

QUEUE_FULL = ["Send(error)", "CancelTicket", "Close"]


class Stage(Scene):
    without_row = ([],)

    def __init__(self, *events: Event, **limits: Any) -> None:
        wait = WaitLimits(**limits)
        machine = EventQueueingMachine("realtime_1", RequestType.HALF_DUPLEX_AUDIO, wait=wait)
        super().__init__(machine, EVENT_TABLE, TypeAdapter(Any))
        for event in events:
            self.tell(event)

    @property
    def forwarded(self) -> list[str]:
        return [effect.text for effect in self.effects if isinstance(effect, Forward)]


def said(text: str, kind: str = EVENT) -> RawMessage:
    return RawMessage(kind, text)


def place(position: int, wait_s: float = 5.0) -> QueuePosition:
    return QueuePosition(ticket_id="q", position=position, estimated_wait_s=wait_s, queue_length=2)


def test_the_position_is_reported_to_clients_that_request_it() -> None:
    stage = Stage(Opened())
    assert stage.effects == [
        StartTimer(TimerName.WAIT, 8.0),
        Enqueue(RequestType.HALF_DUPLEX_AUDIO),
    ]
    stage.tell(Enqueued(place(2)))
    assert stage.effects == [Send(Queued(**dict(place(2))))]
    stage.tell(PositionChanged(place(1)))
    assert stage.effects == [Send(QueueUpdate(**dict(place(1))))]
    stage.tell(Assigned("w"))
    assert stage.sent == [QueueDone(worker_id="w")]


def test_events_sent_while_waiting_are_forwarded_in_order() -> None:
    stage = Stage(Opened(), said("a"), said("b", AUDIO), Assigned("w"), said("c"))
    assert stage.tell(WorkerConnected()) == ["Forward"] * 3 + ["StartRelay"]
    assert stage.forwarded == ["a", "b", "c"]


def test_a_wait_that_is_too_long_is_refused() -> None:
    stage = Stage(Opened())
    assert stage.fire("wait") == QUEUE_FULL
    assert (stage.only(ErrorMessage).code, stage.only(Close).code) == ("queue_full", 1013)
    assert stage.machine.is_closed


def test_a_wait_that_will_be_too_long_ends_soon_but_not_before_a_worker_can_come_back() -> None:
    stage = Stage(Opened(), Enqueued(place(1, 8.1)))
    assert StartTimer(TimerName.WAIT, 1.0) in stage.effects
    stage.tell(Assigned("w"))
    assert not stage.machine.is_closed, "the session before this one has just ended"


def test_beyond_the_bound_the_oldest_held_audio_is_dropped() -> None:
    sounds = [said(str(number) * 40, AUDIO) for number in range(3)]
    stage = Stage(Opened(), said("update"), *sounds, Assigned("w"), max_audio_chars=100)
    stage.tell(WorkerConnected())
    assert stage.forwarded == ["update", "1" * 40, "2" * 40]


def test_too_many_held_events_end_the_connection() -> None:
    stage = Stage(Opened(), said("a"), said("b", AUDIO), said("c"), max_events=2)
    assert stage.tell(said("d")) == QUEUE_FULL
    assert stage.only(ErrorMessage).code == "queue_full"
    assert stage.machine.is_closed


def test_events_that_are_too_long_together_end_the_connection() -> None:
    held = (said("a" * 60), said("b" * 60, AUDIO))
    stage = Stage(Opened(), *held, max_audio_chars=50, max_chars=100)
    assert stage.tell(said("c" * 60)) == QUEUE_FULL
    assert stage.only(ErrorMessage).code == "queue_full"
    assert stage.machine.is_closed


def test_another_worker_is_waited_for_as_long_as_the_first() -> None:
    stage = Stage(Opened(), said("a"), Assigned("w"))
    told = stage.tell(WorkerUnreachable(WorkerUnreachableError()))
    assert told == ["StartTimer(wait)", "ReleaseWorker", "Enqueue"]
    stage.tell(Assigned("other"))
    assert stage.tell(WorkerConnected())[0] == "Forward" and stage.forwarded == ["a"]


def test_only_invalid_events_leave_the_session_open() -> None:
    stage = Stage(Opened(), Assigned("w"), WorkerConnected())
    assert stage.tell(Rejected(BinaryMessageError())) == ["Send(warning)"]
    assert stage.tell(Rejected(TooBigError())) == ["Send(error)", "ReleaseWorker", "Close"]
    ended = Stage(Opened())
    assert ended.tell(Rejected(EndedByAdminError())) == ["Send(error)", "CancelTicket", "Close"]


def test_a_client_that_leaves_releases_its_worker() -> None:
    stage = Stage(Opened())
    assert stage.tell(Disconnected()) == ["CancelTicket"]
    assert stage.tell(Assigned("w")) == ["ReleaseWorker"]
