"""What people are shown of workers and of the model."""

from __future__ import annotations

from datetime import timedelta

from core.schemas.worker import ModelFacts, ModelKind, WorkerHealth
from gateway_modules.queue.directory import loaded_model
from gateway_modules.queue.worker_connection import UNANSWERED, WorkerConnection
from gateway_modules.routes.queue import load_state, worker_info
from settings.workers import WorkerPlace
from tests.fakes.pools import occupy
from tests.fakes.virtual_time import FakeClock

TINY = ModelFacts(name="Tiny", kind=ModelKind.TINY_RANDOM, parameters=3, device="cpu")


def make_worker(clock: FakeClock) -> WorkerConnection:
    return WorkerConnection("worker_0", WorkerPlace("localhost", 22400), clock)


def tell(worker: WorkerConnection, **told: object) -> None:
    usual = {"status": "healthy", "worker_status": "idle", "model_loaded": True}
    worker.observe(WorkerHealth.model_validate({**usual, **told}), worker.service.epoch)


def test_the_loaded_model_is_described() -> None:
    clock = FakeClock()
    worker = make_worker(clock)
    assert loaded_model([worker]) is None
    tell(worker, model=TINY.model_dump(mode="json"), vram_used_mb=5, vram_total_mb=9, uptime_s=60)
    assert loaded_model([worker]) == TINY
    assert TINY.is_demonstration and TINY.model_dump()["is_demonstration"] is True
    clock.advance(5)
    info = worker_info(worker, clock.now)
    assert (info.vram_used_mb, info.vram_total_mb, info.uptime_s) == (5, 9, 65)
    assert info.model == TINY and not info.can_restart
    worker.observe_miss()
    assert loaded_model([worker]) is None
    gone = worker_info(worker, clock.now)
    assert (gone.vram_used_mb, gone.uptime_s, gone.model) == (None, None, None)


def test_only_show_pieces_are_demonstrations() -> None:
    kinds = {
        kind: ModelFacts(name="x", kind=kind, device="cpu").is_demonstration for kind in ModelKind
    }
    assert {kind for kind, is_shown in kinds.items() if is_shown} == {
        ModelKind.TINY_RANDOM,
        ModelKind.NANO,
        ModelKind.CASCADE,
        ModelKind.FAKE,
    }


def test_loading_progress_is_shown() -> None:
    worker = make_worker(FakeClock())
    told = {"worker_status": "loading", "load_stage": "loading weights", "load_progress": 0.4}
    tell(worker, status="initializing", **told)
    state = load_state(worker)
    assert state is not None
    assert (state.worker_id, state.stage, state.progress) == ("worker_0", "loading weights", 0.4)
    tell(worker)
    assert load_state(worker) is None


def test_the_last_error_survives_a_restart() -> None:
    clock = FakeClock()
    worker = make_worker(clock)
    tell(worker, status="error", worker_status="error", error="out of memory", uptime_s=9)
    failed_at = clock.now
    clock.advance(30)
    tell(worker, uptime_s=1)
    info = worker_info(worker, clock.now)
    assert (info.error, info.last_error) == (None, "out of memory")
    assert info.last_error_at == failed_at
    worker.observe_miss()
    assert worker_info(worker, clock.now).last_error == UNANSWERED


def test_an_error_that_comes_again_has_the_time_of_its_latest_beginning() -> None:
    clock = FakeClock()
    worker = make_worker(clock)
    failed = {"status": "error", "worker_status": "error", "error": "out of memory"}

    def fail() -> None:
        tell(worker, **failed)

    def vanish() -> None:
        worker.mark_offline()
        worker.observe_miss()

    for fails in (worker.observe_miss, vanish, fail):
        for _ in range(2):
            tell(worker)
            clock.advance(3_600)
            began_at = clock.now
            for _ in range(2):
                fails()
                assert worker_info(worker, clock.now).last_error_at == began_at
                clock.advance(30)


def test_sessions_are_listed_oldest_first() -> None:
    clock = FakeClock()
    worker = make_worker(clock)
    tell(worker, slots=2)
    occupy(worker, "omni_duplex", "first")
    clock.advance(1)
    occupy(worker, "chat", "second")
    sessions = worker_info(worker, clock.now).sessions
    assert [one.session_id for one in sessions] == ["first", "second"]
    assert sessions[1].started_at - sessions[0].started_at == timedelta(seconds=1)


def test_a_restarting_worker_gets_no_sessions_until_its_process_is_replaced() -> None:
    clock = FakeClock()
    worker = make_worker(clock)
    tell(worker, boot_id="one", is_supervised=True)
    assert worker_info(worker, clock.now).can_restart
    worker.service.is_restarting = True
    tell(worker, boot_id="one", is_supervised=True)
    assert worker.available_slots == 0 and worker.service.is_restarting
    clock.advance(10)
    tell(worker, boot_id="two", is_supervised=True)
    assert worker.available_slots == 1 and not worker.service.is_restarting


def test_a_restart_requested_before_the_first_answer_ends_with_it() -> None:
    worker = make_worker(FakeClock())
    worker.service.is_restarting = True
    tell(worker, boot_id="one", is_supervised=True, is_draining=True)
    assert worker.available_slots == 0, "the process that is about to end"
    worker.observe_miss()
    tell(worker, boot_id="two", is_supervised=True)
    assert worker.available_slots == 1 and not worker.service.is_restarting

    other = make_worker(FakeClock())
    other.service.is_restarting = True
    tell(other, boot_id="two", is_supervised=True)
    assert other.available_slots == 1 and not other.service.is_restarting
