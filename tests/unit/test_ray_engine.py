"""The commands of a cluster, without one."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")  # an extra

from rich.console import Console

from config import Settings
from launcher import ray_engine
from launcher.conductor import END_MARGIN_S, ClusterError
from launcher.display import Display


@pytest.mark.parametrize(("responds", "limit_s"), [(True, 300 + END_MARGIN_S), (False, 40.0)])
def test_sessions_get_the_drain_time_of_their_cluster(
    monkeypatch: pytest.MonkeyPatch, responds: bool, limit_s: float
) -> None:
    """Whatever the configuration of the machine where the cluster is stopped."""
    settings = Settings.model_validate({"service": {"drain_timeout_s": 300}})
    limits: list[float] = []

    class Stopped:
        def names(self) -> list[str]:
            return ["front"]

        def kill(self, name: str) -> None:
            pass

    def orders(method: object) -> tuple[object, object]:
        if not responds:
            raise ClusterError
        return SimpleNamespace(settings=settings), None

    monkeypatch.setattr(ray_engine, "connect", lambda address: None)
    monkeypatch.setattr(ray_engine, "RayEngine", Stopped)
    monkeypatch.setattr(ray_engine, "_actor", lambda name: SimpleNamespace(orders=None))
    monkeypatch.setattr(ray_engine, "ask", orders)
    monkeypatch.setattr(ray_engine, "end_all", lambda names, limit_s: limits.append(limit_s))
    display = Display(Console(file=io.StringIO()))
    assert ray_engine.stop("127.0.0.1:6379", display, 40.0, now=False) == 0
    assert set(limits) == {limit_s}
