"""The picture of a measurement: every kind of unit and every load is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the extra `bench` is not installed")

from benchmarks.plot import draw
from benchmarks.summary import PARTS


def record() -> dict[str, Any]:
    stages = {stage: {"p50": 2.0} for stage in PARTS}
    loads = [
        {"name": name, "sessions": sessions, "latency_ms": {"p50": 90.0, "p99": 200.0}}
        for name in ("omni", "audio")
        for sessions in (1, 64)
    ]
    scenario = {
        "name": "omni, 1024 tokens",
        "summary_ms": {"listen": stages, "speak": stages},
        "floors_ms": {"listen": {"prefill": 1.0}},
    }
    return {"machine": {"device": "cpu", "torch": "2"}, "scenarios": [scenario], "loads": loads}


def test_every_kind_and_every_load_is_drawn(tmp_path: Path) -> None:
    figure = draw(record())
    left, right = figure.axes
    names = [label.get_text() for label in left.get_yticklabels()]
    assert names == ["omni, 1024 tokens: listen", "omni, 1024 tokens: speak"]
    lines = {line.get_label(): np.asarray(line.get_xdata()).tolist() for line in right.get_lines()}
    assert lines["omni, p99"] == [1, 64] and lines["audio, p50"] == [1, 64]
    figure.savefig(tmp_path / "all.svg")
    assert "omni" in (tmp_path / "all.svg").read_text(encoding="utf8")


def test_a_measurement_without_loads_is_drawn_too() -> None:
    figure = draw(record() | {"loads": []})
    assert len(figure.axes) == 2
