"""When workers are asked how they are."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from core.errors import WorkerUnreachableError
from core.schemas.worker import WorkerHealth, WorkerStatus
from gateway_modules.queue.directory import (
    CONFIRM_PERIOD_S,
    FAST_PERIOD_S,
    POLL_PERIOD_S,
    SILENT_PERIOD_S,
    Directory,
    poll_delay_s,
)
from gateway_modules.queue.worker_client import HEALTH_TIMEOUT_S, WorkerClient
from gateway_modules.queue.worker_connection import WorkerConnection, utc_now
from gateway_modules.queue.worker_pool import WorkerPool
from settings.workers import WorkerPlace
from tests.fakes.pools import answer, ask, assigned, hear, idle_count
from tests.fakes.virtual_time import in_virtual_time, let_others_run

Script = list[WorkerStatus | None]


class ScriptedClient(WorkerClient):
    """Answers polls from a list, the last entry for ever; None is no answer."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script
        self.asked_at: list[float] = []

    async def health(self, worker: WorkerConnection) -> WorkerHealth:
        self.asked_at.append(asyncio.get_running_loop().time())
        status = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if status is None:
            raise WorkerUnreachableError()
        return answer(status)


def make(script: Script) -> tuple[WorkerPool, WorkerConnection, ScriptedClient]:
    client = ScriptedClient(script)
    pool = WorkerPool(["localhost:1"], client=client)
    return pool, pool.workers["worker_0"], client


@in_virtual_time
async def test_a_worker_is_polled_every_two_seconds_until_idle_then_every_five() -> None:
    pool, worker, client = make([None, WorkerStatus.LOADING, WorkerStatus.IDLE])
    _, future = ask(pool, "chat")
    await pool.start()
    await asyncio.sleep(3)
    assert worker.status is WorkerStatus.LOADING
    assert not future.done()
    await asyncio.sleep(2)
    assert future.result() is worker, "a poll that brings a worker into service dispatches"
    await asyncio.sleep(11)
    assert client.asked_at == [0.0, 2.0, 4.0, 9.0, 14.0]
    await pool.stop()


@in_virtual_time
async def test_a_lost_worker_is_polled_often_and_returns() -> None:
    pool, worker, client = make([WorkerStatus.IDLE, None, None, WorkerStatus.IDLE])
    await pool.start()
    await asyncio.sleep(6)
    assert worker.status is WorkerStatus.OFFLINE
    await asyncio.sleep(4)
    assert worker.status == "idle"
    assert client.asked_at == [0.0, 5.0, 7.0, 9.0]
    await pool.stop()


class StoppableWorker(httpx.AsyncBaseTransport):
    """Answers polls with two slots and the sessions it has, or nothing while it is stopped."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.sessions = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer, unless it is stopped: then leave the request to its timeout."""
        await self.may_answer.wait()
        sample = answer(slots=2, active_sessions=self.sessions)
        return httpx.Response(200, content=sample.model_dump_json())


@in_virtual_time
async def test_a_busy_worker_that_is_suspended_is_offline_within_fifteen_seconds() -> None:
    """It gets nothing new from the first miss on, and its session is not taken from it."""
    stopped = StoppableWorker()
    pool = WorkerPool(["localhost:1"], client=WorkerClient(transport=stopped))
    worker = pool.workers["worker_0"]
    await pool.start()
    await let_others_run(20)
    async with assigned(pool, "omni_duplex"):
        stopped.sessions = 1
        await asyncio.sleep(POLL_PERIOD_S + 0.5)
        assert worker.available_slots == 1
        stopped.may_answer.clear()
        await asyncio.sleep(POLL_PERIOD_S + HEALTH_TIMEOUT_S)
        _, waiting = ask(pool, "chat")
        assert worker.status is WorkerStatus.DUPLEX_ACTIVE, "it may only be busy"
        await asyncio.sleep(5)
        assert worker.status is WorkerStatus.OFFLINE
        assert [task.request_type for task in worker.tasks] == ["omni_duplex"]
        assert not waiting.done()
        stopped.may_answer.set()
        await asyncio.sleep(FAST_PERIOD_S + 0.5)
        assert worker.status is WorkerStatus.DUPLEX_ACTIVE
        assert waiting.done()
    await pool.stop()


@in_virtual_time
async def test_a_busy_worker_that_is_suspended_briefly_stays_in_service() -> None:
    stopped = StoppableWorker()
    pool = WorkerPool(["localhost:1"], client=WorkerClient(transport=stopped))
    worker = pool.workers["worker_0"]
    await pool.start()
    await let_others_run(20)
    async with assigned(pool, "omni_duplex"):
        stopped.sessions = 1
        stopped.may_answer.clear()
        await asyncio.sleep(POLL_PERIOD_S + HEALTH_TIMEOUT_S + SILENT_PERIOD_S)
        assert worker.available_slots == 0
        stopped.may_answer.set()
        await asyncio.sleep(SILENT_PERIOD_S)
        assert worker.available_slots == 1
        assert worker.service.last_error is None
    await pool.stop()


@in_virtual_time
async def test_after_a_long_session_the_worker_is_polled_until_it_is_idle() -> None:
    busy = WorkerStatus.DUPLEX_ACTIVE
    pool, worker, client = make([WorkerStatus.IDLE, busy, busy, WorkerStatus.IDLE])
    await pool.start()
    await let_others_run()
    async with assigned(pool, "omni_duplex"):
        _, future = ask(pool, "chat")
    assert not future.done()
    assert worker.status is busy
    await asyncio.sleep(CONFIRM_PERIOD_S)
    assert not future.done()
    await asyncio.sleep(2 * CONFIRM_PERIOD_S)
    assert future.result() is worker
    assert client.asked_at == [0.0, 0.0, CONFIRM_PERIOD_S, 2 * CONFIRM_PERIOD_S]
    await pool.stop()


@in_virtual_time
async def test_confirmation_polling_slows_down_after_its_limit() -> None:
    pool, worker, client = make([WorkerStatus.IDLE, WorkerStatus.DUPLEX_ACTIVE])
    await pool.start()
    await let_others_run()
    async with assigned(pool, "omni_duplex"):
        pass
    await asyncio.sleep(11)
    gaps = [
        after - before for before, after in zip(client.asked_at, client.asked_at[1:], strict=False)
    ]
    assert gaps[-2:] == [2.0, 2.0]
    assert gaps.count(CONFIRM_PERIOD_S) == 20
    assert not worker.available_slots
    await pool.stop()


@in_virtual_time
async def test_after_a_short_request_the_worker_is_free_at_once() -> None:
    pool, _, _ = make([WorkerStatus.IDLE])
    await pool.start()
    await let_others_run()
    async with assigned(pool, "streaming"):
        _, future = ask(pool, "chat")
    assert future.done()
    await pool.stop()


@in_virtual_time
async def test_an_unreachable_worker_is_polled_at_once() -> None:
    pool, worker, client = make([WorkerStatus.IDLE])
    await pool.start()
    await let_others_run()
    pool.directory.report_unreachable(worker)
    assert worker.status is WorkerStatus.OFFLINE
    await let_others_run()
    assert worker.status == "idle"
    assert client.asked_at == [0.0, 0.0]
    await pool.stop()


@in_virtual_time
async def test_stop_ends_polling_and_reports_failed_pollers() -> None:
    async def broken(worker: WorkerConnection) -> WorkerHealth:
        raise ZeroDivisionError

    directory = Directory(["h:1", "h:2"], broken, lambda: None, utc_now)
    assert not directory.is_running
    directory.start()
    await let_others_run()
    with pytest.raises(ExceptionGroup) as caught:
        await directory.stop()
    assert len(caught.value.exceptions) == 2
    assert not directory.is_running
    await directory.stop()


@in_virtual_time
async def test_workers_are_polled_independently() -> None:
    """One that takes long to answer delays nobody."""

    async def slow_first(worker: WorkerConnection) -> WorkerHealth:
        if worker.worker_id == "worker_0":
            await asyncio.sleep(5)
        return answer()

    client = WorkerClient()
    client.health = slow_first  # type: ignore[method-assign]
    pool = WorkerPool(["a:1", "b:1"], client=client)
    await pool.start()
    await asyncio.sleep(1)
    assert [worker.status == "idle" for worker in pool.workers.values()] == [False, True]
    await asyncio.sleep(5)
    assert idle_count(pool) == 2
    await pool.stop()
    assert len(asyncio.all_tasks()) == 1


def test_a_worker_whose_capacity_may_grow_is_polled_more_often() -> None:
    worker = WorkerConnection("worker_0", WorkerPlace("localhost", 22400))
    hear(worker, slots=4, capacity=4)
    assert poll_delay_s(worker, None) == POLL_PERIOD_S
    hear(worker, slots=4, capacity=2)
    assert poll_delay_s(worker, None) == FAST_PERIOD_S
