"""Workers come, go, and say what they are called."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import WorkerUnreachableError
from core.schemas.worker import WorkerHealth
from gateway_modules.queue import directory
from gateway_modules.queue.directory import LOOK_UP_PERIOD_S
from gateway_modules.queue.worker_client import WorkerClient
from gateway_modules.queue.worker_connection import WorkerConnection
from gateway_modules.queue.worker_pool import WorkerPool
from settings.workers import WorkerPlace, worker_place
from tests.fakes.pools import Outcome, answer, ask, freshest, idle_count, set_cache
from tests.fakes.virtual_time import VirtualTimeLoop, in_virtual_time

PORT = 22_400


class Network(WorkerClient):
    """Workers by address, each with the name and boot id that it tells; and what DNS says."""

    def __init__(self, *hosts: str) -> None:
        super().__init__()
        self.told: dict[str, tuple[str | None, str]] = dict.fromkeys(hosts, (None, "first"))
        self.dns: list[str] | Exception = []

    async def health(self, worker: WorkerConnection) -> WorkerHealth:
        """Answer as the worker at the address does."""
        if worker.place.host not in self.told:
            raise WorkerUnreachableError()
        name, boot_id = self.told[worker.place.host]
        return answer(boot_id=boot_id).model_copy(update={"worker_id": name})

    async def resolve(self, name: str, port: int) -> list[str]:
        if isinstance(self.dns, Exception):
            raise self.dns
        return list(self.dns)


def pool_of(network: Network, *listed: str) -> WorkerPool:
    pool = WorkerPool(listed, client=network)
    pool.directory.resolve = network.resolve
    return pool


def places(pool: WorkerPool) -> list[str]:
    return [worker.place.host for worker in pool.workers.values()]


@in_virtual_time
async def test_a_worker_that_joins_is_assigned_waiting_requests() -> None:
    pool = pool_of(Network("a", "b"), "a")
    await pool.start()
    await asyncio.sleep(1)
    (_, first), (_, second) = ask(pool, "chat"), ask(pool, "chat")
    assert first.done() and not second.done()
    await pool.directory.replace(["a", "b"])
    await asyncio.sleep(1)
    assert second.result().place.host == "b"
    await pool.stop()


@in_virtual_time
async def test_a_removed_worker_finishes_its_sessions() -> None:
    pool = pool_of(Network("a", "b"), "a", "b")
    await pool.start()
    await asyncio.sleep(1)
    talk, running = ask(pool, "duplex")
    left = running.result()
    await pool.directory.replace(["b"])
    assert left in pool.workers.values() and left.is_retiring
    assert ask(pool, "duplex")[1].result().place.host == "b"
    pool.leave(talk)
    assert places(pool) == ["b"]
    await asyncio.sleep(60)  # nobody asks a worker that was forgotten
    assert places(pool) == ["b"]
    await pool.stop()
    assert len(asyncio.all_tasks()) == 1


@in_virtual_time
async def test_a_worker_listed_again_before_it_left_is_retained() -> None:
    pool = pool_of(Network("a"), "a")
    await pool.start()
    await asyncio.sleep(1)
    _, running = ask(pool, "duplex")
    await pool.directory.replace([])
    await pool.directory.replace(["a"])
    assert list(pool.workers.values()) == [running.result()]
    assert not running.result().is_retiring
    await pool.stop()


@in_virtual_time
async def test_another_process_at_the_address_has_no_caches() -> None:
    network = Network("a")
    pool = pool_of(network, "a")
    await pool.start()
    await asyncio.sleep(1)
    (worker,) = pool.workers.values()
    set_cache(worker, "history")
    await asyncio.sleep(6)
    assert freshest(worker).cached_hash == "history"
    network.told["a"] = (None, "second")
    await asyncio.sleep(6)
    assert freshest(worker).cached_hash is None
    await pool.stop()


@in_virtual_time
async def test_workers_follow_dns() -> None:
    network = Network("10.0.0.1", "10.0.0.2", "10.0.0.3")
    pool = pool_of(network, f"dns:worker:{PORT}")
    network.dns = OSError("no resolver")
    await pool.start()
    await asyncio.sleep(LOOK_UP_PERIOD_S + 1)
    assert not pool.directory.is_known  # so that no session is said to have expired
    for dns, expected in (
        ([], []),
        (["10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.2"]),
        (["10.0.0.3", "10.0.0.2"], ["10.0.0.2", "10.0.0.3"]),
        (OSError("no resolver"), ["10.0.0.2", "10.0.0.3"]),  # what was known stays true
        (UnicodeError("label empty or too long"), ["10.0.0.2", "10.0.0.3"]),
        ([], []),
    ):
        network.dns = dns
        await asyncio.sleep(LOOK_UP_PERIOD_S + 1)
        assert places(pool) == expected, dns
        assert idle_count(pool) == len(expected)
        assert pool.directory.is_known
    assert pool.is_open
    await pool.stop()


@in_virtual_time
async def test_a_worker_takes_the_name_it_reports() -> None:
    network = Network("a", "b", "c")
    network.told |= {"a": ("worker_1", "x"), "b": ("gpu-7", "x"), "c": ("gpu-7", "x")}
    pool = pool_of(network, "a", "b", "c")
    assert list(pool.workers) == ["worker_0", "worker_1", "worker_2"]
    await pool.start()
    await asyncio.sleep(1)
    assert {name: worker.place.host for name, worker in pool.workers.items()} == {
        "worker_1": "a",
        "gpu-7": "b",
        "worker_2": "c",  # the name that it says is another's
    }
    problem, _ = pool.workers["worker_2"].service.last_error or ("", None)
    assert problem == f"b:{PORT} is called gpu-7 too; start one with --name."
    await pool.directory.replace(["a", "c"])
    await asyncio.sleep(10)
    assert set(pool.workers) == {"worker_1", "gpu-7"}
    await pool.stop()


@in_virtual_time
async def test_a_worker_is_not_drained_for_another_with_the_name_of_its_place() -> None:
    network = Network("b")  # "a" is worker_0 until it answers
    network.told["b"] = ("worker_0", "first")
    pool = pool_of(network, "a", "b")
    pool.directory.drained.add("worker_0")
    await pool.start()
    await asyncio.sleep(1)
    network.told["a"] = ("gpu-7", "first")
    await asyncio.sleep(LOOK_UP_PERIOD_S)
    drained = {name: worker.is_draining for name, worker in pool.workers.items()}
    assert drained == {"gpu-7": False, "worker_0": True}
    await pool.stop()


@in_virtual_time
async def test_a_worker_takes_the_name_of_the_one_it_replaces_while_that_has_sessions() -> None:
    network = Network("a", "b")
    network.told |= {"a": ("seat_0", "x"), "b": ("seat_0", "x")}
    pool = pool_of(network, "a")
    await pool.start()
    await asyncio.sleep(1)
    talk, running = ask(pool, "duplex")
    left = running.result()
    await pool.directory.replace(["b"])
    await asyncio.sleep(10)  # both are polled
    assert pool.workers["seat_0"].place.host == "b"
    assert pool.workers["seat_0"].service.last_error is None
    assert pool.workers[f"a:{PORT}"] is left and left.service.last_error is None
    pool.leave(talk)
    await asyncio.sleep(1)
    assert list(pool.workers) == ["seat_0"]
    await pool.stop()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("gpu-1", WorkerPlace("gpu-1", PORT)),
        ("GPU-1:7", WorkerPlace("gpu-1", 7)),
        ("[::1]:7", WorkerPlace("::1", 7)),
        ("dns:worker:7", WorkerPlace("worker", 7, True)),
        ("dns:7", WorkerPlace("dns", 7)),
    ],
)
def test_worker_addresses_are_parsed(text: str, place: WorkerPlace) -> None:
    assert worker_place(text) == place


@pytest.mark.parametrize("text", ["", "a b", "http://a", "a:0", "a:65536", "dns:a:", "::1", "u@a"])
def test_invalid_worker_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a worker address"):
        worker_place(text)


def test_one_address_family_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def both(*_: object, **__: object) -> list[tuple[object, ...]]:
            v6, v4 = (socket.AF_INET6, 1, 6, "", ("::2", 7, 0, 0)), (2, 1, 6, "", ("10.0.0.2", 7))
            return [v6, v4]

        async def nothing(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")

        async def silence(*_: object, **__: object) -> None:
            raise socket.gaierror(socket.EAI_AGAIN, "no resolver")

        monkeypatch.setattr(loop, "getaddrinfo", both)
        assert await directory.resolve("worker", 7) == ["::2"]
        monkeypatch.setattr(loop, "getaddrinfo", nothing)
        assert await directory.resolve("worker", 7) == []
        monkeypatch.setattr(loop, "getaddrinfo", silence)
        with pytest.raises(OSError, match="no resolver"):
            await directory.resolve("worker", 7)

    asyncio.run(scenario())


hosts = st.sets(st.sampled_from("abcd"), max_size=4)
names = st.sampled_from([None, "a", "b", "worker_1", "10.0.0.1"])
steps = st.one_of(
    st.tuples(st.just("list"), hosts),
    st.tuples(st.just("die"), hosts),
    st.tuples(st.just("name"), st.tuples(st.sampled_from("abcd"), names)),
    st.tuples(st.just("ask"), st.integers(1, 3)),
    st.tuples(st.just("leave"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(1, 12)),
)


@given(st.lists(steps, max_size=25))
def test_with_changing_workers_each_request_is_served_once_in_order(
    script: list[tuple[str, object]],
) -> None:
    """Random directories, names, deaths and requests; a talk keeps its worker to its end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(_live(script))


async def _live(script: list[tuple[str, object]]) -> None:
    network = Network(*"abcd")
    pool = pool_of(network, "a:1")
    await pool.start()
    asked: list[Outcome] = []
    held: dict[Outcome, WorkerConnection] = {}
    for what, value in script:
        if what == "list":
            assert isinstance(value, set)
            await pool.directory.replace([f"{host}:1" for host in sorted(value)])
        elif what == "die":
            assert isinstance(value, set)
            network.told = {host: (None, "again") for host in "abcd" if host not in value}
        elif what == "name" and isinstance(value, tuple) and value[0] in network.told:
            network.told[value[0]] = (value[1], "named")
        elif what == "ask" and isinstance(value, int):
            asked += [ask(pool, "chat")[1] for _ in range(value)]
        elif what == "leave" and isinstance(value, int) and held:
            ended = list(held)[value % len(held)]
            pool.leave(ended.ticket)
            del held[ended]
            asked.remove(ended)
        elif what == "wait" and isinstance(value, int):
            await asyncio.sleep(value)
        held |= {one: one.result() for one in asked if one.done() and one not in held}
        _check(pool, asked, held)
    for one in list(held):
        pool.leave(one.ticket)
    await pool.stop()
    assert len(asyncio.all_tasks()) == 1


def _check(
    pool: WorkerPool, asked: Iterable[Outcome], held: dict[Outcome, WorkerConnection]
) -> None:
    waits = [not one.done() for one in asked]
    assert waits == sorted(waits), "somebody overtook"
    for name, worker in pool.workers.items():
        assert worker.worker_id == name
        served = [one.ticket.ticket_id for one, other in held.items() if other is worker]
        assert sorted(task.ticket_id for task in worker.tasks) == sorted(served)
        assert len(served) <= 1
    assert all(worker in pool.workers.values() for worker in held.values()), "a talk was cut"
    assert not (any(waits) and any(worker.available_slots for worker in pool.workers.values()))
