"""The gateway's side, row by row: queue, worker, relay; every worker is released once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from core.errors import (
    BinaryMessageError,
    QueueCancelledError,
    QueueFullError,
    WorkerLostError,
    WorkerUnreachableError,
)
from core.protocols.effects import (
    Close,
    ConnectWorker,
    Enqueue,
    Forward,
    ReleaseWorker,
    Send,
)
from core.protocols.events import (
    Assigned,
    Disconnected,
    Enqueued,
    Event,
    Opened,
    PositionChanged,
    QueueRefused,
    RawMessage,
    Rejected,
    ShuttingDown,
    TimerFired,
    TimerName,
    TurnEnded,
    WorkerClosed,
    WorkerConnected,
    WorkerFailed,
    WorkerUnreachable,
)
from core.protocols.queueing import TABLE, QueueingLimits, QueueingMachine
from core.schemas.chat import ChatDone
from core.schemas.queue import (
    ErrorMessage,
    Queued,
    QueueDone,
    QueuePosition,
    QueueUpdate,
    RequestType,
)
from tests.fakes.scenes import Scene

LIVE = RequestType.OMNI_DUPLEX
TURNS = RequestType.STREAMING
PLACE = QueuePosition(ticket_id="q_1", position=2, estimated_wait_s=8.0, queue_length=3)


class Stage(Scene):
    without_row = ([],)

    def __init__(self, request_type: RequestType, phase: str = "open") -> None:
        super().__init__(QueueingMachine("id_1", request_type), TABLE, TypeAdapter(Any))
        path: tuple[Event, ...] = (
            Opened() if request_type is LIVE else RawMessage("prefill", "held"),
            Assigned("worker_0"),
            WorkerConnected(),
        )
        for event in path[: ["open", "waiting", "connecting", "relaying"].index(phase)]:
            self.tell(event)
        assert self.machine.phase == phase

    def say(self, message_type: str, after_s: float = 0.0, **fields: Any) -> list[str]:
        return self.tell(RawMessage(message_type, f'{{"type": "{message_type}"}}'), after_s)


def test_a_live_socket_queues_at_once() -> None:
    stage = Stage(LIVE)
    assert stage.tell(Opened()) == ["Enqueue"]
    assert stage.only(Enqueue) == Enqueue(LIVE)
    assert stage.tell(Enqueued(PLACE)) == ["Send(queued)", "StartTimer(queue_update)"]
    assert stage.only(Queued).eta_seconds == 8.0
    assert stage.tell(TimerFired(TimerName.QUEUE_UPDATE)) == [
        "ReportPosition",
        "StartTimer(queue_update)",
    ]
    assert stage.tell(PositionChanged(PLACE)) == ["Send(queue_update)", "StartTimer(queue_update)"]
    assert stage.only(QueueUpdate).position == 2
    assert stage.tell(Assigned("worker_7")) == [
        "StopTimer(queue_update)",
        "Send(queue_done)",
        "ConnectWorker",
    ]
    assert stage.only(QueueDone) == QueueDone(worker_id="worker_7")
    assert isinstance(stage.effects[-1], ConnectWorker)
    assert stage.tell(WorkerConnected()) == ["StartRelay"]
    assert stage.tell(TurnEnded()) == []
    assert stage.tell(WorkerClosed(1000, "")) == ["ReleaseWorker", "Close"]
    assert stage.only(ReleaseWorker).is_clean


@pytest.mark.parametrize("phase", ["waiting", "connecting"])
def test_one_early_prepare_is_held_and_audio_is_dropped(phase: str) -> None:
    stage = Stage(LIVE, phase)
    assert stage.say("prepare") == []
    assert stage.say("prepare") == ["Send(warning)"]
    assert stage.say("audio_chunk") == []
    if phase == "waiting":
        stage.tell(Assigned("worker_0"))
    assert stage.tell(WorkerConnected()) == ["Forward", "StartRelay"]
    assert stage.only(Forward).text == '{"type": "prepare"}'


def test_streaming_queues_for_each_turn() -> None:
    stage = Stage(TURNS)
    assert stage.tell(Opened()) == ["StartTimer(idle)"]
    for _ in range(2):
        assert stage.tell(RawMessage("prefill", "history")) == ["StopTimer(idle)", "Enqueue"]
        assert stage.only(Enqueue) == Enqueue(TURNS, "history")
        assert stage.say("generate") == ["Send(warning)"]
        stage.tell(Assigned("worker_0"))
        assert stage.tell(WorkerConnected()) == ["Forward", "StartRelay"]
        assert stage.only(Forward).text == "history"
        assert stage.tell(TurnEnded()) == [
            "ReleaseWorker",
            "StopTimer(queue_update)",
            "StartTimer(idle)",
        ]
        assert stage.only(ReleaseWorker).is_clean
    assert stage.say("close") == ["Close"]


def test_streaming_between_turns() -> None:
    stage = Stage(TURNS)
    assert stage.say("generate") == ["Send(warning)"]
    assert stage.say("stop") == ["Send(warning)"]
    assert stage.say("other") == ["Send(warning)"]
    assert stage.tell(TimerFired(TimerName.IDLE)) == ["Send(error)", "Close"]


def test_stop_leaves_the_queue() -> None:
    assert Stage(LIVE, "waiting").say("stop") == ["Send(stopped)", "CancelTicket", "Close"]
    assert Stage(LIVE, "connecting").say("stop") == ["Send(stopped)", "ReleaseWorker", "Close"]
    assert Stage(LIVE, "waiting").say("close") == ["CancelTicket", "Close"]
    stage = Stage(TURNS, "waiting")
    assert stage.say("stop")[:2] == ["CancelTicket", "Send(done)"]
    assert stage.machine.phase == "open"
    stage = Stage(TURNS, "connecting")
    assert stage.say("stop")[:2] == ["ReleaseWorker", "Send(done)"]


@pytest.mark.parametrize(
    ("phase", "free_all"), [("waiting", "CancelTicket"), ("connecting", "ReleaseWorker")]
)
def test_a_chat_stopped_in_the_queue_ends(phase: str, free_all: str) -> None:
    stage = Stage(RequestType.CHAT, phase)
    assert stage.say("stop") == ["Send(done)", free_all, "Close"]
    assert stage.only(Send).message == ChatDone(stopped=True)
    assert stage.machine.is_closed


@pytest.mark.parametrize("kind", [LIVE, TURNS])
@pytest.mark.parametrize("phase", ["waiting", "connecting"])
def test_unknown_messages_are_warnings_in_the_queue_too(kind: RequestType, phase: str) -> None:
    assert Stage(kind, phase).say("other") == ["Send(warning)"]


def test_a_late_worker_is_released() -> None:
    stage = Stage(LIVE, "waiting")
    assert stage.tell(Disconnected()) == ["CancelTicket"]
    assert stage.machine.is_closed
    assert stage.tell(Assigned("worker_0")) == ["ReleaseWorker"]
    stage = Stage(TURNS, "waiting")
    stage.say("stop")
    assert stage.tell(Assigned("worker_0")) == ["ReleaseWorker"]
    assert stage.machine.phase == "open"


@pytest.mark.parametrize(
    ("error", "code"), [(QueueFullError(), 1013), (QueueCancelledError(), 1000)]
)
def test_refusals(error: Any, code: int) -> None:
    stage = Stage(LIVE, "waiting")
    assert stage.tell(QueueRefused(error)) == ["Send(error)", "Close"]
    assert stage.only(Close).code == code
    assert stage.only(ErrorMessage).code == error.code


def test_a_worker_that_fails() -> None:
    stage = Stage(LIVE, "connecting")
    told = stage.tell(WorkerFailed(WorkerUnreachableError()))
    assert told == ["Send(error)", "ReleaseWorker", "Close"]
    stage = Stage(LIVE, "relaying")
    assert stage.tell(WorkerFailed(WorkerLostError())) == ["Send(error)", "ReleaseWorker", "Close"]
    assert stage.only(ErrorMessage).code == "worker_lost"
    assert not stage.only(ReleaseWorker).is_clean


@pytest.mark.parametrize(("kind", "history"), [(LIVE, None), (TURNS, "held")])
def test_an_unreachable_worker_is_replaced_by_another(
    kind: RequestType, history: str | None
) -> None:
    stage = Stage(kind, "connecting")
    for _ in range(QueueingLimits().max_moves):
        missed = WorkerUnreachable(WorkerUnreachableError(), order=7)
        assert stage.tell(missed) == ["ReleaseWorker", "Enqueue"]
        assert stage.only(ReleaseWorker).is_clean, "the worker was given nothing"
        assert stage.only(Enqueue) == Enqueue(kind, history, order=7)
        stage.tell(Assigned("worker_1"))
    told = stage.tell(WorkerUnreachable(WorkerUnreachableError()))
    assert told == ["Send(error)", "ReleaseWorker", "Close"]
    assert stage.only(ErrorMessage).code == "worker_unreachable"


def test_held_messages_go_to_the_worker_that_is_reached() -> None:
    stage = Stage(LIVE, "connecting")
    stage.say("prepare")
    stage.tell(WorkerUnreachable(WorkerUnreachableError()))
    stage.tell(Assigned("worker_1"))
    assert stage.tell(WorkerConnected()) == ["Forward", "StartRelay"]
    assert stage.only(Forward).text == '{"type": "prepare"}'


def test_the_workers_close_code_is_passed_on() -> None:
    for given_code, passed_on in ((1007, 1007), (1000, 1000), (4999, 1000)):
        stage = Stage(LIVE, "relaying")
        stage.tell(WorkerClosed(given_code, "why"))
        assert (stage.only(Close).code, stage.only(Close).reason) == (passed_on, "why")
    stage = Stage(TURNS, "relaying")
    stage.tell(WorkerClosed(1011))
    assert not stage.only(ReleaseWorker).is_clean, "the turn did not end well"


def test_a_client_that_leaves() -> None:
    stage = Stage(LIVE, "connecting")
    assert stage.tell(Disconnected()) == ["ReleaseWorker"]
    assert stage.only(ReleaseWorker).is_clean, "the worker was given nothing"
    stage = Stage(TURNS, "relaying")
    assert stage.tell(Disconnected()) == ["ReleaseWorker"]
    assert not stage.only(ReleaseWorker).is_clean


def test_shutdown_and_bad_messages() -> None:
    ways = {"open": [], "waiting": ["CancelTicket"], "relaying": ["ReleaseWorker"]}
    for phase, free_all in ways.items():
        assert Stage(LIVE, phase).tell(ShuttingDown()) == ["Send(error)", *free_all, "Close"]
        told = Stage(LIVE, phase).tell(Rejected(BinaryMessageError()))
        assert told == ["Send(error)", *free_all, "Close"]


EVENTS: list[Event] = [
    Opened(),
    *(
        RawMessage(kind, kind)
        for kind in "prepare prefill generate stop close audio_chunk heartbeat other".split()
    ),
    Enqueued(PLACE),
    PositionChanged(PLACE),
    QueueRefused(QueueFullError()),
    Assigned("worker_0"),
    WorkerConnected(),
    WorkerUnreachable(WorkerUnreachableError()),
    WorkerFailed(WorkerLostError()),
    WorkerClosed(1000),
    TurnEnded(),
    Rejected(BinaryMessageError()),
    ShuttingDown(),
    Disconnected(),
    *(TimerFired(name) for name in TimerName),
]


@given(st.sampled_from([LIVE, TURNS]), st.lists(st.sampled_from(EVENTS), max_size=30))
def test_every_worker_is_released_exactly_once(kind: RequestType, events: list[Event]) -> None:
    stage = Stage(kind)
    queued = assigned = 0  # as the pool sees it
    for event in [*events, Disconnected()]:
        if isinstance(event, Assigned):
            if not queued:
                continue  # the pool assigns only what was asked for
            queued, assigned = 0, assigned + 1
        if isinstance(event, QueueRefused):
            queued = 0
        labels = stage.tell(event)
        queued += labels.count("Enqueue") - (labels.count("CancelTicket") and queued)
        assigned -= labels.count("ReleaseWorker")
        assert assigned in (0, 1)
        assert labels.count("Close") <= 1
    assert stage.machine.is_closed
    assert (queued, assigned) == (0, 0)
