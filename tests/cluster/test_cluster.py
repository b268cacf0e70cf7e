"""A cluster of Ray with real processes: grown, broken and shrunk under talks that go on.

The tests are one story in the order of the file: each goes on with the cluster as it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("ray")  # an extra

from benchmarks.cluster import PLACES, Cluster, Talk
from benchmarks.cluster_machines import machines, wait_for
from config import PROJECT_ROOT
from launcher.conductor import NO_MACHINE
from launcher.scaling import SETTLE_S

pytestmark = pytest.mark.matrix
LIMIT_S = 120.0  # ends what hangs; how fast it is says benchmarks.cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and one machine with a GPU, on which a seat serves."""
    # Paths of Ray's sockets end below it and have 107 bytes: pytest's own folders are too deep.
    with (
        TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        machines(Path(folder)) as made,
    ):
        made.add(gpus=0)
        made.add(gpus=1)
        yield Cluster(made)


@contextmanager
def held(cluster: Cluster, count: int) -> Iterator[list[Talk]]:
    """Hold talks beside the test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    held = [Talk() for _ in range(count)]
    tasks = [asyncio.run_coroutine_threadsafe(talk.hold(cluster.url), loop) for talk in held]
    try:
        wait_for("all talk", lambda: all(len(talk.units_s) > 1 for talk in held), LIMIT_S)
        yield held
    finally:
        for task in tasks:
            task.cancel()
        wait_for("all have ended", lambda: not asyncio.all_tasks(loop), LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def go_on(talks: list[Talk]) -> None:
    """Wait until each of these talks got two more answers."""
    before = [len(talk.units_s) for talk in talks]

    def have_more() -> bool:
        return all(len(talk.units_s) > count + 1 for talk, count in zip(talks, before, strict=True))

    wait_for("they go on", have_more, LIMIT_S)
    assert not any(talk.is_over for talk in talks)


def test_a_seat_on_the_first_machine_serves(cluster: Cluster) -> None:
    printed = cluster.launch("--workers", "1", "--detach")
    assert f"Ready: {cluster.url}" in printed
    with held(cluster, PLACES) as talks:
        assert {talk.seat for talk in talks} == {"seat_0"}


def test_a_seat_waits_for_a_machine_and_takes_the_next(cluster: Cluster) -> None:
    cluster.launch("--workers", "2", "--detach")
    status = " ".join(cluster.launch("--status").split())
    assert "2 wanted, of 2" in status and NO_MACHINE.split()[0] in status
    cluster.machines.add(gpus=1)
    cluster.wait_for_seats(2)
    with held(cluster, 2 * PLACES) as talks:
        seats = [talk.seat for talk in talks]
        assert [seats.count(name) for name in ("seat_0", "seat_1")] == [PLACES, PLACES]


def test_a_killed_seat_serves_again_and_other_talks_go_on(cluster: Cluster) -> None:
    with held(cluster, PLACES + 1) as talks:
        cluster.kill_seat()
        others = [talk for talk in talks if not talk.is_over]
        assert 0 < len(others) < len(talks)
        go_on(others)
        assert len({talk.seat for talk in others}) == 1


def test_the_seat_of_a_killed_machine_serves_elsewhere(cluster: Cluster) -> None:
    spare = cluster.machines.add(gpus=1)
    machine, _ = cluster.seat_process()
    with held(cluster, PLACES + 1) as talks:
        cluster.kill_machine(machine)
        others = [talk for talk in talks if not talk.is_over]
        assert others
        go_on(others)
    cluster.wait_for_seats(2)
    assert spare.pids("ray::RaySeat")


def test_a_seat_that_talks_is_not_taken_away(cluster: Cluster) -> None:
    with held(cluster, PLACES + 1) as talks:
        cluster.launch("--workers", "1", "--detach")
        leaving = ""

        def is_delisted() -> bool:
            nonlocal leaving
            gone = [name for name, one in cluster.workers().items() if one["is_draining"]]
            leaving = gone[0] if gone else ""
            return bool(leaving)

        wait_for("one seat gets nothing new", is_delisted, LIMIT_S)
        time.sleep(2 * SETTLE_S)  # long enough for a mistake
        go_on(talks)
        assert leaving in {talk.seat for talk in talks}
    cluster.wait_for_seats(1)
    status = cluster.launch("--status")
    wait_for("the seat has ended", lambda: leaving not in cluster.launch("--status"), LIMIT_S)
    assert "front_0" in status


def test_a_stop_leaves_nothing(cluster: Cluster) -> None:
    assert "Stopped." in cluster.launch("--stop")
    assert not cluster.workers()
    with pytest.raises(RuntimeError, match=r"exit code 3[\s\S]*Not running"):
        cluster.launch("--status")
    for program in ("worker.py", "gateway.py"):
        path = str(PROJECT_ROOT / program)
        assert not any(machine.pids(path) for machine in cluster.machines.all)
