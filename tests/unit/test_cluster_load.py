"""What a session of the cluster's benchmark counts as late."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import TypeVar

import pytest

from benchmarks.cluster import UNIT_S, LoadSession
from minicpmo_live.events import QueueDone, Result, WarningMessage

Event = TypeVar("Event")


def event(kind: type[Event], **known: object) -> Event:
    """Return an event with these fields; the others are None."""
    return kind(**{each.name: known.get(each.name) for each in fields(kind)})  # type: ignore[arg-type]


@pytest.mark.parametrize(("latency_s", "late"), [(0.5, 0), (1.5, 1), (2.5, 1)])
def test_a_result_after_the_next_unit_was_sent_is_late(latency_s: float, late: int) -> None:
    session = LoadSession()
    begin_s = time.monotonic()
    for second in range(3):
        session.note_sent(begin_s + second * UNIT_S)
    session.take(event(Result), begin_s + latency_s)
    assert session.latencies_s == [pytest.approx(latency_s)] and session.late == late


def test_units_without_a_result_are_late() -> None:
    session = LoadSession()
    now_s = time.monotonic()
    for age_s in (3.5, 2.5, 1.5, 0.5):
        session.note_sent(now_s - age_s)
    assert (session.late, session.units) == (3, 3)
    session.take(event(WarningMessage, code="late_chunk"), now_s)
    assert (session.late, session.units) == (3, 3)
    session.take(event(Result), now_s)
    assert session.latencies_s == [pytest.approx(2.5)] and session.units == 3


def test_the_seat_is_the_one_that_the_queue_assigned() -> None:
    session = LoadSession()
    session.take(event(QueueDone, worker_id="seat_1"), 0.0)
    assert session.seat == "seat_1"
