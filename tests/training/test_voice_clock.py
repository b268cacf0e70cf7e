"""Limits, learning rate, averaging and files of training stages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.nano.voice.stage_clock import (
    LAST_RATE_SHARE,
    RESUMED_RATE_SHARE,
    WARM_UP_STEPS,
    Average,
    ReplayedStep,
    StageClock,
    resume,
    save,
    set_rate,
)


def test_save_is_due_at_the_last_step() -> None:
    ticks = list(StageClock(3).ticks("test"))
    assert [tick.step for tick in ticks] == [0, 1, 2]
    assert [tick.is_save_due for tick in ticks] == [False, False, True]


def test_one_step_is_run_without_remaining_time() -> None:
    (tick,) = StageClock(1000, minutes=1e-9).ticks("test")
    assert tick.progress == 1
    assert tick.is_save_due


def test_rate_warms_up_and_decays() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    rates = []
    for tick in StageClock(10 * WARM_UP_STEPS).ticks("test"):
        set_rate(optimizer, tick, 1.0)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(1 / WARM_UP_STEPS)
    assert max(rates) > 0.95
    assert rates[-1] == pytest.approx(LAST_RATE_SHARE, abs=0.01)


def test_tensor_rate_is_updated_in_place() -> None:
    rate = torch.tensor(0.0)
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=rate)
    (tick,) = StageClock(1).ticks("test")
    set_rate(optimizer, tick, 1.0)
    assert float(rate) == pytest.approx(1 / WARM_UP_STEPS)


def test_average_follows_the_parameters() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = Average(model)
    nn.init.ones_(model.weight)
    seen = []
    for step in range(50):
        average.update(step)
        seen.append(float(average.state_dict()["weight"]))
    assert seen == sorted(seen)
    assert 0.9 < seen[-1] <= 1


def test_saved_weights_are_resumed(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 2), nn.Linear(2, 2)
    path = tmp_path / "weights.pt"
    assert resume(other, path) == 1
    save(model.state_dict(), path)
    assert resume(other, path) == RESUMED_RATE_SHARE
    assert torch.equal(other.weight, model.weight.half().float())


def test_step_runs_without_a_gpu() -> None:
    calls = []

    def step(x: Tensor) -> tuple[Tensor, ...]:
        calls.append(float(x))
        return (x + 1,)

    replayed = ReplayedStep(step, [])
    assert [float(replayed(torch.tensor(value))[0]) for value in (1.0, 2.0)] == [2, 3]
    assert calls == [1, 2]
