"""A Ray cluster of real processes, scaled up, broken and scaled down under running sessions.

The tests depend on their order: each continues with the cluster that the one before left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("ray")  # an extra

from benchmarks.cluster import SLOTS, Cluster, running
from benchmarks.cluster_machines import machines
from benchmarks.launched import ASK_S, wait_until
from benchmarks.paced_client import Session
from config import PROJECT_ROOT
from launcher.conductor import NO_MACHINE
from launcher.scaling import SETTLE_S

pytestmark = pytest.mark.matrix
LIMIT_S = 120.0  # ends a test that hangs; benchmarks.cluster measures the times


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head, and one machine with a GPU."""
    # Ray's socket paths below it are limited to 107 bytes: pytest's own folders are too deep.
    with (
        TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder,
        machines(Path(folder)) as made,
    ):
        made.add()
        made.add(gpus=1)
        yield Cluster(made)


def wait_for_more(sessions: list[Session]) -> None:
    """Wait until each of these sessions got two more results."""
    before = [len(session.latencies_s) for session in sessions]

    def have_more() -> bool:
        counts = zip(sessions, before, strict=True)
        return all(len(session.latencies_s) > count + 1 for session, count in counts)

    wait_until("every session got results", have_more, LIMIT_S)
    assert not any(session.problem for session in sessions)


def test_a_seat_on_the_first_machine_serves(cluster: Cluster) -> None:
    printed = cluster.launch("--workers", "1", "--detach")
    assert f"Ready: {cluster.url}" in printed
    with running(cluster.url, SLOTS) as sessions:
        assert {session.worker_id for session in sessions} == {"seat_0"}


def test_a_seat_waits_for_a_machine(cluster: Cluster) -> None:
    cluster.launch("--workers", "2", "--detach")
    status = " ".join(cluster.launch("--status").split())
    assert "2 wanted, of 2" in status and NO_MACHINE.split()[0] in status
    cluster.machines.add(gpus=1)
    cluster.wait_for_seats(2)
    with running(cluster.url, 2 * SLOTS) as sessions:
        seats = [session.worker_id for session in sessions]
        assert [seats.count(name) for name in ("seat_0", "seat_1")] == [SLOTS, SLOTS]


def test_a_killed_seat_is_restarted_and_other_sessions_continue(cluster: Cluster) -> None:
    with running(cluster.url, SLOTS + 1) as sessions:
        cluster.recovery_s(cluster.kill_seat)
        others = [session for session in sessions if not session.problem]
        assert 0 < len(others) < len(sessions)
        wait_for_more(others)
        assert len({session.worker_id for session in others}) == 1


def test_the_seat_of_a_killed_machine_serves_elsewhere(cluster: Cluster) -> None:
    spare = cluster.machines.add(gpus=1)
    machine = cluster.machine_with_seat()
    with running(cluster.url, SLOTS + 1) as sessions:
        cluster.recovery_s(machine.kill)
        others = [session for session in sessions if not session.problem]
        assert others
        wait_for_more(others)
    cluster.wait_for_seats(2)
    assert spare.pids("ray::RaySeat")


def test_a_seat_with_sessions_is_not_removed(cluster: Cluster) -> None:
    with running(cluster.url, SLOTS + 1) as sessions:
        cluster.launch("--workers", "1", "--detach")
        leaving = ""

        def is_delisted() -> bool:
            nonlocal leaving
            gone = [name for name, one in cluster.workers().items() if one["is_draining"]]
            leaving = gone[0] if gone else ""
            return bool(leaving)

        wait_until("one seat is drained", is_delisted, LIMIT_S, ASK_S)
        time.sleep(2 * SETTLE_S)  # long enough for a wrong removal
        wait_for_more(sessions)
        assert leaving in {session.worker_id for session in sessions}
    cluster.wait_for_seats(1)
    status = cluster.launch("--status")
    wait_until(
        "the seat has ended", lambda: leaving not in cluster.launch("--status"), LIMIT_S, ASK_S
    )
    assert "front_0" in status


def test_a_stop_leaves_nothing(cluster: Cluster) -> None:
    assert "Stopped." in cluster.launch("--stop")
    assert not cluster.workers()
    with pytest.raises(RuntimeError, match=r"exit code 3[\s\S]*Not running"):
        cluster.launch("--status")
    for program in ("worker.py", "gateway.py"):
        path = str(PROJECT_ROOT / program)
        assert not any(machine.pids(path) for machine in cluster.machines.all)
