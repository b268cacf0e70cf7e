"""What health may do to a worker, and what it may not: it never takes a session from anybody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from core.schemas.queue import RequestType
from core.schemas.worker import WorkerStatus
from gateway_modules.queue.worker_connection import STATUS_OF_REQUEST, WorkerConnection
from gateway_modules.routes.queue import worker_info
from settings.workers import WorkerPlace
from tests.fakes.pools import answer, freshest, hear, occupy
from tests.fakes.virtual_time import FakeClock

BUSY = [status for status in WorkerStatus if status.is_busy]


def make_worker(clock: FakeClock | None = None, *, slots: int = 1) -> WorkerConnection:
    worker = WorkerConnection("worker_0", WorkerPlace("localhost", 22400), clock or FakeClock())
    hear(worker, slots=slots)
    return worker


def test_an_unpolled_worker_is_offline() -> None:
    worker = WorkerConnection("worker_0", WorkerPlace("localhost", 22400))
    assert worker.status is WorkerStatus.OFFLINE
    assert worker.available_slots == 0


@pytest.mark.parametrize("status", WorkerStatus)
def test_without_our_sessions_a_worker_has_the_status_it_reports(status: WorkerStatus) -> None:
    worker = make_worker()
    hear(worker, status)
    assert worker.status is status
    assert bool(worker.available_slots) == (status is WorkerStatus.IDLE)


@pytest.mark.parametrize("told", [WorkerStatus.IDLE, *BUSY])
def test_a_worker_with_our_session_is_busy_whatever_it_reports(told: WorkerStatus) -> None:
    worker = make_worker()
    occupy(worker, "duplex", "s")
    hear(worker, told)
    assert worker.status is WorkerStatus.DUPLEX_ACTIVE
    assert worker.tasks[0].session_id == "s"


def test_sessions_are_limited_by_the_measured_capacity() -> None:
    worker = make_worker(slots=4)
    assert worker.available_slots == 4, "a worker that does not say takes as many as it has slots"
    hear(worker, slots=4, capacity=2)
    assert worker.available_slots == 2
    occupy(worker, "duplex", "a")
    assert worker.available_slots == 1
    occupy(worker, "duplex", "b")
    hear(worker, slots=4, capacity=1, active_sessions=2)
    assert worker.available_slots == 0 and len(worker.tasks) == 2, "nobody is sent away"
    hear(worker, slots=4, capacity=9, active_sessions=2)
    assert worker.available_slots == 2


def test_a_draining_worker_gets_no_new_sessions() -> None:
    worker = make_worker()
    hear(worker)
    assert worker.available_slots
    hear(worker, is_draining=True)
    assert not worker.available_slots and not worker.is_in_service
    hear(worker)
    assert worker.available_slots


@pytest.mark.parametrize("told", [WorkerStatus.LOADING, WorkerStatus.ERROR])
def test_a_failed_workers_session_lasts_until_it_is_released(told: WorkerStatus) -> None:
    worker = make_worker()
    occupy(worker, "chat", "s")
    hear(worker, told)
    assert worker.status is told
    assert worker.tasks[0].session_id == "s"
    worker.release(worker.tasks[0])
    assert worker.status is told
    hear(worker)
    assert worker.status == "idle"


def test_an_unresponsive_idle_worker_gets_no_sessions() -> None:
    worker = make_worker()
    worker.observe_miss()
    assert worker.status is WorkerStatus.OFFLINE
    hear(worker)
    assert worker.status == "idle"


def test_a_busy_worker_is_offline_after_three_misses_in_a_row() -> None:
    worker = make_worker()
    occupy(worker, "chat", "s")
    worker.observe_miss()
    worker.observe_miss()
    hear(worker)
    worker.observe_miss()
    worker.observe_miss()
    assert worker.status is WorkerStatus.BUSY_CHAT
    worker.observe_miss()
    assert worker.status is WorkerStatus.OFFLINE
    assert worker.tasks[0].session_id == "s"
    worker.release(worker.tasks[0])
    assert worker.status is WorkerStatus.OFFLINE


@pytest.mark.parametrize("told", BUSY)
def test_an_answer_from_before_the_release_does_not_make_it_busy(told: WorkerStatus) -> None:
    worker = make_worker()
    occupy(worker, "chat")
    epoch = worker.service.epoch
    worker.release(worker.tasks[0])
    worker.observe(answer(told), epoch)
    assert worker.status == "idle"
    assert worker.service.last_heartbeat is not None


def test_an_answer_from_before_a_failure_does_not_clear_it() -> None:
    worker = make_worker()
    epoch = worker.service.epoch
    worker.mark_offline()
    worker.observe(answer(), epoch)
    assert worker.status is WorkerStatus.OFFLINE
    hear(worker)
    assert worker.status == "idle"


def test_a_session_that_must_be_confirmed_keeps_its_slot_until_the_worker_is_idle() -> None:
    worker = make_worker()
    occupy(worker, "duplex")
    worker.release(worker.tasks[0], must_confirm=True)
    assert worker.status is WorkerStatus.DUPLEX_ACTIVE
    assert worker.available_slots == 0
    assert worker.tasks == []
    hear(worker, WorkerStatus.DUPLEX_ACTIVE)
    assert worker.available_slots == 0
    hear(worker)
    assert worker.status == "idle"
    assert worker.available_slots == 1


def test_with_several_slots_the_count_of_sessions_confirms() -> None:
    worker = make_worker(slots=3)
    for number in range(3):
        occupy(worker, "duplex", ticket_id=f"t{number}")
    worker.release(worker.tasks[1], must_confirm=True)
    hear(worker, WorkerStatus.DUPLEX_ACTIVE, slots=3, active_sessions=3)
    assert worker.available_slots == 0
    hear(worker, WorkerStatus.DUPLEX_ACTIVE, slots=3, active_sessions=2)
    assert worker.available_slots == 1 and len(worker.tasks) == 2


def test_foreign_sessions_take_the_least_valuable_slots() -> None:
    clock = FakeClock()
    worker = make_worker(clock, slots=3)
    worker.remember("old")
    clock.advance(1)
    worker.remember("new")
    hear(worker, WorkerStatus.BUSY_CHAT, slots=3, active_sessions=2)
    assert worker.available_slots == 1 and worker.cache_for("", 1) == "new"
    assert worker.cache_for("new", 1) == "new" and worker.cache_for("old", 1) == "new"
    hear(worker, WorkerStatus.BUSY_CHAT, slots=3)
    assert worker.available_slots == 0, "it does not say how many"
    assert worker.status is WorkerStatus.BUSY_CHAT


def test_slots_are_added_at_once_and_removed_when_free() -> None:
    clock = FakeClock()
    worker = make_worker(clock, slots=2)
    taken = [occupy(worker, "chat", ticket_id=name) for name in "ab"]
    hear(worker, WorkerStatus.BUSY_CHAT, slots=1)
    assert len(worker.slot_caches) == 2
    for ticket in taken:
        worker.release(ticket)
        assert len(worker.slot_caches) == 1
    assert worker.available_slots == 1
    hear(worker, slots=3)
    assert worker.available_slots == 3
    clock.advance(1)
    worker.remember("dropped")
    clock.advance(1)
    worker.remember("kept")
    hear(worker, slots=1)
    assert freshest(worker).cached_hash == "kept"


def test_the_oldest_session_determines_the_status() -> None:
    clock = FakeClock()
    worker = make_worker(clock, slots=2)
    ticket = occupy(worker, "chat", "first", ticket_id="1")
    clock.advance(5)
    occupy(worker, "duplex", "second", ticket_id="2")
    oldest = worker.oldest_task
    assert oldest is not None
    assert (oldest.session_id, oldest.request_type) == ("first", "chat")
    assert oldest.started_at == clock.now - timedelta(seconds=5)
    worker.release(ticket)
    assert worker.status is WorkerStatus.DUPLEX_ACTIVE
    assert [task.started_at for task in worker.tasks] == [clock.now]


# Caches.


def remember(worker: WorkerConnection) -> None:
    worker.remember("A")


def test_a_restart_empties_the_caches() -> None:
    clock = FakeClock()
    worker = make_worker(clock)
    hear(worker, boot_id="one")
    remember(worker)
    hear(worker, boot_id="one")
    assert freshest(worker).cached_hash == "A"
    hear(worker, boot_id="two")
    assert freshest(worker).cached_hash is None


def test_loading_and_an_empty_cache_empty_the_caches() -> None:
    worker = make_worker()
    remember(worker)
    hear(worker, kv_cache_length=0)
    assert freshest(worker).cached_hash is None
    remember(worker)
    hear(worker, WorkerStatus.LOADING)
    assert freshest(worker).cached_hash is None


def test_an_empty_cache_says_nothing_about_a_slot_in_use() -> None:
    worker = make_worker(slots=2)
    ticket = occupy(worker, "streaming")
    ticket.history_hash, ticket.is_cache_hit = "A", True
    hear(worker, WorkerStatus.BUSY_STREAMING, slots=2, kv_cache_length=0)
    assert worker.slot_caches[0][0] == "A"


def test_a_history_that_ends_twice_is_in_one_cache() -> None:
    clock = FakeClock()
    worker = make_worker(clock, slots=2)
    for _ in range(2):
        clock.advance(1)
        worker.remember("A")
    assert worker.slot_caches == [("A", clock.now), (None, None)]
    assert worker.cache_for("B", 2) is None


def test_a_stale_answer_about_an_empty_cache_is_ignored() -> None:
    worker = make_worker()
    occupy(worker, "streaming")
    epoch = worker.service.epoch
    worker.release(worker.tasks[0])
    remember(worker)
    worker.observe(answer(WorkerStatus.BUSY_STREAMING, kv_cache_length=0), epoch)
    assert freshest(worker).cached_hash == "A"


def test_worker_info_contains_what_the_worker_reported() -> None:
    worker = make_worker()
    told = answer().model_copy(
        update={"gpu_id": 3, "total_requests": 9, "avg_inference_time_ms": 1.5, "error": "hot"}
    )
    worker.observe(told, worker.service.epoch)
    info = worker_info(worker, FakeClock().now)
    assert (info.gpu_id, info.total_requests, info.avg_inference_time_ms) == (3, 9, 1.5)
    assert (info.error, info.slots, info.free_slots) == ("hot", 1, 1)
    assert info.last_heartbeat == FakeClock().now


def test_every_request_type_has_a_busy_status() -> None:
    assert set(STATUS_OF_REQUEST) == set(RequestType)
    assert all(status.is_busy for status in STATUS_OF_REQUEST.values())
